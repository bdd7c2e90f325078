"""Lists of jobs are read out of an index of their own."""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the index."""
    found_by = ("repository", "private", "issue_number", "state", "preset", "agent", "machine", "requested_by", "name")
    op.create_index("jobs_by_age", "jobs", ["created_at", "id", *found_by])
