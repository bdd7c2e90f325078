"""Upgrades a database to the newest version of the schema, with alembic, on a given connection."""

from __future__ import annotations

import secrets
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from runner.db.errors import DatabaseError, OldDatabase
from runner.db.schema import installation
from runner.db.versions import MIGRATIONS, check_version


def migrate(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Run all migrations from the database's version, which may be none, to the newest."""
    config = Config(attributes={"connection": connection})
    # In a path, a per cent sign would begin a reference to another option.
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    command.upgrade(config, "head")


def create(connection: Connection) -> None:
    """Create the tables in an empty database."""
    migrate(connection)
    connection.execute(installation.insert().values(id=1, secret=secrets.token_bytes(32)))


def upgrade(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Upgrade a database from any known version to the newest. Raises `DatabaseError` for an unknown or newer one."""
    try:
        check_version(connection, migrations)
    except OldDatabase:
        migrate(connection, migrations)
        _check_references(connection)


def _check_references(connection: Connection) -> None:
    """Raise `DatabaseError` if rows refer to missing rows.

    SQLite does not check foreign keys while tables are recreated. PostgreSQL always does.
    """
    if connection.dialect.name == "sqlite" and (broken := connection.execute(text("PRAGMA foreign_key_check")).all()):
        tables = ", ".join(sorted({row[0] for row in broken}))
        raise DatabaseError(f"rows of {tables} refer to missing rows; nothing was changed")
