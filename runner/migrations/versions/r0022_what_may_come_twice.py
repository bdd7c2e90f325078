"""What tells a copy from the original: a job's request by GitHub's clock, a delivery's content, a comment's silence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the columns. Jobs count as requested when they were made, which is never before they were."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("requested_at", sa.DateTime(timezone=True)))
    op.execute("UPDATE jobs SET requested_at = created_at")
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("requested_at", existing_type=sa.DateTime(timezone=True), nullable=False)
    with op.batch_alter_table("deliveries") as deliveries:
        deliveries.add_column(sa.Column("digest", sa.String(64)))
    op.create_index("deliveries_by_digest", "deliveries", ["digest"])
    with op.batch_alter_table("replies") as replies:
        replies.add_column(sa.Column("quiet_since", sa.DateTime(timezone=True)))
