"""What a run may take and took, what a later attempt resumes, why an agent was ended, and what the operator is told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns and the tables."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("model", sa.Text()))
        jobs.add_column(sa.Column("skills", sa.JSON(), nullable=False, server_default="[]"))
        jobs.add_column(sa.Column("follows", sa.String(20)))
        jobs.add_column(sa.Column("stopped_as", sa.String(20)))
        jobs.add_column(sa.Column("stopped_at", sa.DateTime(timezone=True)))
        jobs.add_column(sa.Column("stop_reason", sa.Text()))
        jobs.create_foreign_key("jobs_follows_fkey", "jobs", ["follows"], ["id"])
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("skills", server_default=None)
    with op.batch_alter_table("replies") as replies:
        replies.add_column(sa.Column("changed_at", sa.DateTime(timezone=True)))
    _create_meters()
    _create_sessions()
    _create_notifications()


def _create_meters() -> None:
    op.create_table(
        "meters",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("tool_calls", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("unknown_events", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("cost_is_estimate", sa.Boolean(), nullable=False),
        sa.Column("output_bytes", sa.Integer(), nullable=False),
        sa.Column("run_s", sa.Float(), nullable=False),
        sa.Column("last_tool", sa.Text(), nullable=False),
        sa.Column("withheld", sa.Boolean(), nullable=False),
        sa.Column("ending", sa.String(20)),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id"),
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id"),
    )


def _create_notifications() -> None:
    op.create_table(
        "notifications",
        sa.Column("job_id", sa.String(20), nullable=False),
        sa.Column("repository", sa.String(200), nullable=False),
        sa.Column("issue_number", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id"),
    )
