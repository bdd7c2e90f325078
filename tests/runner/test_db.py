"""What both databases promise alike, and what happens where one cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from handlers.cases.casebook import Reply
from runner.db.database import Database
from runner.db.errors import DatabaseError
from runner.db.schema import cases, job_events, jobs, replies
from runner.db.sql import db_clock, insert_new, upsert
from runner.db.sqlite import MAX_REST
from runner.rows import job_rows
from tests.support.jobs import NOON, make_job, open_database
from tests.support.postgres import Server

MEGABYTES = 2 * MAX_REST // 1_000_000
"""More than SQLite's log may keep."""

NASTY = "a\0b\ud800c"


async def test_the_clock_of_the_database_can_be_stored_and_compared(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await connection.execute(insert(job_events).values(job_id=make_job().id, at=db_clock(), what="now"))
        written = job_events.c.what == "now"
        (at,) = (await connection.execute(select(job_events.c.at).where(written))).scalars()
        assert abs(at - datetime.now(UTC)) < timedelta(seconds=10)
        for earlier, later in ((db_clock(-5), job_events.c.at), (job_events.c.at, db_clock(5.5))):
            found = select(func.count()).where(written, earlier < later)
            assert (await connection.execute(found)).scalar_one() == 1
            assert (await connection.execute(select(func.count()).where(written, earlier > later))).scalar_one() == 0


async def test_the_clock_of_the_database_is_finer_than_a_second(database_url: str) -> None:
    async with open_database(database_url) as database, database.read() as connection:
        seen = set()
        for _ in range(5):
            seen.add((await connection.execute(select(db_clock()))).scalar_one())
            await asyncio.sleep(0.01)
        now, soon = (await connection.execute(select(db_clock(), db_clock(1.25)))).one()
    assert len(seen) == 5
    assert abs(soon - now - timedelta(seconds=1.25)) < timedelta(seconds=0.2)


async def test_a_time_of_ours_and_one_of_the_database_are_the_same_text_in_sqlite(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await connection.execute(insert(job_events).values(job_id=make_job().id, at=db_clock(), what="now"))
        texts = (await connection.exec_driver_sql("SELECT at FROM job_events ORDER BY id")).scalars().all()
    ours, theirs = ("".join("0" if char.isdigit() else char for char in written) for written in texts)
    assert ours == theirs


async def test_a_row_that_is_there_already_is_left_or_replaced_but_for_what_is_kept(database_url: str) -> None:
    case = {"repository": "octo/widgets", "issue_number": 7, "title": "old", "state": "idle"}
    row = {"key": "octo/widgets#7", **case, "created_at": NOON, "changed_at": NOON}
    later = NOON + timedelta(seconds=1)
    async with open_database(database_url) as database, database.write() as connection:
        assert await insert_new(connection, cases, row)
        assert not await insert_new(connection, cases, {**row, "title": "new"})
        assert not await insert_new(connection, cases, {**row, "key": "another"}), "the issue is unique as well"
        assert (await connection.execute(select(cases.c.title))).scalar_one() == "old"
        changed = {**row, "title": "new", "created_at": later, "changed_at": later}
        assert not await upsert(connection, cases, changed, where=cases.c.changed_at < NOON)
        assert (await connection.execute(select(cases.c.title))).scalar_one() == "old"
        assert await upsert(connection, cases, changed, keep=["created_at"], where=cases.c.changed_at < db_clock())
        found = (await connection.execute(select(cases))).one()
    assert (found.title, found.created_at, found.changed_at) == ("new", NOON, later)


async def test_text_that_a_database_would_refuse_is_stored_without_what_it_refuses(database_url: str) -> None:
    reply = Reply(
        "r", "report", "octo/widgets", 7, NASTY, NOON, next_attempt_at=NOON, comment_url=NASTY, abandoned=NASTY
    )
    case = Case(NASTY, NASTY, 7, NASTY, CaseState.IDLE, NOON, NOON)
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job(prompt=NASTY, requested_by=NASTY, skills=(NASTY,)))
        await casebook.insert_reply(connection, reply)
        await casebook.save_case(connection, case)
        await casebook.save_case(connection, case)
        job = await job_rows.fetch_job(connection, make_job().id)
        assert job
        assert (job.prompt, job.requested_by) == ("a\ufffdb?c",) * 2
        assert (await connection.execute(select(cases.c.title))).scalar_one() == "a\ufffdb?c"
        assert await casebook.fetch_case(connection, NASTY), "what is looked for is changed in the same way"


async def test_numbers_are_as_large_as_those_of_github(database_url: str) -> None:
    reply = Reply("r", "reply", "octo/widgets", 7, "", NOON, next_attempt_at=NOON, comment_id=2**62)
    async with open_database(database_url) as database, database.write() as connection:
        await casebook.insert_reply(connection, reply)
        assert (await connection.execute(select(replies.c.comment_id))).scalar_one() == 2**62


async def test_a_reader_sees_one_moment(database_url: str) -> None:
    async with open_database(database_url) as database, database.read() as reader:
        assert await job_rows.fetch_active_jobs(reader) == []
        async with database.write() as writer:
            await job_rows.insert_job(writer, make_job())
        assert await job_rows.fetch_active_jobs(reader) == []


async def test_what_was_read_in_order_to_write_is_still_so_when_it_is_written(database_url: str) -> None:
    async def count_up(database: Database) -> None:
        async with database.write() as connection:
            attempt = (await connection.execute(select(jobs.c.attempt))).scalar_one()
            await asyncio.sleep(0.01)
            await connection.execute(update(jobs).values(attempt=attempt + 1))

    async with open_database(database_url) as database, open_database(database_url) as replica:
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job(attempt=0))
        await asyncio.gather(*(count_up(one) for one in (database, replica) * 8))
        async with database.read() as connection:
            assert (await connection.execute(select(jobs.c.attempt))).scalar_one() == 16


