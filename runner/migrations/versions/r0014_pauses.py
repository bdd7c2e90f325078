"""Whether new work begins; and what an agent says that it tries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the table, and a column that is empty for what has run."""
    op.create_table(
        "pauses",
        sa.Column("repository", sa.String(200), primary_key=True),
        sa.Column("origin", sa.String(50), primary_key=True),
        sa.Column("paused_by", sa.String(100), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=False),
    )
    with op.batch_alter_table("meters") as meters:
        meters.add_column(sa.Column("heading", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("meters") as meters:
        meters.alter_column("heading", server_default=None)
