"""An index of the deliveries that wait, and of no others: it stays small, and grows only at its end."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Replace the index."""
    waits = text("state = 'pending'")
    op.drop_index("pending_deliveries", table_name="deliveries")
    op.create_index(
        "pending_deliveries", "deliveries", ["sequence", "lane"], sqlite_where=waits, postgresql_where=waits
    )
