"""The title that an approver gives a pull request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("pulls") as pulls:
        pulls.add_column(sa.Column("title", sa.Text()))
