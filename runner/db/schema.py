"""The whole schema on one page. The invariants that must hold whatever crashes are stated as constraints, not as code.

Files beside the database are caches. It refuses to know what any row is for. A change needs a step in `migrations`.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
    false,
    text,
)

from runner.db.columns import LISTED, Compressed, Integer, String, Text, UtcDateTime, describe_tries
from runner.model.job import ACTIVE

metadata = MetaData()
PENDING = text("state = 'pending'")
"""Which deliveries are still to be worked; said in these words it is found in an index of its own."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("sequence", Integer, primary_key=True),
    Column("id", String(100), nullable=False, unique=True),  # X-GitHub-Delivery: a redelivery carries the same one
    Column("event", String(100), nullable=False),
    Column("lane", String(300), nullable=False),  # deliveries of one lane are worked one after the other
    Column("body", Compressed, nullable=False),  # the bytes that were signed
    Column("digest", String(64)),  # of event and payload; NULL: it came before digests were kept
    Column("received_at", UtcDateTime, nullable=False),
    Column("state", String(20), nullable=False),  # pending, done, failed
    Column("attempts", Integer, nullable=False, default=0),
    Column("begun", Integer, nullable=False, default=0, server_default="0"),  # without that its end was seen
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("error", Text),
    # Who is next is found without reading a body, and a new delivery goes to its end.
    Index("pending_deliveries", "sequence", "lane", sqlite_where=PENDING, postgresql_where=PENDING),
    Index("deliveries_by_digest", "digest"),  # no signature covers the id, so a copy may come under another
)

