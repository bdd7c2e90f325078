"""How machines stand, and which lost job another one replaces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the table and the column."""
    op.create_table(
        "machine_states",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("drained_at", TIME),
        sa.Column("drained_by", sa.String(100)),
        sa.Column("reason", sa.Text()),
        sa.Column("permanent", sa.Boolean()),
        sa.Column("since", TIME),
        sa.Column("seen_at", TIME),
        sa.Column("retry_at", TIME),
    )
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("replaces", sa.String(20)))
        jobs.create_foreign_key("jobs_replaces_fkey", "jobs", ["replaces"], ["id"])
        jobs.create_unique_constraint("jobs_replaces_key", ["replaces"])
