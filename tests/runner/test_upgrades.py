"""Databases of every earlier version, with rows in every table, become today's; and new ones are today's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    DateTime,
    Float,
    Inspector,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import TypeEngine

from runner import store, upgrades, versions
from runner.db import Database
from runner.db_errors import DatabaseError, OldDatabase
from runner.schema import metadata
from tests.support.jobs import make_job, open_database

pytestmark = pytest.mark.slow

SCHEMAS = Path(__file__).with_name("schemas")
EARLIER = versions.list_versions()[:-1]
BEFORE_ALEMBIC = ("1", "2")
"""Versions whose databases were made without migrations, and say their version in `ptq_bot`."""

Rows = dict[str, list[dict[str, Any]]]
NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
JOB = "0123456789"
SECRET = b"\0\xff"


def find_differences(connection: Connection) -> str:
    """What a migration would still have to do, as alembic would write it; empty when nothing is left."""
    context = MigrationContext.configure(connection, opts={"target_metadata": metadata})
    if not compare_metadata(context, metadata):
        return ""
    operations = produce_migrations(context, metadata).upgrade_ops
    return render_python_code(operations) if operations else "?"


def fill(connection: Connection) -> Rows:
    """Put a row into every table, and return them all."""
    tables = reflect(connection)
    for table in tables.values():
        if table.name != "alembic_version":
            connection.execute(table.insert().values(make_row(table, connection.dialect.name)))
    return read(connection)


def make_row(table: Table, dialect: str) -> dict[str, Any]:
    """A value in every column, NULL in none; whatever names a job names the one job."""
    row = {column.name: make_value(column.type, dialect) for column in table.columns}
    if table.name == "jobs":
        row |= {"state": "queued"} | {name: "all" for name in ("posts",) if name in table.columns}
    referred = {"jobs": "id", "github_accounts": "account"}.get(table.name)
    return row | {column.name: JOB for column in table.columns if column.foreign_keys or column.name == referred}


def make_value(kind: TypeEngine[Any], dialect: str) -> Any:
    if isinstance(kind, DateTime):
        return NOON if dialect == "postgresql" else NOON.replace(tzinfo=None)
    samples = ((Boolean, True), (Integer, 1), (Float, 0.5), (JSON, ["a"]), (String, "x"), (LargeBinary, SECRET))
    return next(value for base, value in samples if isinstance(kind, base))


def reflect(connection: Connection) -> dict[str, Table]:
    found = MetaData()
    found.reflect(connection)
    return {table.name: table for table in found.sorted_tables}


def read(connection: Connection) -> Rows:
    return {
        name: [dict(row._mapping) for row in connection.execute(select(table))]
        for name, table in reflect(connection).items()
        if name not in ("alembic_version", "ptq_bot")
    }


def assert_kept(before: Rows, after: Rows) -> None:
    for table, rows in before.items():
        assert len(rows) == 1, table
        if table == "notifications" and "key" not in rows[0]:
            (told,) = after[table]
            facts = {"job": JOB, "repository": "x", "issue": 1, "summary": ""}
            assert (told["key"], told["about"], told["facts"]) == (f"concern {JOB}", "x", facts)
            continue
        (now,) = after[table]
        assert rows == [{name: value for name, value in now.items() if name in rows[0]}], table


async def make_earlier(url: str, make: Callable[[Connection], None]) -> Rows:
    """A filled database of an earlier version."""
    database = Database(url)
    async with database.write() as connection:
        await connection.run_sync(make)
        rows = await connection.run_sync(fill)
    await database.close()
    return rows


async def assert_upgraded(url: str, before: Rows, version: str) -> None:
    database = Database(url)
    with pytest.raises(OldDatabase, match=f"it has schema {version}, and this version of ptq-bot needs "):
        await database.open()
    assert await database.upgrade() == (version, versions.list_versions()[-1])
    await database.open()
    assert database.secret == SECRET
    async with database.write() as connection:
        assert await connection.run_sync(find_differences) == ""
        assert_kept(before, await connection.run_sync(read))
        job = await store.fetch_job(connection, JOB)
        assert job is not None
        same_issue = make_job(id="aaaaaaaaaa", repository=job.repository, issue_number=job.issue_number)
        assert not await store.insert_job(connection, same_issue), "an issue has one active job, as ever"
    with pytest.raises(IntegrityError):  # Foreign keys are looked at again.
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO job_logs VALUES ('nobody', 'agent', '')"))
    assert await database.upgrade() == (versions.list_versions()[-1],) * 2
    await database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'ptq.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


async def test_a_new_database_has_exactly_the_tables_of_the_schema(empty_url: str) -> None:
    database = Database(empty_url)
    await database.open()
    async with database.write() as connection:
        assert await connection.run_sync(find_differences) == "", "write a migration that does this"
    assert len(database.secret) == 32
    await database.close()


async def test_a_column_without_a_migration_is_found(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await connection.execute(text("ALTER TABLE cases DROP COLUMN pull_number"))
        assert "add_column('cases'" in await connection.run_sync(find_differences)


@pytest.mark.parametrize("version", EARLIER)
async def test_every_earlier_version_is_upgraded_and_keeps_its_rows(empty_url: str, version: str) -> None:
    before = await make_earlier(empty_url, lambda connection: upgrades.migrate(connection, version))
    await assert_upgraded(empty_url, before, version)


@pytest.mark.parametrize("version", BEFORE_ALEMBIC)
async def test_a_database_from_before_there_were_migrations_is_recognised(tmp_path: Path, version: str) -> None:
    with sqlite3.connect(tmp_path / "ptq.db") as connection:
        connection.executescript((SCHEMAS / f"{version}.sql").read_text())
    url = f"sqlite+aiosqlite:///{tmp_path / 'ptq.db'}"

    def say_version(connection: Connection) -> None:
        connection.execute(text(f"UPDATE ptq_bot SET schema_version = {version}"))

    before = await make_earlier(url, lambda _: None)
    database = Database(url)
    async with database.write() as writer:
        await writer.run_sync(say_version)
    await database.close()
    await assert_upgraded(url, before, f"000{version}")


@pytest.mark.parametrize("version", BEFORE_ALEMBIC)
def test_the_first_migrations_make_what_was_made_without_them(tmp_path: Path, version: str) -> None:
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.executescript((SCHEMAS / f"{version}.sql").read_text())
    old, new = (create_engine(f"sqlite:///{tmp_path / name}") for name in ("old.db", "new.db"))
    with new.begin() as writer:
        upgrades.migrate(writer, f"000{version}")
    assert describe(inspect(old)) == describe(inspect(new))
    old.dispose()
    new.dispose()


def describe(found: Inspector) -> dict[str, Any]:
    tables = [table for table in found.get_table_names() if table != "alembic_version"]
    return {table: describe_table(found, table) for table in tables}


def describe_table(found: Inspector, table: str) -> dict[str, Any]:
    references = found.get_foreign_keys(table)
    return {
        "columns": {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(table)},
        "key": found.get_pk_constraint(table)["constrained_columns"],
        "references": sorted((key["constrained_columns"], key["referred_table"]) for key in references),
        "unique": sorted(key["column_names"] for key in found.get_unique_constraints(table)),
        "indexes": sorted((key["name"], key["column_names"], key["unique"]) for key in found.get_indexes(table)),
    }


async def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'ptq.db'}"
    await make_earlier(url, lambda connection: upgrades.migrate(connection, "0001"))
    with sqlite3.connect(tmp_path / "ptq.db") as connection:  # It looks at no foreign keys.
        connection.execute("UPDATE job_events SET job_id = 'nobody'")
    database = Database(url)
    for _ in range(2):
        with pytest.raises(DatabaseError, match="rows of job_events refer to rows that are not there"):
            await database.upgrade()
    with pytest.raises(OldDatabase, match="0001"):
        await database.open()
    await database.close()


async def test_a_database_of_a_newer_version_is_left_alone(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database = Database(database_url)
    for attempt in (database.open, database.open_existing, database.upgrade):
        with pytest.raises(DatabaseError, match=r"it has schema 9999, .* too old for it"):
            await attempt()
    await database.close()


async def test_the_database_of_another_program_is_left_alone(empty_url: str) -> None:
    database = Database(empty_url)
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE theirs (id INTEGER)"))
    for attempt in (database.open, database.open_existing, database.upgrade):
        with pytest.raises(DatabaseError, match="not one of ptq-bot: it holds other tables"):
            await attempt()
    async with database.read() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).get_table_names()) == ["theirs"]
    await database.close()
