"""What an operator must know of more than reports: each notification has a key, a kind and facts of its own."""

from __future__ import annotations

import html

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

CONCERN = "an agent reports a security concern."
"""What stood before the summary in the words that were kept."""


def upgrade() -> None:
    """Remake the table; what was told of a report stays told."""
    connection, number = op.get_bind(), sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    old = sa.Table("notifications", sa.MetaData(), autoload_with=connection)
    kept = [dict(row._mapping) for row in connection.execute(sa.select(old))]
    op.drop_table("notifications")
    notifications = op.create_table(
        "notifications",
        sa.Column("key", sa.String(500), primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("about", sa.String(300), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("attempts", number, nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    for row in kept:
        about, _, summary = row.pop("text").partition(CONCERN)
        job, repository, issue = row.pop("job_id"), row.pop("repository"), row.pop("issue_number")
        facts = {"job": job, "repository": repository, "issue": issue, "summary": html.unescape(summary.strip())}
        named = {"key": f"concern {job}", "kind": "concern", "about": about.strip().removesuffix(":"), "facts": facts}
        connection.execute(notifications.insert().values(**named, **row))
