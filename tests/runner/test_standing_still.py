"""A replica that is stopped anywhere in a transaction on PostgreSQL does not keep the others from writing."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import asyncpg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from runner.db.database import Database
from runner.model.job import Job
from runner.rows import job_rows
from tests.support.jobs import make_job, open_database
from tests.support.postgres import Server

LARGE = 3 * 10**7
"""More bytes than lie between a server and a client that reads none of them."""


async def _while_idle(_connection: asyncpg.Connection) -> None:
    signal.raise_signal(signal.SIGSTOP)


async def _with_half_a_statement_sent(connection: asyncpg.Connection) -> None:
    await connection.prepare("SELECT 17")
    signal.raise_signal(signal.SIGSTOP)


async def _with_an_answer_on_its_way(connection: asyncpg.Connection) -> None:
    statement = await connection.prepare(f"SELECT repeat('x', {LARGE})")
    answer = asyncio.ensure_future(statement.fetchval())
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGSTOP)
    await answer


MOMENTS: dict[str, Callable[[asyncpg.Connection], Awaitable[None]]] = {
    "while idle": _while_idle,
    "with half a statement sent": _with_half_a_statement_sent,
    "with an answer on its way": _with_an_answer_on_its_way,
}


def name_job(moment: str) -> Job:
    """The job that is stored at this moment."""
    return make_job(id=f"{[*MOMENTS].index(moment):010}", thread=[*MOMENTS].index(moment) + 1)


async def stand_still(url: str) -> None:
    """Be a replica that stops itself within transactions, one after the other."""
    for moment in MOMENTS:
        await stop_amid_transaction(url, moment)


async def stop_amid_transaction(url: str, moment: str) -> None:
    """What it has written there comes to nothing."""
    database = Database(url)
    try:
        async with database.write() as connection:
            await job_rows.insert_job(connection, name_job(moment))
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, asyncpg.Connection)
            await MOMENTS[moment](driver)
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        await database.close()
    else:
        sys.exit("it was allowed to write")


@contextmanager
def start_replica(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that will stand still several times."""
    process = subprocess.Popen([sys.executable, "-m", __name__, url])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_it_stands_still(process: subprocess.Popen[bytes]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status


@pytest.fixture
async def ordinary_url(postgres: Server, empty_postgres_url: str) -> AsyncIterator[str]:
    """A database with today's tables, of a user who may do nothing else on that server."""
    url, user = make_url(empty_postgres_url), f"user_{secrets.token_hex(6)}"
    create = f"CREATE ROLE {user} LOGIN PASSWORD '{postgres.password}'"
    await postgres.execute(create, f"ALTER DATABASE {url.database} OWNER TO {user}")
    ordinary = url.set(username=user).render_as_string(hide_password=False)
    async with open_database(ordinary):
        yield ordinary


@pytest.mark.slow(20)
async def test_a_replica_that_stands_still_amid_a_transaction_keeps_the_turn_from_nobody(ordinary_url: str) -> None:
    # Whoever waited in vain for its turn would get an error after half a minute.
    with start_replica(ordinary_url) as process:
        for moment in MOMENTS:
            await asyncio.to_thread(wait_until_it_stands_still, process)
            async with open_database(ordinary_url) as another, another.write() as connection:
                assert await job_rows.insert_job(connection, name_job(moment)), f"the other's came to nothing, {moment}"
            process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(process.wait) == 0


@pytest.mark.slow
async def test_who_works_for_long_with_its_turn_is_left_alone(postgres_url: str) -> None:
    async with open_database(postgres_url) as one, open_database(postgres_url) as other:

        async def work() -> None:
            async with one.write() as connection:
                at_work.set()
                await connection.exec_driver_sql("SELECT pg_sleep(8)")
                assert await job_rows.insert_job(connection, make_job())

        at_work = asyncio.Event()
        working = asyncio.create_task(work())
        await at_work.wait()
        async with other.write() as connection:
            assert not await job_rows.insert_job(connection, make_job())
        await working


if __name__ == "__main__":
    asyncio.run(stand_still(*sys.argv[1:]))