async def test_a_transaction_that_fails_leaves_nothing(database_url: str) -> None:
    async with open_database(database_url) as database:
        with suppress(ZeroDivisionError):
            async with database.write() as connection:
                assert await job_rows.insert_job(connection, make_job())
                _ = 1 / 0
        async with database.read() as connection:
            assert await job_rows.fetch_active_jobs(connection) == []


async def test_a_reader_cannot_write_in_postgresql(postgres_url: str) -> None:
    async with open_database(postgres_url) as database, database.read() as connection:
        with pytest.raises(DBAPIError, match="read-only transaction"):
            await job_rows.insert_job(connection, make_job())


async def test_a_secret_is_drawn_once(database_url: str) -> None:
    async with open_database(database_url) as database:
        secret = database.secret
    async with open_database(database_url) as database:
        assert database.secret == secret
    reader = Database(database_url)
    await reader.open_existing()
    assert reader.secret == secret
    await reader.close()


async def test_two_services_that_start_on_a_new_database_make_it_once(empty_postgres_url: str) -> None:
    async with open_database(empty_postgres_url) as one, open_database(empty_postgres_url) as other:
        assert one.secret == other.secret
    databases = [Database(empty_postgres_url) for _ in range(3)]
    await asyncio.gather(*(database.open() for database in databases))
    assert len({database.secret for database in databases}) == 1
    for database in databases:
        await database.close()


# A database that cannot be used


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{password}", "wrong-hunter2", "password authentication failed"),
        ("{port}", "1", "Connect call failed"),
        ("{name}", "nowhere", 'database "nowhere" does not exist'),
    ],
)
async def test_a_postgresql_that_cannot_be_used_is_one_sentence_without_the_password(
    postgres: Server, old: str, new: str, reason: str
) -> None:
    parts = {"{password}": postgres.password, "{port}": str(postgres.port), "{name}": "postgres"}
    url = "postgresql+asyncpg://ptq:{password}@127.0.0.1:{port}/{name}"
    for place, value in {**parts, old: new}.items():
        url = url.replace(place, value)
    database = Database(url)
    for attempt in (database.open, database.open_existing, database.upgrade):
        with pytest.raises(DatabaseError) as caught:
            await attempt()
        said = str(caught.value)
        assert said.startswith("the database postgresql+asyncpg://ptq:***@127.0.0.1:")
        assert reason in said
        assert said.endswith("; check that it is running, and check server.database_url")
        assert "\n" not in said
        assert postgres.password not in said
        assert "hunter2" not in said
    await database.close()


async def test_an_empty_database_is_no_service_to_read_from(empty_postgres_url: str) -> None:
    database = Database(empty_postgres_url)
    with pytest.raises(DatabaseError, match="not a ptq-bot database: it is empty"):
        await database.open_existing()
    await database.close()


async def test_sqlite_has_room_for_one_service_and_for_those_who_read(tmp_path: Path) -> None:
    async with open_database(tmp_path) as first, open_database(tmp_path) as second:
        with first.hold():
            with pytest.raises(DatabaseError, match="another ptq-bot service is using it"), second.hold():
                pytest.fail("there was room for two")
            with pytest.raises(DatabaseError, match="another ptq-bot service is using it"):
                await second.upgrade()
            await second.open_existing()
        with second.hold():
            pass


