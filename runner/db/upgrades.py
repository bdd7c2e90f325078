"""How a database gets the newest version of the schema: alembic's work, on a connection of ours."""

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
    """Take every step from the version that the database has, which may be none, to the newest."""
    config = Config(attributes={"connection": connection})
    # In a path, a per cent sign would begin a reference to another option.
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    command.upgrade(config, "head")


def create(connection: Connection) -> None:
    """Make the tables in an empty database."""
    migrate(connection)
    connection.execute(installation.insert().values(id=1, secret=secrets.token_bytes(32)))


def upgrade(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Bring a database of any known version to the newest. Raises `DatabaseError` for one that is none, or newer."""
    try:
        check_version(connection, migrations)
    except OldDatabase:
        migrate(connection, migrations)
        _check_references(connection)


def _check_references(connection: Connection) -> None:
    """SQLite does not look at foreign keys while tables are remade; PostgreSQL always does."""
    if connection.dialect.name == "sqlite" and (broken := connection.execute(text("PRAGMA foreign_key_check")).all()):
        tables = ", ".join(sorted({row[0] for row in broken}))
        raise DatabaseError(f"rows of {tables} refer to rows that are not there; nothing was changed")
