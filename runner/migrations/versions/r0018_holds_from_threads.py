"""Whether a hold waits for its job's report; and whether a machine can seal jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the columns: no hold that is there waits, and no machine was asked yet."""
    with op.batch_alter_table("holds") as holds:
        holds.add_column(sa.Column("waits_for_report", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("machine_sightings") as sightings:
        sightings.add_column(sa.Column("sealed", sa.Boolean()))
