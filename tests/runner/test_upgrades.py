"""New databases have the tables of the schema; those of an earlier version are upgraded, and no others are touched."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from runner.db import versions
from runner.db.database import Database
from runner.db.errors import DatabaseError, OldDatabase
from runner.db.schema import metadata
from runner.rows import job_rows
from tests.support.jobs import make_job, open_database

pytestmark = pytest.mark.slow

NEWEST = versions.list_versions()[-1]
STEP = '''"""A step that remakes the table of jobs where SQLite has to."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{newest}"


def upgrade():
    remakes = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("jobs", recreate=remakes) as jobs:
        jobs.add_column(sa.Column("colour", sa.String(20)))
'''


def find_differences(connection: Connection) -> str:
    """What a migration would still have to do, as alembic would write it; empty when nothing is left."""
    context = MigrationContext.configure(connection, opts={"target_metadata": metadata})
    if not compare_metadata(context, metadata):
        return ""
    operations = produce_migrations(context, metadata).upgrade_ops
    return render_python_code(operations) if operations else "?"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'ptq.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The migrations of a version after this one."""
    folder = tmp_path / "100 % migrations"
    shutil.copytree(versions.MIGRATIONS, folder)
    (folder / "versions/r9999_later.py").write_text(STEP.format(newest=NEWEST))
    return folder


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


async def test_a_database_of_an_earlier_version_is_upgraded_and_keeps_its_rows(empty_url: str, later: Path) -> None:
    database = Database(empty_url)
    await database.open()
    secret, job = database.secret, make_job()
    async with database.write() as connection:
        assert await job_rows.insert_job(connection, job)
        await connection.execute(text("INSERT INTO job_logs VALUES (:job, 'agent', '')"), {"job": job.id})
    await database.close()
    database = Database(empty_url, later)
    with pytest.raises(OldDatabase, match=f"it has schema {NEWEST}, but this version of ptq-bot needs 9999"):
        await database.open()
    assert await database.upgrade() == (NEWEST, "9999")
    await database.open()
    assert database.secret == secret
    async with database.write() as connection:
        assert (await connection.execute(text("SELECT id, colour FROM jobs"))).one() == (job.id, None)
        assert await job_rows.fetch_job(connection, job.id) == job
        same_issue = make_job(id="aaaaaaaaaa", repository=job.repository, thread=job.thread)
        assert not await job_rows.insert_job(connection, same_issue), "an issue has one active job, as before"
    with pytest.raises(IntegrityError):  # Foreign keys are looked at again.
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO job_logs VALUES ('nobody', 'agent', '')"))
    assert await database.upgrade() == ("9999", "9999")
    await database.close()


async def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path, later: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await connection.execute(text(f"INSERT INTO job_logs VALUES ('{make_job().id}', 'agent', '')"))
        url = database.url.render_as_string(hide_password=False)
    with sqlite3.connect(tmp_path / "ptq.db") as plain:  # It looks at no foreign keys.
        plain.execute("UPDATE job_logs SET job_id = 'nobody'")
    database = Database(url, later)
    for _ in range(2):
        with pytest.raises(DatabaseError, match="rows of job_logs refer to missing rows"):
            await database.upgrade()
    with pytest.raises(OldDatabase, match=NEWEST):
        await database.open()
    await database.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", r"it has schema 9999, .* install a newer version"),
        (
            "UPDATE alembic_version SET version_num = '0022'",
            r"schema 0022, from before the first release.* move it away",
        ),
        ("DROP TABLE alembic_version", r"schema 0000, from before the first release.* move it away"),
    ],
)
async def test_a_database_of_an_unknown_version_is_left_alone(database_url: str, change: str, words: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        await connection.execute(text(change))
    database = Database(database_url)
    for attempt in (database.open, database.open_existing, database.upgrade):
        with pytest.raises(DatabaseError, match=words):
            await attempt()
    await database.close()


async def test_the_database_of_another_program_is_left_alone(empty_url: str) -> None:
    database = Database(empty_url)
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE theirs (id INTEGER)"))
    for attempt in (database.open, database.open_existing, database.upgrade):
        with pytest.raises(DatabaseError, match="not a ptq-bot database: it has other tables"):
            await attempt()
    async with database.read() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).get_table_names()) == ["theirs"]
    await database.close()
