"""Pull requests of jobs without an issue: the account of the note's author, and the branch that they go to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("pulls") as pulls:
        pulls.add_column(sa.Column("approver_id", INTEGER))
        pulls.add_column(sa.Column("base_branch", sa.Text()))
