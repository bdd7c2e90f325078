"""Which version of the schema a database has, and how it gets the newest: alembic's work, on a connection of ours.

Alembic's own table says the version. The first two versions had none; they are known by their table `ptq_bot`.
"""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from runner.db_errors import DatabaseError, OldDatabase
from runner.schema import installation

EMPTY = "empty"
"""The version of a database without tables."""


def _configure(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    # In a path, a per cent sign would begin a reference to another option.
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    return config


@cache
def list_versions() -> tuple[str, ...]:
    """Every version that this program knows, oldest first."""
    revisions = ScriptDirectory.from_config(_configure()).walk_revisions()
    return tuple(reversed([script.revision for script in revisions]))


def read_version(connection: Connection) -> str:
    """The version of a database, which may be `EMPTY`. Raises `DatabaseError` where it is somebody else's."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return EMPTY
    if installation.name not in tables:
        raise DatabaseError("it is not one of ptq-bot: it holds other tables")
    if version := MigrationContext.configure(connection).get_current_revision():
        return version
    found = connection.execute(text("SELECT schema_version FROM ptq_bot")).scalar_one()
    return f"{found:04}"


def check_version(connection: Connection) -> None:
    """Raise `OldDatabase`, or another `DatabaseError`, unless the database has the newest version."""
    version, known = read_version(connection), list_versions()
    if version == EMPTY:
        raise DatabaseError("it is not one of ptq-bot: it is empty")
    if version not in known:
        raise DatabaseError(
            f"it has schema {version}, and this version of ptq-bot knows no newer one than {known[-1]}: "
            "it is too old for it, install the newer one"
        )
    if version != known[-1]:
        raise OldDatabase(f"it has schema {version}, and this version of ptq-bot needs {known[-1]}")


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
