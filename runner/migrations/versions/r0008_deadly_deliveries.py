"""How often a delivery was begun and its end not seen: one that kills the service must not do so for ever."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column."""
    op.add_column("deliveries", sa.Column("begun", COUNT, nullable=False, server_default="0"))
