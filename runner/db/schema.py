"""The whole schema. Invariants that must survive any crash are constraints of the database, not code.

Files beside the database are caches. This module does not know how rows are used. A change needs a step in
`migrations`.
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

from runner.db.columns import LISTED, Compressed, Integer, String, Text, UtcDateTime, retry_columns
from runner.model.job import ACTIVE

metadata = MetaData()
PENDING = text("state = 'pending'")
"""The condition for deliveries that are not yet processed. Queries must use these words to use the partial index."""

TO_STRANGER = text("stranger IS NOT NULL")
"""The condition for replies to people without rights."""
NOT_AS_WANTED = text("(comment_id IS NULL OR posted_body <> body OR abandoned IS NOT NULL)")
"""Replies that GitHub does not show as wanted. Their index is used only by queries with exactly this condition. Without
it, each such query compares all texts that were ever posted."""
TO_MINIMIZE = text("(NOT minimized AND abandoned IS NULL)")
"""Outdated comments that GitHub still shows."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("sequence", Integer, primary_key=True),
    Column("id", String(100), nullable=False, unique=True),  # X-GitHub-Delivery; a redelivery has the same
    Column("event", String(100), nullable=False),
    Column("lane", String(300), nullable=False),  # deliveries in one lane are processed in order
    Column("body", Compressed, nullable=False),  # the bytes that were signed
    Column("digest", String(64)),  # of event and payload; NULL until it is first needed
    Column("received_at", UtcDateTime, nullable=False),
    Column("state", String(20), nullable=False),  # pending, done, failed
    Column("attempts", Integer, nullable=False, default=0),
    Column("begun", Integer, nullable=False, default=0, server_default="0"),  # starts without a recorded end
    Column("next_attempt_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("error", Text),
    # Finding the next delivery reads no bodies, and a new one goes to the end of the index.
    Index("pending_deliveries", "sequence", "lane", sqlite_where=PENDING, postgresql_where=PENDING),
    Index("deliveries_by_digest", "digest"),  # the signature does not cover the id, so a copy may have another one
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
    Column("standing_job_id", String(20)),  # a note would approve the report of this job
    Column("pull_number", Integer),
    # What further attempts find is for operators alone.
    Column("confidential", Boolean, nullable=False, default=False, server_default=false()),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    UniqueConstraint("repository", "issue_number"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(20), primary_key=True),  # derived from the trigger, so the same trigger gives the same job
    Column("repository", String(200), nullable=False),
    Column("private", Boolean, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("thread", Integer),  # the number; NULL: no issue
    Column("issue_title", Text, nullable=False),  # at the request
    Column("series", Integer),  # of attempts without an issue; NULL: an issue
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
    Column("stages_begun", Integer, nullable=False),  # of the state
    Column("requested_at", UtcDateTime, nullable=False),  # on GitHub's clock
    Column("machine", String(100)),
    Column("base_commit", String(64)),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("cancel_requested_at", UtcDateTime),
    Column("cancelled_by", String(100)),
    Column("model", Text),
    Column("thinking", Text),
    Column("max_turns", Integer),
    Column("max_cost_usd", Float),
    Column("skills", JSON, nullable=False),
    Column("requires", JSON, nullable=False),  # labels of machines
    Column("follows", ForeignKey("jobs.id")),
    Column("conflicts", JSON(none_as_null=True)),  # paths; NULL while unknown, and if the job is not a rebase
    Column("replaces", ForeignKey("jobs.id"), unique=True),  # a job is restarted only once
    Column("adopts", ForeignKey("jobs.id"), unique=True),  # an environment is passed on only once
    Column("name", String(50)),  # of a worktree or a task
    Column("task", Text, nullable=False),  # instead of an issue
    Column("pinned_to", String(100)),  # the only machine that it may run on
    Column("posts", String(20), nullable=False, default="all", server_default="all"),  # all, finding, nothing
    Column("confidential", Boolean, nullable=False, default=False, server_default=false()),  # as its case was
    Column("stopped_as", String(20)),
    Column("stopped_at", UtcDateTime),
    Column("stop_reason", Text),
    Column("exit_status", Integer),
    Column("trouble", Text),
    Column("failure", Text),
    Column("facts", JSON, nullable=False),  # pairs of a name and a value
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
    Column("state", String(20)),  # the state that the job reached; NULL: it stayed in its state
    Column("what", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("machine", String(100), primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False, unique=True),
    Column("leased_at", UtcDateTime, nullable=False),
    Column("gpus", JSON),  # the fields of each GPU
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
    Column("admitted_at", UtcDateTime),  # NULL: the machine does not accept the key yet
    Column("trouble", Text),  # why the machine does not accept the key
    Column("waits_for_report", Boolean, nullable=False, default=False, server_default=false()),
    Column("checked_at", UtcDateTime),  # when GitHub last confirmed the person's right; NULL: let in by the operator
)

machine_states = Table(
    "machine_states",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("drained_at", UtcDateTime),  # NULL: not drained
    Column("drained_by", String(100)),
    Column("reason", Text),  # why it is out of service; NULL: it is in service
    Column("permanent", Boolean),
    Column("since", UtcDateTime),
    Column("seen_at", UtcDateTime),
    Column("retry_at", UtcDateTime),
    Column("faults", Integer, nullable=False, default=0, server_default="0"),  # failed preparations in a row
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
    Column("free_inodes", Integer),  # NULL: unlimited
    Column("sealed", Boolean),  # NULL: not asked yet
    Column("strangers", JSON),  # folders of unknown jobs
    Column("stranger_count", Integer, nullable=False, default=0, server_default="0"),
)

warm_bases = Table(
    "warm_bases",
    metadata,
    Column("machine", String(100), primary_key=True),
    Column("repository", String(200), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),  # -1: any slot
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
    Column("model", Text),  # as the agent reports it
    Column("turns", Integer, nullable=False),
    Column("tool_calls", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("unknown_events", Integer, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_usd", Float),  # NULL: unknown, not 0
    Column("known_usd", Float, nullable=False),  # the known part of the cost, which counts towards caps
    Column("cost_is_estimate", Boolean, nullable=False),
    Column("is_self_reported", Boolean, nullable=False),  # turns, tokens and money are the agent's own words
    Column("output_bytes", Integer, nullable=False),
    Column("run_s", Float, nullable=False),
    Column("last_tool", Text, nullable=False),
    Column("ending", String(20)),
)

model_calls = Table(
    "model_calls",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("ended", Boolean, primary_key=True),  # one row before the request, and one after its answer
    Column("job_id", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("model", Text, nullable=False),
    Column("state", String(20), nullable=False),  # open: the maximum; settled: the real usage; assumed: no end was seen
    Column("at", UtcDateTime, nullable=False),
    Column("turns", Integer, nullable=False),  # 0 if the model did not answer
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_usd", Float),  # NULL: unknown
)

checks = Table(
    "checks",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),  # issue, agent, kept, tests
    Column("origin", Text, nullable=False),  # where the script was; or the path of the tests
    Column("script", Text, nullable=False),  # or the names of the tests
    Column("runs", JSON, nullable=False),  # by side; empty before the check has run
    Column("trouble", Text),
)

tellings = Table(
    "tellings",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("occasion", String(300), nullable=False),  # of the request
    Column("told_by", String(100), nullable=False),
    Column("told_at", UtcDateTime, nullable=False),
    Column("words", Text, nullable=False),  # as the person wrote them
    Column("message", Text, nullable=False),  # what the agent gets
    Column("given_at", UtcDateTime),  # NULL: the agent has not got it
    UniqueConstraint("job_id", "occasion"),  # a repeated request does not tell the agent twice
)

reports = Table(
    "reports",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    # The short columns come before the long texts, so that they can be read quickly.
    Column("withheld", Boolean, nullable=False),  # only operators see it
    Column("digest", String(64)),
    *(Column(name, Text, nullable=False) for name in ("pr_title", "body", "worklog", "repro", "patch")),
    Column("refusals", JSON, nullable=False),
    Column("warnings", JSON, nullable=False),
)

file_changes = Table(
    "file_changes",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    # Not the path: PostgreSQL has no index entries of more than 2,700 bytes.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("path", Text, nullable=False),
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

worklogs = Table(
    "worklogs",  # of agents whose job has no report yet
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("mark", Text, nullable=False),  # names the version on the machine
    Column("is_cut", Boolean, nullable=False),  # `text` is only its end
    Column("text", Text, nullable=False),
)

replies = Table(
    "replies",
    metadata,
    Column("id", String(40), primary_key=True),  # is in the comment's marker
    Column("kind", String(20), nullable=False),  # status, report, reply
    Column("repository", String(200), nullable=False),
    Column("issue_number", Integer, nullable=False),
    Column("job_id", ForeignKey("jobs.id")),
    Column("body", Text, nullable=False),  # what GitHub should show
    Column("posted_body", Text),  # what we last posted
    Column("final", Boolean, nullable=False),  # `body` will not change any more
    Column("comment_id", Integer),
    Column("comment_url", Text),
    Column("commented_at", UtcDateTime),  # on GitHub's clock
    Column("quiet_since", UtcDateTime),  # since when no request to post it is running; NULL: unknown
    *retry_columns(),
    Column("created_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime),  # when `body` last changed
    Column("stranger", String(100)),  # the login in lower case, if it answers a person without rights
    UniqueConstraint("job_id", "kind"),
    Index("replies_by_issue", "repository", "issue_number"),
    Index(
        "replies_not_as_wanted",
        *("repository", "trouble", "abandoned", "next_attempt_at"),
        sqlite_where=NOT_AS_WANTED,
        postgresql_where=NOT_AS_WANTED,
    ),
    Index("replies_to_strangers", "created_at", sqlite_where=TO_STRANGER, postgresql_where=TO_STRANGER),
)

pulls = Table(
    "pulls",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),  # one pull request for each report
    Column("digest", String(64), nullable=False),
    Column("note", Text, nullable=False),
    Column("title", Text),  # chosen by the approver
    Column("approver", String(100), nullable=False),
    Column("approver_id", Integer),  # GitHub's id of the account; NULL: the note is a comment
    Column("note_url", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("base_branch", Text),  # where it goes; NULL: the base branch of its job
    Column("commit_sha", String(64)),
    Column("drops_edits", Boolean, nullable=False),  # text of people in the earlier body is left out
    Column("number", Integer),
    Column("url", Text),
    *retry_columns(),
    Column("created_at", UtcDateTime, nullable=False),
)

outdated_comments = Table(
    "outdated_comments",
    metadata,
    Column("reply_id", ForeignKey("replies.id"), primary_key=True),
    Column("minimized", Boolean, nullable=False),  # GitHub has confirmed it
    *retry_columns(),
    Index("comments_to_minimize", "next_attempt_at", sqlite_where=TO_MINIMIZE, postgresql_where=TO_MINIMIZE),
)
case_labels = Table(
    "case_labels",
    metadata,
    Column("key", String(300), primary_key=True),  # of the case
    Column("standing", String(50)),  # the label that we have set, as far as we know; NULL: none
    Column("settled", Boolean, nullable=False),  # GitHub has confirmed it
    *retry_columns(),
)

notifications = Table(
    "notifications",
    metadata,
    Column("key", String(500), primary_key=True),  # the operator is notified once for each key
    Column("kind", String(20), nullable=False),
    Column("about", String(300), nullable=False),
    Column("facts", JSON, nullable=False),
    *retry_columns(),
    Column("delivered_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
)

github_accounts = Table(
    "github_accounts",
    metadata,
    Column("account", String(100), primary_key=True),  # in lower case: the owner of the installation
    Column("turns", Integer, nullable=False),  # writes ever reserved; replicas lock the row to reserve one by one
)

github_writes = Table(
    "github_writes",
    metadata,
    Column("account", ForeignKey("github_accounts.account"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("counts_at", UtcDateTime, nullable=False),  # the latest time at which GitHub can have counted the write
)

pauses = Table(
    "pauses",
    metadata,
    Column("repository", String(200), primary_key=True),  # owner/name in lower case; empty: all repositories
    Column("issue_number", Integer, primary_key=True, autoincrement=False),  # with the label; 0: the operator pauses
    Column("paused_by", String(100), nullable=False),
    Column("paused_at", UtcDateTime, nullable=False),
    Column("label_restored_at", UtcDateTime),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("name", String(100), primary_key=True),  # alive: a replica was running; looked: GitHub's log was read
    Column("at", UtcDateTime, nullable=False),  # the newest of all replicas; never decreases
)

enabled_repositories = Table(
    "enabled_repositories",
    metadata,
    Column("name", String(200), primary_key=True),  # owner/name in lower case
    Column("enabled_at", UtcDateTime, nullable=False),  # earlier requests start nothing
    Column("looked_at", UtcDateTime, nullable=False),  # when its labels were last checked; never decreases
)

known_repositories = Table(
    "known_repositories",
    metadata,
    Column("name", String(200), primary_key=True),  # owner/name in lower case
    Column("number", Integer, nullable=False),  # GitHub's id of the repository that had the name first
)

installation = Table(
    "ptq_bot",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),  # the only row
    Column("secret", LargeBinary, nullable=False),  # makes job ids, and so the URLs of pages, impossible to guess
)
