"""The schema of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "case_labels",
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("standing", sa.String(50)),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("refusals", INTEGER, nullable=False),
        sa.Column("absences", INTEGER, nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.Column("abandoned", sa.Text()),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "cases",
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("issue_number", INTEGER, nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("active_job_id", sa.String(20)),
        sa.Column("standing_job_id", sa.String(20)),
        sa.Column("pull_number", INTEGER),
        sa.Column("confidential", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("changed_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("key"),
        sa.UniqueConstraint("repository", "issue_number"),
    )
    op.create_table(
        "claims",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("fence", sa.String(32), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("fence"),
    )
    op.create_table(
        "deliveries",
        sa.Column("sequence", INTEGER, nullable=False),
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("event", sa.String(100), nullable=False),
        sa.Column("lane", sa.String(300), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("received_at", TIME, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("begun", INTEGER, server_default="0", nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("deliveries_by_digest", "deliveries", ["digest"])
    op.create_index(
        "pending_deliveries",
        "deliveries",
        ["sequence", "lane"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "enabled_repositories",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("enabled_at", TIME, nullable=False),
        sa.Column("looked_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "github_accounts",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("turns", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("account"),
    )
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(20), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("thread", INTEGER),
        sa.Column("issue_title", sa.Text(), nullable=False),
        sa.Column("series", INTEGER),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("preset", sa.String(50), nullable=False),
        sa.Column("may_change", sa.Boolean(), nullable=False),
        sa.Column("agent", sa.String(100), nullable=False),
        sa.Column("requested_by", sa.String(100), nullable=False),
        sa.Column("clone_url", sa.Text(), nullable=False),
        sa.Column("base_branch", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("changed_at", TIME, nullable=False),
        sa.Column("stages_begun", INTEGER, nullable=False),
        sa.Column("requested_at", TIME, nullable=False),
        sa.Column("machine", sa.String(100)),
        sa.Column("base_commit", sa.String(64)),
        sa.Column("started_at", TIME),
        sa.Column("ended_at", TIME),
        sa.Column("cancel_requested_at", TIME),
        sa.Column("cancelled_by", sa.String(100)),
        sa.Column("model", sa.Text()),
        sa.Column("thinking", sa.Text()),
        sa.Column("max_turns", INTEGER),
        sa.Column("max_cost_usd", sa.Float()),
        sa.Column("skills", sa.JSON(), nullable=False),
        sa.Column("requires", sa.JSON(), nullable=False),
        sa.Column("follows", sa.String(20)),
        sa.Column("conflicts", sa.JSON(none_as_null=True)),
        sa.Column("replaces", sa.String(20)),
        sa.Column("adopts", sa.String(20)),
        sa.Column("name", sa.String(50)),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("pinned_to", sa.String(100)),
        sa.Column("posts", sa.String(20), server_default="all", nullable=False),
        sa.Column("confidential", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("stopped_as", sa.String(20)),
        sa.Column("stopped_at", TIME),
        sa.Column("stop_reason", sa.Text()),
        sa.Column("exit_status", INTEGER),
        sa.Column("trouble", sa.Text()),
        sa.Column("failure", sa.Text()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["adopts"],
            ["jobs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["follows"],
            ["jobs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["replaces"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("adopts"),
        sa.UniqueConstraint("replaces"),
    )
    op.create_index(
        "jobs_by_age",
        "jobs",
        [
            "created_at",
            "id",
            "repository",
            "private",
            "thread",
            "state",
            "preset",
            "agent",
            "machine",
            "requested_by",
            "name",
        ],
    )
    op.create_index("jobs_by_thread_and_series", "jobs", ["repository", "thread", "series"])
    op.create_index(
        "one_active_job_per_thread",
        "jobs",
        ["repository", "thread"],
        unique=True,
        sqlite_where=sa.text("state IN ('collecting', 'preparing', 'queued', 'running', 'verifying')"),
        postgresql_where=sa.text("state IN ('collecting', 'preparing', 'queued', 'running', 'verifying')"),
    )
    op.create_index(
        "one_active_job_per_series",
        "jobs",
        ["repository", "series"],
        unique=True,
        sqlite_where=sa.text("state IN ('collecting', 'preparing', 'queued', 'running', 'verifying')"),
        postgresql_where=sa.text("state IN ('collecting', 'preparing', 'queued', 'running', 'verifying')"),
    )
    op.create_table(
        "known_repositories",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "machine_sightings",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.Column("gpu_trouble", sa.Text()),
        sa.Column("free_bytes", INTEGER, nullable=False),
        sa.Column("total_bytes", INTEGER, nullable=False),
        sa.Column("free_inodes", INTEGER),
        sa.Column("sealed", sa.Boolean()),
        sa.Column("strangers", sa.JSON()),
        sa.Column("stranger_count", INTEGER, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "machine_states",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("drained_at", TIME),
        sa.Column("drained_by", sa.String(100)),
        sa.Column("reason", sa.Text()),
        sa.Column("permanent", sa.Boolean()),
        sa.Column("since", TIME),
        sa.Column("seen_at", TIME),
        sa.Column("retry_at", TIME),
        sa.Column("faults", INTEGER, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "notifications",
        sa.Column("key", sa.String(500), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("about", sa.String(300), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("refusals", INTEGER, nullable=False),
        sa.Column("absences", INTEGER, nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.Column("abandoned", sa.Text()),
        sa.Column("delivered_at", TIME),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "pauses",
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("issue_number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("paused_by", sa.String(100), nullable=False),
        sa.Column("paused_at", TIME, nullable=False),
        sa.Column("label_restored_at", TIME),
        sa.PrimaryKeyConstraint("repository", "issue_number"),
    )
    op.create_table(
        "ptq_bot",
        sa.Column("id", INTEGER, autoincrement=False, nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "turns",
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
    )
    op.create_table(
        "warm_bases",
        sa.Column("machine", sa.String(100), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("slot", INTEGER, autoincrement=False, nullable=False),
        sa.Column("recipe", sa.String(64), nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("machine", "repository", "slot"),
    )
    op.create_table(
        "checks",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("runs", sa.JSON(), nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id", "number"),
    )
    op.create_table(
        "file_changes",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(6)),
        sa.Column("old_mode", sa.String(6)),
        sa.Column("content", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id", "number"),
    )
    op.create_table(
        "github_writes",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("counts_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["account"],
            ["github_accounts.account"],
        ),
        sa.PrimaryKeyConstraint("account", "number"),
    )
    op.create_table(
        "holds",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("person", sa.String(100), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("begun_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("admitted_at", TIME),
        sa.Column("trouble", sa.Text()),
        sa.Column("waits_for_report", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("checked_at", TIME),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "job_events",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("state", sa.String(20), nullable=True),
        sa.Column("what", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_job_events_job_id"), "job_events", ["job_id"])
    op.create_table(
        "job_logs",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("stage", sa.String(20), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id", "stage"),
    )
    op.create_table(
        "leases",
        sa.Column("machine", sa.String(100), nullable=False),
        sa.Column("slot", INTEGER, nullable=False),
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("leased_at", TIME, nullable=False),
        sa.Column("gpus", sa.JSON()),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("machine", "slot"),
        sa.UniqueConstraint("job_id"),
    )
    op.create_table(
        "meters",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("turns", INTEGER, nullable=False),
        sa.Column("tool_calls", INTEGER, nullable=False),
        sa.Column("retries", INTEGER, nullable=False),
        sa.Column("unknown_events", INTEGER, nullable=False),
        sa.Column("input_tokens", INTEGER, nullable=False),
        sa.Column("cached_tokens", INTEGER, nullable=False),
        sa.Column("output_tokens", INTEGER, nullable=False),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("known_usd", sa.Float(), nullable=False),
        sa.Column("cost_is_estimate", sa.Boolean(), nullable=False),
        sa.Column("is_self_reported", sa.Boolean(), nullable=False),
        sa.Column("output_bytes", INTEGER, nullable=False),
        sa.Column("run_s", sa.Float(), nullable=False),
        sa.Column("last_tool", sa.Text(), nullable=False),
        sa.Column("ending", sa.String(20)),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "model_calls",
        sa.Column("id", sa.String(20), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("turns", INTEGER, nullable=False),
        sa.Column("input_tokens", INTEGER, nullable=False),
        sa.Column("cached_tokens", INTEGER, nullable=False),
        sa.Column("output_tokens", INTEGER, nullable=False),
        sa.Column("cost_usd", sa.Float()),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id", "ended"),
    )
    op.create_index(op.f("ix_model_calls_job_id"), "model_calls", ["job_id"])
    op.create_table(
        "worklogs",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.Column("is_cut", sa.Boolean(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "tellings",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("occasion", sa.String(300), nullable=False),
        sa.Column("told_by", sa.String(100), nullable=False),
        sa.Column("told_at", TIME, nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("given_at", TIME),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id", "number"),
        sa.UniqueConstraint("job_id", "occasion"),
    )
    op.create_table(
        "pulls",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("title", sa.Text()),
        sa.Column("approver", sa.String(100), nullable=False),
        sa.Column("approver_id", INTEGER),
        sa.Column("note_url", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("base_branch", sa.Text()),
        sa.Column("commit_sha", sa.String(64)),
        sa.Column("drops_edits", sa.Boolean(), nullable=False),
        sa.Column("number", INTEGER),
        sa.Column("url", sa.Text()),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("refusals", INTEGER, nullable=False),
        sa.Column("absences", INTEGER, nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.Column("abandoned", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "replies",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("issue_number", INTEGER, nullable=False),
        sa.Column("job_id", sa.String(20)),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("posted_body", sa.Text()),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("comment_id", INTEGER),
        sa.Column("comment_url", sa.Text()),
        sa.Column("commented_at", TIME),
        sa.Column("quiet_since", TIME),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("refusals", INTEGER, nullable=False),
        sa.Column("absences", INTEGER, nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.Column("abandoned", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("changed_at", TIME),
        sa.Column("stranger", sa.String(100)),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "kind"),
    )
    op.create_index("replies_by_issue", "replies", ["repository", "issue_number"])
    op.create_index(
        "replies_not_as_wanted",
        "replies",
        ["repository", "trouble", "abandoned", "next_attempt_at"],
        sqlite_where=sa.text("(comment_id IS NULL OR posted_body <> body OR abandoned IS NOT NULL)"),
        postgresql_where=sa.text("(comment_id IS NULL OR posted_body <> body OR abandoned IS NOT NULL)"),
    )
    op.create_index(
        "replies_to_strangers",
        "replies",
        ["created_at"],
        sqlite_where=sa.text("stranger IS NOT NULL"),
        postgresql_where=sa.text("stranger IS NOT NULL"),
    )
    op.create_table(
        "outdated_comments",
        sa.Column("reply_id", sa.String(40), nullable=False),
        sa.Column("minimized", sa.Boolean(), nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("refusals", INTEGER, nullable=False),
        sa.Column("absences", INTEGER, nullable=False),
        sa.Column("next_attempt_at", TIME, nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.Column("abandoned", sa.Text()),
        sa.ForeignKeyConstraint(
            ["reply_id"],
            ["replies.id"],
        ),
        sa.PrimaryKeyConstraint("reply_id"),
    )
    op.create_index(
        "comments_to_minimize",
        "outdated_comments",
        ["next_attempt_at"],
        sqlite_where=sa.text("(NOT minimized AND abandoned IS NULL)"),
        postgresql_where=sa.text("(NOT minimized AND abandoned IS NULL)"),
    )
    op.create_table(
        "reports",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("withheld", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("pr_title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("worklog", sa.Text(), nullable=False),
        sa.Column("repro", sa.Text(), nullable=False),
        sa.Column("patch", sa.Text(), nullable=False),
        sa.Column("refusals", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
