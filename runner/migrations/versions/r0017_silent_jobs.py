"""What the thread of its issue gets of a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the column: until now every job told all."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("posts", sa.String(20), nullable=False, server_default="all"))
