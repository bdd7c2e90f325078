from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select, text
from structlog.testing import capture_logs

from handlers.inbox.receiving import (
    CALM_S,
    CROWD,
    MAX_BATCH,
    MAX_CALM_S,
    Arrival,
    Crowd,
    NotStored,
    Receiver,
    find_digest,
    find_other_id,
)
from runner.db.database import Database
from runner.db.schema import deliveries
from tests.support.clock import Clock
from tests.support.jobs import open_database


def arrive(number: int, lane: str = "octo/widgets#1") -> Arrival:
    return Arrival(f"id-{number}", "issues", lane, b"{}")


async def gather(receiving: Sequence[Awaitable[bool]]) -> list[bool | str]:
    """What each was answered: an error by its text."""
    answers = await asyncio.gather(*receiving, return_exceptions=True)
    assert all(isinstance(answer, bool | NotStored) for answer in answers), answers
    return [answer if isinstance(answer, bool) else str(answer) for answer in answers]


async def stored(database: Database) -> list[str]:
    async with database.read() as connection:
        return [*(await connection.execute(select(deliveries.c.id).order_by(deliveries.c.sequence))).scalars()]


async def test_deliveries_that_come_together_share_a_commit(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver = Receiver(database, Clock())
        with capture_logs() as lines:
            assert await gather([receiver.receive(arrive(number)) for number in range(50)]) == [True] * 50
        assert [line["deliveries"].split() for line in lines] == [[f"id-{number}" for number in range(50)]]
        assert await stored(database) == [f"id-{number}" for number in range(50)]


async def test_a_batch_is_bounded_and_nobody_is_left_out(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver, count = Receiver(database, Clock()), 2 * MAX_BATCH + 1
        with capture_logs() as lines:
            assert await gather([receiver.receive(arrive(number)) for number in range(count)]) == [True] * count
        assert [len(line["deliveries"].split()) for line in lines] == [MAX_BATCH, MAX_BATCH, 1]
        assert len(await stored(database)) == count


async def test_of_the_same_delivery_twice_in_a_batch_one_is_new(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver = Receiver(database, Clock())
        assert await receiver.receive(arrive(0))
        again = [arrive(0), arrive(1), arrive(1), arrive(2)]
        assert await gather([receiver.receive(one) for one in again]) == [False, True, False, True]


async def test_two_contents_under_one_id_are_both_stored(database_url: str) -> None:
    """Ids are not signed: somebody may have used this one first, also within one batch."""
    async with open_database(database_url) as database:
        receiver = Receiver(database, Clock())
        other = Arrival("id-0", "issues", "octo/widgets#1", b'{"other": 1}')
        came = [arrive(0), other, other, arrive(0), arrive(1)]
        other_id = find_other_id("id-0", find_digest("issues", other.body))
        assert await gather([receiver.receive(one) for one in came]) == [True, True, False, False, True]
        assert sorted(await stored(database)) == ["id-0", other_id, "id-1"]
        assert len(find_other_id("x" * 100, "f" * 64)) <= 100


async def test_an_error_is_everybodys_answer_and_the_next_batch_is_stored(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver = Receiver(database, Clock())
        async with database.write() as connection:
            await connection.execute(text("ALTER TABLE deliveries RENAME TO elsewhere"))
        said = "the database could not store the delivery (OperationalError): send it again later"
        assert await gather([receiver.receive(arrive(number)) for number in range(3)]) == [said] * 3
        async with database.write() as connection:
            await connection.execute(text("ALTER TABLE elsewhere RENAME TO deliveries"))
        assert await receiver.receive(arrive(1))
        assert await stored(database) == ["id-1"]


async def test_who_stops_waiting_takes_nobody_with_them(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver = Receiver(database, Clock())
        first, second = (asyncio.ensure_future(receiver.receive(arrive(number))) for number in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second
        assert await stored(database) == ["id-0", "id-1"]


async def test_beyond_what_may_wait_nothing_is_taken_until_there_is_room(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver = Receiver(database, Clock(), max_pending=3)
        full = "the inbox is full: 3 deliveries wait already; send it again later"
        answers = await gather([receiver.receive(arrive(number)) for number in range(5)])
        assert answers == [True, True, True, full, full]
        with pytest.raises(NotStored, match="the inbox is full"):
            await receiver.receive(arrive(9))
        async with database.write() as connection:
            await connection.execute(deliveries.update().values(state="done"))
        assert await receiver.receive(arrive(9))
        assert await stored(database) == ["id-0", "id-1", "id-2", "id-9"]


async def test_each_is_answered_only_once_its_row_can_be_seen_by_others(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, open_database(tmp_path) as other:
        receiver = Receiver(database, Clock())

        async def receive_and_look(number: int) -> None:
            assert await receiver.receive(arrive(number))
            assert f"id-{number}" in await stored(other)

        await asyncio.gather(*(receive_and_look(number) for number in range(20)))


async def test_after_a_crowd_work_waits_for_calm_and_after_a_few_it_does_not(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        receiver = Receiver(database, Clock())
        await gather([receiver.receive(arrive(number)) for number in range(CROWD - 1)])
        assert receiver.calm_in_s() == 0
        await gather([receiver.receive(arrive(number)) for number in range(100, 100 + CROWD)])
        assert 0 < receiver.calm_in_s() <= CALM_S


def test_a_crowd_without_an_end_holds_work_up_for_a_limited_time() -> None:
    crowd = Crowd()
    assert crowd.calm_in_s(10.0) == 0
    crowd.note(10.0, CROWD)
    assert crowd.calm_in_s(10.0) == CALM_S
    assert crowd.calm_in_s(10.0 + CALM_S) == 0
    for number in range(1, 40):
        crowd.note(10.0 + number * CALM_S / 2, CROWD)
    assert crowd.calm_in_s(10.0 + MAX_CALM_S - CALM_S / 4) == CALM_S / 4
    assert crowd.calm_in_s(10.0 + MAX_CALM_S) == 0
