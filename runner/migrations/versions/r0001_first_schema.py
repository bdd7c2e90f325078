"""The first schema: deliveries, cases, jobs with all that comes out of them, replies and pull requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    _create_inbox()
    _create_cases()
    _create_jobs()
    _create_what_belongs_to_jobs()
    _create_results()
    _create_replies()
    _create_pulls()
    _create_installation()


def _create_inbox() -> None:
    op.create_table(
        "deliveries",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("event", sa.String(100), nullable=False),
        sa.Column("lane", sa.String(300), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("pending_deliveries", "deliveries", ["state", "sequence"])


def _create_cases() -> None:
    op.create_table(
        "cases",
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("issue_number", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("active_job_id", sa.String(20)),
        sa.Column("standing_job_id", sa.String(20)),
        sa.Column("pull_number", sa.Integer()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key"),
        sa.UniqueConstraint("repository", "issue_number"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(20), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.Column("issue_number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("preset", sa.String(50), nullable=False),
        sa.Column("may_change", sa.Boolean(), nullable=False),
        sa.Column("agent", sa.String(100), nullable=False),
        sa.Column("requested_by", sa.String(100), nullable=False),
        sa.Column("clone_url", sa.Text(), nullable=False),
        sa.Column("base_branch", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("machine", sa.String(100)),
        sa.Column("base_commit", sa.String(64)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True)),
        sa.Column("cancelled_by", sa.String(100)),
        sa.Column("exit_status", sa.Integer()),
        sa.Column("trouble", sa.Text()),
        sa.Column("failure", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_case", "jobs", ["repository", "issue_number"])
    active = sa.text("state IN ('collecting', 'preparing', 'queued', 'running')")
    op.create_index(
        "one_active_job_per_case",
        "jobs",
        ["repository", "issue_number"],
        unique=True,
        sqlite_where=active,
        postgresql_where=active,
    )


def _create_what_belongs_to_jobs() -> None:
    op.create_table(
        "job_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_job_events_job_id"), "job_events", ["job_id"])
    op.create_table(
        "leases",
        sa.Column("machine", sa.String(100), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("leased_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("machine", "slot"),
        sa.UniqueConstraint("job_id"),
    )


def _create_results() -> None:
    op.create_table(
        "reports",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("worklog", sa.Text(), nullable=False),
        sa.Column("pr_title", sa.Text(), nullable=False),
        sa.Column("repro", sa.Text(), nullable=False),
        sa.Column("patch", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("refusals", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "file_changes",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(6)),
        sa.Column("old_mode", sa.String(6)),
        sa.Column("content", sa.LargeBinary()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "path"),
    )
    op.create_table(
        "job_logs",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("stage", sa.String(20), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "stage"),
    )


def _create_replies() -> None:
    op.create_table(
        "replies",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("issue_number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(20)),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("posted_body", sa.Text()),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("comment_id", sa.Integer()),
        sa.Column("comment_url", sa.Text()),
        sa.Column("commented_at", sa.DateTime(timezone=True)),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("abandoned", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "kind"),
    )
    op.create_index("replies_by_issue", "replies", ["repository", "issue_number"])


def _create_pulls() -> None:
    op.create_table(
        "pulls",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("approver", sa.String(100), nullable=False),
        sa.Column("note_url", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("commit_sha", sa.String(64)),
        sa.Column("number", sa.Integer()),
        sa.Column("url", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("abandoned", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id"),
    )


def _create_installation() -> None:
    op.create_table(
        "ptq_bot",
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("schema_version"),
    )
