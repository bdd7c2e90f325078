"""Holds that people asked for in a comment say when GitHub was last asked whether they may have them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Add the time."""
    with op.batch_alter_table("holds") as holds:
        holds.add_column(sa.Column("checked_at", sa.DateTime(timezone=True)))
