"""What machines have: GPUs, room, bases that are there; which GPUs a job has; faults in a row; whose turn it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add three tables and two columns."""
    op.create_table(
        "turns",
        sa.Column("kind", sa.String(20), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("at", TIME, nullable=False),
    )
    op.add_column("leases", sa.Column("gpus", sa.JSON()))
    op.add_column("machine_states", sa.Column("faults", NUMBER, nullable=False, server_default="0"))
    op.create_table(
        "machine_sightings",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.Column("gpu_trouble", sa.Text()),
        sa.Column("free_bytes", NUMBER, nullable=False),
        sa.Column("total_bytes", NUMBER, nullable=False),
        sa.Column("free_inodes", NUMBER),
        sa.Column("strangers", sa.JSON()),
        sa.Column("stranger_count", NUMBER, nullable=False, server_default="0"),
    )
    op.create_table(
        "warm_bases",
        sa.Column("machine", sa.String(100), primary_key=True),
        sa.Column("repository", sa.String(200), primary_key=True),
        sa.Column("slot", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("recipe", sa.String(64), nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
    )
