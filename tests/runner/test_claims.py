"""Who may act, and who may not any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import update

from runner.db.database import Database
from runner.db.schema import claims as table
from runner.db.sql import db_clock
from runner.rows.claims import ClaimLost, Claims, fetch_claimed, require_claim


@asynccontextmanager
async def replicas(url: str, lasts_s: float = 60.0) -> AsyncIterator[tuple[Claims, Claims, Database]]:
    """Two on one database."""
    db = Database(url)
    await db.open()
    try:
        yield Claims(db, lasts_s), Claims(db, lasts_s), db
    finally:
        await db.close()


async def expire(db: Database) -> None:
    async with db.write() as connection:
        await connection.execute(update(table).values(expires_at=db_clock(-1)))


async def test_only_one_replica_at_a_time_has_a_claim(database_url: str) -> None:
    async with replicas(database_url) as (one, other, _):
        async with one.hold("job:1") as mine, other.hold("job:1") as theirs, other.hold("job:2") as second:
            assert (mine, theirs, second) == (True, False, True)
        async with other.hold("job:1") as mine:
            assert mine, "it was given back"


async def test_a_race_for_a_claim_has_one_winner(database_url: str) -> None:
    async with replicas(database_url) as (one, other, _):
        wins: list[bool] = []

        async def race(claims: Claims) -> None:
            async with claims.hold("job:1") as mine:
                wins.append(mine)
                while len(wins) < 10:
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(race(claims) for claims in [one, other] * 5))
        assert sorted(wins) == [False] * 9 + [True]


async def test_what_is_kept_is_the_same_replicas_the_next_time_until_it_stops(database_url: str) -> None:
    async with replicas(database_url) as (one, other, db):
        for _ in range(2):
            async with one.keep("inbox") as mine, other.keep("inbox") as theirs:
                assert (mine, theirs) == (True, False)
        async with db.read() as connection:
            assert await fetch_claimed(connection) == {"inbox"}
        await one.close()
        async with other.keep("inbox") as mine:
            assert mine


async def test_an_expired_claim_passes_on_and_its_holder_writes_nothing_any_more(database_url: str) -> None:
    async with replicas(database_url) as (one, other, db):
        async with one.hold("job:1"):
            async with db.write():
                pass
            await expire(db)
            async with db.read() as connection:
                assert await fetch_claimed(connection) == set()
            async with other.hold("job:1") as mine:
                assert mine
            with pytest.raises(ClaimLost, match="another replica has taken the claim on job:1"):
                async with db.write():
                    pytest.fail("a transaction has begun")
        async with db.write():
            """Without a claim there is nothing to lose."""


async def test_giving_back_what_has_passed_on_takes_it_from_nobody(database_url: str) -> None:
    async with replicas(database_url) as (one, other, db):
        async with one.hold("job:1"):
            await expire(db)
            await other.keep("job:1").__aenter__()
        async with one.hold("job:1") as mine:
            assert not mine


async def test_what_is_begun_under_a_claim_is_bound_by_it_also_later(database_url: str) -> None:
    async with replicas(database_url) as (one, other, db):

        async def write_late() -> None:
            await asyncio.sleep(0.1)
            async with db.write():
                pass

        async with one.hold("job:1"):
            task = asyncio.create_task(write_late())
        async with other.hold("job:1"):
            with pytest.raises(ClaimLost):
                await task


@pytest.mark.slow
async def test_a_claim_is_renewed_while_its_holder_lives(database_url: str) -> None:
    async with replicas(database_url, lasts_s=2) as (one, other, _):
        renewing = asyncio.create_task(one.run())
        async with one.hold("job:1"):
            for _ in range(12):
                await asyncio.sleep(0.25)
                async with other.hold("job:1") as mine:
                    assert not mine
            require_claim(0.1)
        renewing.cancel()


async def test_nothing_is_asked_of_the_outside_once_a_claim_may_have_expired(database_url: str) -> None:
    async with replicas(database_url, lasts_s=60) as (one, _, _db):
        async with one.hold("job:1"):
            require_claim(30)
            with pytest.raises(ClaimLost, match="may have expired"):
                require_claim(61)
        require_claim(1e9)
    async with replicas(database_url, lasts_s=0.1) as (one, _, _db), one.hold("job:1"):
        await asyncio.sleep(0.15)
        with pytest.raises(ClaimLost, match="may have expired"):
            require_claim(0)


@pytest.mark.slow
async def test_a_holder_that_was_late_has_its_claim_again_if_nobody_took_it(database_url: str) -> None:
    async with replicas(database_url, lasts_s=2) as (one, other, db):
        async with one.hold("job:1"):
            time.sleep(2.1)
            renewing = asyncio.create_task(one.run())
            await asyncio.sleep(0.8)
            async with other.hold("job:1") as mine:
                assert not mine
            async with db.write():
                require_claim(0.1)
        renewing.cancel()


async def test_a_step_is_taken_in_one_replica_alone(database_url: str) -> None:
    async with replicas(database_url) as (one, other, _):
        steps: list[str] = []

        async def step() -> None:
            steps.append("step")

        await one.keeping("inbox", step)()
        await other.keeping("inbox", step)()
        assert steps == ["step"]


async def test_who_is_alone_with_a_database_need_not_wait_for_the_dead(database_url: str) -> None:
    async with replicas(database_url) as (dead, heir, _):
        await dead.keep("inbox").__aenter__()
        await heir.clear()
        async with heir.keep("inbox") as mine:
            assert mine
