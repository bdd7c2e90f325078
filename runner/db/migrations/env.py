"""Alembic runs this to migrate, on the connection and in the transaction that `runner.db.upgrades` gives it."""

from __future__ import annotations

from alembic import context

# SQLite can hardly alter a table: alembic creates a new table, copies the rows, and renames it.
context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
