"""What agents ask of models through the gateway."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

TIME = sa.DateTime(timezone=True)
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "model_calls",
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("ended", sa.Boolean(), primary_key=True),
        sa.Column("job_id", sa.String(20), sa.ForeignKey("jobs.id"), nullable=False, index=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("input_tokens", NUMBER, nullable=False),
        sa.Column("cached_tokens", NUMBER, nullable=False),
        sa.Column("output_tokens", NUMBER, nullable=False),
        sa.Column("cost_usd", sa.Float()),
    )
