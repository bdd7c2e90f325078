"""An index by which the next delivery of each lane is found without reading a body."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Replace the index."""
    op.drop_index("pending_deliveries", table_name="deliveries")
    op.create_index("pending_deliveries", "deliveries", ["state", "lane", "sequence"])
