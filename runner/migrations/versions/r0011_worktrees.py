"""Jobs in which a person works and no agent, worktrees' names, and machines that jobs are bound to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the columns. Until now, whoever adopted an environment did so for a person."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("by_hand", sa.Boolean(), nullable=False, server_default=sa.false()))
        jobs.add_column(sa.Column("name", sa.String(50)))
        jobs.add_column(sa.Column("pinned_to", sa.String(100)))
    table = sa.table("jobs", sa.column("adopts"), sa.column("by_hand"))
    op.execute(sa.update(table).where(table.c.adopts.is_not(None)).values(by_hand=sa.true()))
