CREATE TABLE deliveries (
	sequence INTEGER NOT NULL, 
	id VARCHAR(100) NOT NULL, 
	event VARCHAR(100) NOT NULL, 
	lane VARCHAR(300) NOT NULL, 
	body BLOB NOT NULL, 
	received_at DATETIME NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_attempt_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	error TEXT, 
	PRIMARY KEY (sequence), 
	UNIQUE (id)
);
CREATE INDEX pending_deliveries ON deliveries (state, sequence);
CREATE TABLE cases (
	"key" VARCHAR(300) NOT NULL, 
	repository VARCHAR(200) NOT NULL, 
	issue_number INTEGER NOT NULL, 
	title TEXT NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	active_job_id VARCHAR(20), 
	standing_job_id VARCHAR(20), 
	pull_number INTEGER, 
	created_at DATETIME NOT NULL, 
	changed_at DATETIME NOT NULL, 
	PRIMARY KEY ("key"), 
	UNIQUE (repository, issue_number)
);
CREATE TABLE jobs (
	id VARCHAR(20) NOT NULL, 
	repository VARCHAR(200) NOT NULL, 
	private BOOLEAN NOT NULL, 
	issue_number INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	preset VARCHAR(50) NOT NULL, 
	may_change BOOLEAN NOT NULL, 
	agent VARCHAR(100) NOT NULL, 
	requested_by VARCHAR(100) NOT NULL, 
	clone_url TEXT NOT NULL, 
	base_branch TEXT NOT NULL, 
	prompt TEXT NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	created_at DATETIME NOT NULL, 
	changed_at DATETIME NOT NULL, 
	machine VARCHAR(100), 
	base_commit VARCHAR(64), 
	started_at DATETIME, 
	ended_at DATETIME, 
	cancel_requested_at DATETIME, 
	cancelled_by VARCHAR(100), 
	model TEXT, 
	skills JSON NOT NULL, 
	follows VARCHAR(20), 
	stopped_as VARCHAR(20), 
	stopped_at DATETIME, 
	stop_reason TEXT, 
	exit_status INTEGER, 
	trouble TEXT, 
	failure TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(follows) REFERENCES jobs (id)
);
CREATE UNIQUE INDEX one_active_job_per_case ON jobs (repository, issue_number) WHERE state IN ('collecting', 'running', 'queued', 'preparing');
CREATE INDEX jobs_by_case ON jobs (repository, issue_number);
CREATE TABLE ptq_bot (
	schema_version INTEGER NOT NULL, 
	secret BLOB NOT NULL, 
	PRIMARY KEY (schema_version)
);
CREATE TABLE job_events (
	id INTEGER NOT NULL, 
	job_id VARCHAR(20) NOT NULL, 
	at DATETIME NOT NULL, 
	what TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_job_events_job_id ON job_events (job_id);
CREATE TABLE leases (
	machine VARCHAR(100) NOT NULL, 
	slot INTEGER NOT NULL, 
	job_id VARCHAR(20) NOT NULL, 
	leased_at DATETIME NOT NULL, 
	PRIMARY KEY (machine, slot), 
	UNIQUE (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE meters (
	job_id VARCHAR(20) NOT NULL, 
	model TEXT, 
	turns INTEGER NOT NULL, 
	tool_calls INTEGER NOT NULL, 
	retries INTEGER NOT NULL, 
	unknown_events INTEGER NOT NULL, 
	input_tokens INTEGER NOT NULL, 
	cached_tokens INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	cost_usd FLOAT, 
	cost_is_estimate BOOLEAN NOT NULL, 
	output_bytes INTEGER NOT NULL, 
	run_s FLOAT NOT NULL, 
	last_tool TEXT NOT NULL, 
	withheld BOOLEAN NOT NULL, 
	ending VARCHAR(20), 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE sessions (
	job_id VARCHAR(20) NOT NULL, 
	id TEXT NOT NULL, 
	path TEXT NOT NULL, 
	compressed BLOB NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE reports (
	job_id VARCHAR(20) NOT NULL, 
	body TEXT NOT NULL, 
	worklog TEXT NOT NULL, 
	pr_title TEXT NOT NULL, 
	repro TEXT NOT NULL, 
	patch TEXT NOT NULL, 
	digest VARCHAR(64), 
	refusals JSON NOT NULL, 
	warnings JSON NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE file_changes (
	job_id VARCHAR(20) NOT NULL, 
	path TEXT NOT NULL, 
	mode VARCHAR(6), 
	old_mode VARCHAR(6), 
	content BLOB, 
	PRIMARY KEY (job_id, path), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE job_logs (
	job_id VARCHAR(20) NOT NULL, 
	stage VARCHAR(20) NOT NULL, 
	compressed BLOB NOT NULL, 
	PRIMARY KEY (job_id, stage), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE replies (
	id VARCHAR(40) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	repository VARCHAR(200) NOT NULL, 
	issue_number INTEGER NOT NULL, 
	job_id VARCHAR(20), 
	body TEXT NOT NULL, 
	posted_body TEXT, 
	final BOOLEAN NOT NULL, 
	comment_id INTEGER, 
	comment_url TEXT, 
	commented_at DATETIME, 
	attempts INTEGER NOT NULL, 
	refusals INTEGER NOT NULL, 
	next_attempt_at DATETIME NOT NULL, 
	abandoned TEXT, 
	created_at DATETIME NOT NULL, 
	changed_at DATETIME, 
	PRIMARY KEY (id), 
	UNIQUE (job_id, kind), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX replies_by_issue ON replies (repository, issue_number);
CREATE TABLE pulls (
	job_id VARCHAR(20) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	note TEXT NOT NULL, 
	approver VARCHAR(100) NOT NULL, 
	note_url TEXT NOT NULL, 
	branch TEXT NOT NULL, 
	commit_sha VARCHAR(64), 
	number INTEGER, 
	url TEXT, 
	attempts INTEGER NOT NULL, 
	refusals INTEGER NOT NULL, 
	next_attempt_at DATETIME NOT NULL, 
	abandoned TEXT, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE notifications (
	job_id VARCHAR(20) NOT NULL, 
	repository VARCHAR(200) NOT NULL, 
	issue_number INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_attempt_at DATETIME NOT NULL, 
	delivered_at DATETIME, 
	created_at DATETIME NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES jobs (id)
);
