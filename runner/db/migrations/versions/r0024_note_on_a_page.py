"""The account of a person who wrote a note on the page of a job without an issue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("pulls") as pulls:
        pulls.add_column(sa.Column("approver_id", INTEGER))
