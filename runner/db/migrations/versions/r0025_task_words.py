"""What a person wrote to the agent of a task, which further attempts need again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("task", sa.Text(), nullable=False, server_default=""))
