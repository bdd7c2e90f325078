"""Whole numbers of 64 bits on PostgreSQL too (SQLite's are), and no second place that says the schema's version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBERS = {
    "deliveries": ("sequence", "attempts"),
    "cases": ("issue_number", "pull_number"),
    "jobs": ("issue_number", "attempt", "exit_status"),
    "job_events": ("id",),
    "leases": ("slot",),
    "meters": (
        *("turns", "tool_calls", "retries", "unknown_events"),
        *("input_tokens", "cached_tokens", "output_tokens", "output_bytes"),
    ),
    "replies": ("issue_number", "comment_id", "attempts", "refusals"),
    "pulls": ("number", "attempts", "refusals"),
    "notifications": ("issue_number", "attempts"),
}
COUNTED = (("deliveries", "sequence"), ("job_events", "id"))


def upgrade() -> None:
    """Widen the numbers; keep nothing but the secret of what `ptq_bot` holds."""
    if op.get_bind().dialect.name == "postgresql":
        for table, columns in NUMBERS.items():
            for column in columns:
                op.alter_column(table, column, type_=sa.BigInteger())
        for table, column in COUNTED:
            op.execute(f"ALTER SEQUENCE {table}_{column}_seq AS bigint")
    _keep_the_secret()


def _keep_the_secret() -> None:
    connection = op.get_bind()
    secret = connection.execute(sa.text("SELECT secret FROM ptq_bot")).scalar()
    op.drop_table("ptq_bot")
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    installation = op.create_table(
        "ptq_bot",
        sa.Column("id", number, sa.CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
    )
    if secret is not None:  # A database that is being made has none yet.
        connection.execute(installation.insert().values(id=1, secret=secret))
