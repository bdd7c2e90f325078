"""The paths in which rebases met conflicts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("conflicts", sa.JSON()))
