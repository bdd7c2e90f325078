"""Labels by which issues show where their cases stand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the table: no such label stands yet."""
    op.create_table(
        "case_labels",
        sa.Column("key", sa.String(300), primary_key=True),
        sa.Column("standing", sa.String(50)),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("refusals", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trouble", sa.Text()),
        sa.Column("abandoned", sa.Text()),
    )
