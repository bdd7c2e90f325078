"""Replicas: who may act, how much was written to GitHub, until when somebody was alive, and what holds a reply up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add what is needed; nothing that was there changes."""
    op.create_table(
        "claims",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("fence", sa.String(32), nullable=False, unique=True),
        sa.Column("expires_at", TIME, nullable=False),
    )
    op.create_table(
        "github_accounts",
        sa.Column("account", sa.String(100), primary_key=True),
        sa.Column("turns", NUMBER, nullable=False),
    )
    op.create_table(
        "github_writes",
        sa.Column("account", sa.String(100), sa.ForeignKey("github_accounts.account"), primary_key=True),
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("counts_at", TIME, nullable=False),
    )
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("at", TIME, nullable=False),
    )
    op.create_table(
        "enabled_repositories",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("enabled_at", TIME, nullable=False),
        sa.Column("looked_at", TIME, nullable=False),
    )
    for table in ("replies", "pulls"):
        op.add_column(table, sa.Column("trouble", sa.Text()))