cases = Table(
    "cases",
    metadata,
    Column("key", String(300), primary_key=True),  # owner/name#number
    Column("repository", String(200), nullable=False),
    Column("issue_number", Integer, nullable=False),
    Column("title", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("active_job_id", String(20)),
    Column("standing_job_id", String(20)),  # the job whose report a note would approve
    Column("pull_number", Integer),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    UniqueConstraint("repository", "issue_number"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(20), primary_key=True),  # derived from the trigger: the same trigger is the same job
    Column("repository", String(200), nullable=False),
    Column("private", Boolean, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("thread", Integer),  # the number; NULL: of no issue
    Column("series", Integer),  # of the attempts without an issue; NULL: of an issue
    Column("attempt", Integer, nullable=False),
    Column("preset", String(50), nullable=False),
    Column("may_change", Boolean, nullable=False),
    Column("agent", String(100), nullable=False),
    Column("requested_by", String(100), nullable=False),
    Column("clone_url", Text, nullable=False),
    Column("base_branch", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Column("requested_at", UtcDateTime, nullable=False),  # by GitHub's clock
    Column("machine", String(100)),
    Column("base_commit", String(64)),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("cancel_requested_at", UtcDateTime),
    Column("cancelled_by", String(100)),
    Column("model", Text),
    Column("skills", JSON, nullable=False),
    Column("follows", ForeignKey("jobs.id")),
    Column("conflicts", JSON(none_as_null=True)),  # paths; NULL until it is known, and of what is no rebase
    Column("replaces", ForeignKey("jobs.id"), unique=True),  # a job is started again once
    Column("adopts", ForeignKey("jobs.id"), unique=True),  # an environment passes on once
    Column("name", String(50)),  # of a worktree, or a task of its own
    Column("pinned_to", String(100)),  # the one machine that it may run on
    Column("posts", String(20), nullable=False, default="all", server_default="all"),  # all, finding, nothing
    Column("stopped_as", String(20)),
    Column("stopped_at", UtcDateTime),
    Column("stop_reason", Text),
    Column("exit_status", Integer),
    Column("trouble", Text),
    Column("failure", Text),
    Index("jobs_by_thread_and_series", "repository", "thread", "series"),
    Index("jobs_by_age", "created_at", "id", *LISTED),
)
_is_active = jobs.c.state.in_(sorted(map(str, ACTIVE)))
for _name, _shared in (("one_active_job_per_thread", jobs.c.thread), ("one_active_job_per_series", jobs.c.series)):
    Index(_name, jobs.c.repository, _shared, unique=True, sqlite_where=_is_active, postgresql_where=_is_active)

job_events = Table(
    "job_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("what", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("machine", String(100), primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False, unique=True),
    Column("leased_at", UtcDateTime, nullable=False),
    Column("gpus", JSON),  # pairs: the number of a device file, and the name that CUDA knows
)

turns = Table(
    "turns",
    metadata,
    Column("kind", String(20), primary_key=True),  # repository, person
    Column("name", String(200), primary_key=True),
    Column("at", UtcDateTime, nullable=False),  # when it last got a slot
)

holds = Table(
    "holds",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("person", String(100), nullable=False),
    Column("public_key", Text, nullable=False),
    Column("begun_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("admitted_at", UtcDateTime),  # NULL: the machine does not let the key in yet
    Column("trouble", Text),  # why it does not
    Column("waits_for_report", Boolean, nullable=False, default=False, server_default=false()),
    Column("checked_at", UtcDateTime),  # when GitHub last said that its person may; NULL: the operator let them in
)

machine_states = Table(
    "machine_states",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("drained_at", UtcDateTime),  # NULL takes jobs
    Column("drained_by", String(100)),
    Column("reason", Text),  # NULL is not out
    Column("permanent", Boolean),
    Column("since", UtcDateTime),
    Column("seen_at", UtcDateTime),
    Column("retry_at", UtcDateTime),
    Column("faults", Integer, nullable=False, default=0, server_default="0"),  # of preparations, in a row
)

machine_sightings = Table(
    "machine_sightings",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("gpus", JSON, nullable=False),
    Column("gpu_trouble", Text),
    Column("free_bytes", Integer, nullable=False),
    Column("total_bytes", Integer, nullable=False),
    Column("free_inodes", Integer),  # NULL is without bound
    Column("sealed", Boolean),  # NULL: not asked yet
    Column("strangers", JSON),  # folders of jobs that nobody knows
    Column("stranger_count", Integer, nullable=False, default=0, server_default="0"),
)

warm_bases = Table(
    "warm_bases",
    metadata,
    Column("machine", String(100), primary_key=True),
    Column("repository", String(200), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),  # -1 is any
    Column("recipe", String(64), nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("fence", String(32), nullable=False, unique=True),
    Column("expires_at", UtcDateTime, nullable=False),  # on the database's clock
)

meters = Table(
    "meters",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("model", Text),  # as the agent itself says it
    Column("turns", Integer, nullable=False),
    Column("tool_calls", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("unknown_events", Integer, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_usd", Float),  # NULL is unknown, which is not nothing
    Column("cost_is_estimate", Boolean, nullable=False),
    Column("output_bytes", Integer, nullable=False),
    Column("run_s", Float, nullable=False),
    Column("last_tool", Text, nullable=False),
    Column("heading", Text, nullable=False),
    Column("ending", String(20)),
)

model_calls = Table(
    "model_calls",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("ended", Boolean, primary_key=True),  # a row before the model is asked, and one after its answer
    Column("job_id", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("model", Text, nullable=False),
    Column("state", String(20), nullable=False),  # open: what it may take at most; settled; assumed: nobody saw its end
    Column("at", UtcDateTime, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_usd", Float),  # NULL is unknown
)

checks = Table(
    "checks",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),  # issue, agent, tests
    Column("origin", Text, nullable=False),  # where the script stood; the path of the tests
    Column("script", Text, nullable=False),  # or the names of the tests
    Column("runs", JSON, nullable=False),  # by side; empty before it was run
    Column("trouble", Text),
)

reports = Table(
    "reports",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("body", "worklog", "pr_title", "repro", "patch")),
    Column("digest", String(64)),
    Column("refusals", JSON, nullable=False),
    Column("warnings", JSON, nullable=False),
)

file_changes = Table(
    "file_changes",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("mode", String(6)),
    Column("old_mode", String(6)),
    Column("content", LargeBinary),
)

job_logs = Table(
    "job_logs",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("stage", String(20), primary_key=True),
    Column("compressed", LargeBinary, nullable=False),
)

replies = Table(
    "replies",
    metadata,
    Column("id", String(40), primary_key=True),  # stands in the comment's marker
    Column("kind", String(20), nullable=False),  # status, report, reply
    Column("repository", String(200), nullable=False),
    Column("issue_number", Integer, nullable=False),
    Column("job_id", ForeignKey("jobs.id")),
    Column("body", Text, nullable=False),  # as it should stand on GitHub
    Column("posted_body", Text),  # as we last put it there
    Column("final", Boolean, nullable=False),  # nothing will change `body` any more
    Column("comment_id", Integer),
    Column("comment_url", Text),
    Column("commented_at", UtcDateTime),  # GitHub's own clock
    Column("quiet_since", UtcDateTime),  # no request to post it is under way; NULL: not known
    *describe_tries(),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime),  # when `body` last became another one
    UniqueConstraint("job_id", "kind"),
    Index("replies_by_issue", "repository", "issue_number"),
)

pulls = Table(
    "pulls",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),  # one pull request for each report
    Column("digest", String(64), nullable=False),
    Column("note", Text, nullable=False),
    Column("title", Text),  # the approver's own
    Column("approver", String(100), nullable=False),
    Column("note_url", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("commit_sha", String(64)),
    Column("number", Integer),
    Column("url", Text),
    *describe_tries(),
    Column("created_at", UtcDateTime, nullable=False),
)

case_labels = Table(
    "case_labels",
    metadata,
    Column("key", String(300), primary_key=True),  # the case's
    Column("standing", String(50)),  # by our doing, as far as we know; NULL: none does
    Column("settled", Boolean, nullable=False),  # GitHub has said so
    *describe_tries(),
)

notifications = Table(
    "notifications",
    metadata,
    Column("key", String(500), primary_key=True),  # the operator hears of each occasion once
    Column("kind", String(20), nullable=False),
    Column("about", String(300), nullable=False),
    Column("facts", JSON, nullable=False),
    *describe_tries(),
    Column("delivered_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
)

github_accounts = Table(
    "github_accounts",
    metadata,
    Column("account", String(100), primary_key=True),  # in lower case: whose installation it is
    Column("turns", Integer, nullable=False),  # ever reserved; the row's lock makes replicas reserve one by one
)

github_writes = Table(
    "github_writes",
    metadata,
    Column("account", ForeignKey("github_accounts.account"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("counts_at", UtcDateTime, nullable=False),  # the latest moment at which GitHub can have counted the write
)

pauses = Table(
    "pauses",
    metadata,
    Column("repository", String(200), primary_key=True),  # owner/name in lower case; empty: all
    Column("origin", String(50), primary_key=True),  # the operator, or the issue that has the label
    Column("paused_by", String(100), nullable=False),
    Column("paused_at", UtcDateTime, nullable=False),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("name", String(100), primary_key=True),  # alive: some replica was; looked: GitHub's record was read
    Column("at", UtcDateTime, nullable=False),  # never goes back: the newest of all replicas counts
)

enabled_repositories = Table(
    "enabled_repositories",
    metadata,
    Column("name", String(200), primary_key=True),  # owner/name in lower case
    Column("enabled_at", UtcDateTime, nullable=False),  # what was asked for before starts nothing
    Column("looked_at", UtcDateTime, nullable=False),  # its labels were last gone through; never goes back
)

installation = Table(
    "ptq_bot",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),  # there is one row
    Column("secret", LargeBinary, nullable=False),  # what makes job ids, and so the addresses of pages, unguessable
)
