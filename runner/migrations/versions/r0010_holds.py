"""People's holds on environments of jobs, and which job adopts the environment of which other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the table and the column."""
    op.create_table(
        "holds",
        sa.Column("job_id", sa.String(20), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("person", sa.String(100), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("begun_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("admitted_at", TIME),
        sa.Column("trouble", sa.Text()),
    )
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("adopts", sa.String(20)))
        jobs.create_foreign_key("jobs_adopts_fkey", "jobs", ["adopts"], ["id"])
        jobs.create_unique_constraint("jobs_adopts_key", ["adopts"])
