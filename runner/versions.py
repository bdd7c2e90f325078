"""Which version of the schema a database has, told without alembic, which only an upgrade needs.

Alembic's own table says the version. The first two versions had none; they are known by their table `ptq_bot`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from runner.db_errors import DatabaseError, NoDatabase, OldDatabase
from runner.schema import installation

EMPTY = "empty"
"""The version of a database without tables."""

MIGRATIONS = Path(__file__).with_name("migrations")
"""What alembic finds the steps in: the name of each file begins with its version, after an r."""

RECORD = "alembic_version"
"""Alembic's table."""


@cache
def list_versions() -> tuple[str, ...]:
    """Every version that this program knows, oldest first."""
    return tuple(sorted(step.name[1:].partition("_")[0] for step in (MIGRATIONS / "versions").glob("r*.py")))


def read_version(connection: Connection) -> str:
    """The version of a database, which may be `EMPTY`. Raises `DatabaseError` where it is somebody else's."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return EMPTY
    if installation.name not in tables:
        raise DatabaseError("it is not one of ptq-bot: it holds other tables")
    if RECORD in tables and (version := connection.execute(text(f"SELECT version_num FROM {RECORD}")).scalar()):  # noqa: S608
        return str(version)
    found = connection.execute(text("SELECT schema_version FROM ptq_bot")).scalar_one()
    return f"{found:04}"


def check_version(connection: Connection) -> None:
    """Raise `OldDatabase`, or another `DatabaseError`, unless the database has the newest version."""
    version, known = read_version(connection), list_versions()
    if version == EMPTY:
        raise NoDatabase("it is not one of ptq-bot: it is empty")
    if version not in known:
        raise DatabaseError(
            f"it has schema {version}, and this version of ptq-bot knows no newer one than {known[-1]}: "
            "it is too old for it, install the newer one"
        )
    if version != known[-1]:
        raise OldDatabase(f"it has schema {version}, and this version of ptq-bot needs {known[-1]}")
