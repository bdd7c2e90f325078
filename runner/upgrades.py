"""How a database gets the newest version of the schema: alembic's work, on a connection of ours."""

from __future__ import annotations

import secrets

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from runner.db_errors import DatabaseError, OldDatabase
from runner.schema import installation
from runner.versions import MIGRATIONS, check_version, read_version


def _configure(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    # In a path, a per cent sign would begin a reference to another option.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def migrate(connection: Connection, version: str = "head") -> None:
    """Take every step to that version, from the one that alembic's table says."""
    command.upgrade(_configure(connection), version)


def create(connection: Connection) -> None:
    """Make the tables in an empty database."""
    migrate(connection)
    connection.execute(installation.insert().values(id=1, secret=secrets.token_bytes(32)))


def upgrade(connection: Connection) -> None:
    """Bring a database of any known version to the newest. Raises `DatabaseError` for one that is none, or newer."""
    try:
        check_version(connection)
    except OldDatabase:
        if not MigrationContext.configure(connection).get_current_revision():
            command.stamp(_configure(connection), read_version(connection))
        migrate(connection)
        _check_references(connection)


def _check_references(connection: Connection) -> None:
    """SQLite does not look at foreign keys while tables are remade; PostgreSQL always does."""
    if connection.dialect.name == "sqlite" and (broken := connection.execute(text("PRAGMA foreign_key_check")).all()):
        tables = ", ".join(sorted({row[0] for row in broken}))
        raise DatabaseError(f"rows of {tables} refer to rows that are not there; nothing was changed")
