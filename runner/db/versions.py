"""Reads the version of a database's schema without alembic, which only an upgrade needs.

The version is in alembic's own table. Databases from before the first release are refused, because none was ever
installed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from runner.db.errors import DatabaseError, ForeignDatabase, NewDatabase, NoDatabase, OldDatabase
from runner.db.schema import installation

EMPTY = "empty"
"""The version of a database without tables."""

BEFORE_RELEASE = "0000"
"""The version of a database from before the first migration."""

MIGRATIONS = Path(__file__).with_name("migrations")
"""The folder of alembic's migrations. Each file's name begins with `r` and its version."""

RECORD = "alembic_version"
"""Alembic's table."""


@cache
def list_versions(migrations: Path = MIGRATIONS) -> tuple[str, ...]:
    """All versions that this program knows, oldest first. The oldest is the version of the first release."""
    return tuple(sorted(step.name[1:].partition("_")[0] for step in (migrations / "versions").glob("r*.py")))


def read_version(connection: Connection) -> str:
    """The version of a database, which may be `EMPTY`. Raises `DatabaseError` if it is not ours."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return EMPTY
    if installation.name not in tables:
        raise ForeignDatabase("it is not a ptq-bot database: it has other tables")
    version = connection.execute(text(f"SELECT version_num FROM {RECORD}")).scalar() if RECORD in tables else None  # noqa: S608
    return str(version or BEFORE_RELEASE)


def check_version(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Raise `OldDatabase`, or another `DatabaseError`, unless the database has the newest version."""
    version, known = read_version(connection), list_versions(migrations)
    if version == EMPTY:
        raise NoDatabase("it is not a ptq-bot database: it is empty")
    if version < known[0]:
        raise DatabaseError(
            f"it has schema {version}, from before the first release, and cannot be upgraded: "
            "move it away; ptq-bot creates a new one when it starts"
        )
    if version not in known:
        raise NewDatabase(
            f"it has schema {version}, but this version of ptq-bot only knows schemas up to {known[-1]}: "
            "install a newer version"
        )
    if version != known[-1]:
        raise OldDatabase(f"it has schema {version}, but this version of ptq-bot needs {known[-1]}")
