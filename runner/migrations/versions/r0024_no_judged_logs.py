"""No run is hidden because of words in its log any more: who may read logs is asked instead."""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Drop the mark."""
    with op.batch_alter_table("meters") as meters:
        meters.drop_column("withheld")
