"""What the service itself sees of a repro; and a state of jobs for that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table, and let a job that is being verified be the one active job of its issue."""
    op.create_table(
        "checks",
        sa.Column("job_id", sa.String(20), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("runs", sa.JSON(), nullable=False),
        sa.Column("trouble", sa.Text()),
    )
    active = sa.text("state IN ('collecting', 'preparing', 'queued', 'running', 'verifying')")
    op.drop_index("one_active_job_per_case", table_name="jobs")
    op.create_index(
        "one_active_job_per_case",
        "jobs",
        ["repository", "issue_number"],
        unique=True,
        sqlite_where=active,
        postgresql_where=active,
    )