async def test_a_database_is_one_whatever_its_path_is_called(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        (tmp_path / "alias.db").symlink_to(database.file)
        alias = Database(f"sqlite+aiosqlite:///{tmp_path / 'alias.db'}")
        with database.hold(), pytest.raises(DatabaseError, match="another ptq-bot service"), alias.hold():
            pass


async def test_postgresql_has_room_for_many_services(postgres_url: str) -> None:
    async with open_database(postgres_url) as one, open_database(postgres_url) as other:
        with one.hold(), other.hold():
            pass


async def test_a_backup_is_of_one_moment_also_while_somebody_writes(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        await database.back_up(tmp_path / "copy.db")
    async with open_database(f"sqlite+aiosqlite:///{tmp_path / 'copy.db'}") as copy, copy.read() as connection:
        assert await job_rows.fetch_active_jobs(connection) == []
        assert copy.secret == database.secret


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("kept", "kept exists already; choose another file"),
        ("nowhere/copy.db", "No such file or directory"),
        (".", "exists already"),
    ],
)
async def test_a_backup_replaces_nothing_and_says_why_there_is_none(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "kept").write_text("kept")
    async with open_database(tmp_path) as database:
        with pytest.raises(DatabaseError, match=reason):
            await database.back_up(tmp_path / place)
    assert (tmp_path / "kept").read_text() == "kept"
    assert not list(tmp_path.glob("*.partial"))


# Replicas


class Ear:
    """Counts the notifications that a database's replicas cause."""

    def __init__(self) -> None:
        self.notifications = 0

    def notify(self) -> None:
        self.notifications += 1

    async def hear_more_than(self, notifications: int) -> None:
        async with asyncio.timeout(20):
            while self.notifications <= notifications:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[tuple[Database, Ear]]:
    ear = Ear()
    async with open_database(url) as database:
        task = asyncio.create_task(database.on_change(ear.notify))
        try:
            await ear.hear_more_than(0)  # It notifies once when it begins to listen.
            yield database, ear
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_replica_wakes_the_others_and_not_itself(postgres_url: str) -> None:
    async with replica(postgres_url) as (one, here), replica(postgres_url) as (_, there):
        for _ in range(100):
            one.notify()
        await there.hear_more_than(1)
        await asyncio.sleep(0.3)
        assert there.notifications < 10, "a burst of calls is few notifications"
        assert here.notifications == 1


async def test_a_wire_that_is_cut_is_laid_anew(postgres_url: str) -> None:
    async with replica(postgres_url) as (one, _), replica(postgres_url) as (_, there):
        for _ in range(2):
            notifications = there.notifications
            await cut_all_connections(one)
            await there.hear_more_than(notifications)  # Something may have been missed.
        notifications = there.notifications
        while there.notifications == notifications:
            one.notify()
            await asyncio.sleep(0.1)


async def cut_all_connections(database: Database) -> None:
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    async with database.read() as connection:
        await connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))


async def test_connections_that_were_cut_are_replaced(postgres_url: str) -> None:
    async with open_database(postgres_url) as database, open_database(postgres_url) as knife:
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job())
        await cut_all_connections(knife)
        async with database.read() as connection:
            assert len(await job_rows.fetch_active_jobs(connection)) == 1
        assert await database.accepts_writes()


async def test_in_sqlite_there_is_nobody_to_wake(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        database.notify()
        async with asyncio.timeout(30):
            await database.on_change(lambda: pytest.fail("who was that?"))


@pytest.mark.slow
async def test_a_task_that_is_cancelled_amid_a_transaction_keeps_the_turn_from_nobody(database_url: str) -> None:
    async with open_database(database_url) as database:

        async def write() -> None:
            async with database.write() as connection:
                await connection.execute(select(jobs))
                await connection.execute(delete(jobs))

        for number in range(60):
            tasks = [asyncio.create_task(write()) for _ in range(2)]
            await asyncio.sleep(number % 20 / 2000)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            async with asyncio.timeout(15):
                await write()


async def test_sqlites_log_is_brought_into_its_file_beside_readers_and_writers_and_then_begins_anew(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        (log,) = tmp_path.glob("*-wal")

        async def write(megabytes: int) -> None:
            async with database.write() as connection:
                for _ in range(megabytes):
                    await connection.execute(text("INSERT INTO filling VALUES (zeroblob(1000000))"))

        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE filling (bytes BLOB)"))
        await write(1)
        small = database.file.stat().st_size
        await database.checkpoint()
        assert database.file.stat().st_size == small, "it is not worth the trouble yet"
        await write(MEGABYTES)
        async with database.write() as writing:
            await writing.execute(text("INSERT INTO filling VALUES ('')"))
            await database.checkpoint()
        assert database.file.stat().st_size > MEGABYTES * 1_000_000
        await database.checkpoint()
        await write(1)
        assert log.stat().st_size <= MAX_REST
        async with database.read() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM filling"))).scalar_one() == MEGABYTES + 3


async def test_postgresql_has_no_log_to_fold(postgres_url: str) -> None:
    async with open_database(postgres_url) as database:
        await database.checkpoint()
