"""The ledger: nothing is asked that does not fit, side by side as well, and nothing that was asked is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from runner.db.database import Database
from runner.model.caps import DEFAULT_CAPS, Caps, Scope
from runner.model.job import Job
from runner.model.meter import Meter
from runner.model.usage import NOTHING, Usage
from runner.rows import job_rows
from runner.rows.calls import ASSUMED, MAX_CALLS, SETTLED, Account, AtCap, Ledger, StoredUsage
from runner.rows.claims import ClaimLost, Claims
from tests.support.calls import fetch_calls
from tests.support.jobs import NOON, make_job, open_database
from tests.support.meters import make_meter, make_usage

MOST = make_usage(1_000, 0, 500, 0.30)
REAL = replace(make_usage(900, 100, 50, 0.05), turns=1)
UNPRICED = replace(make_usage(900, 100, 50, None), turns=1).as_one()


class Books:
    def __init__(self, db: Database, job: Job) -> None:
        self.db, self.job, self.ledger = db, job, Ledger(db)

    async def open(self, others: dict[Scope, Usage] | None = None, **caps: Caps) -> Account:
        account = Account(self.job, {Scope(name): cap for name, cap in caps.items()}, StoredUsage(others or {}))
        await self.ledger.load(account, NOON)
        return account

    async def states(self) -> list[str]:
        return [call.state for call in await fetch_calls(self.db)]


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with open_database(database_url) as db:
        job = make_job()
        async with db.write() as connection:
            await job_rows.insert_job(connection, job)
        yield Books(db, job)


async def test_a_call_is_written_down_before_it_is_made_and_settled_after(books: Books) -> None:
    account = await books.open()
    call = await books.ledger.reserve(account, "m", MOST, NOON)
    assert await books.states() == ["open"]
    await books.ledger.settle(account, call, "m", REAL, NOON, assumed=False)
    assert await books.states() == [SETTLED]
    assert account.settled == REAL
    assert (await books.open()).settled == REAL, "another replica reads the same"


async def test_calls_side_by_side_cannot_take_more_than_the_cap_together(books: Books) -> None:
    account = await books.open(job=Caps(cost_usd=1.0))
    asked = [books.ledger.reserve(account, "m", MOST, NOON) for _ in range(20)]
    done = await asyncio.gather(*asked, return_exceptions=True)
    granted = [one for one in done if isinstance(one, str)]
    assert len(granted) == 3
    assert all(isinstance(one, AtCap) for one in done if not isinstance(one, str))
    assert account.refusal == "its cap of $1.00 (the operator can raise it: caps.job.cost_usd in ptq.toml)"
    account.job = replace(account.job, max_cost_usd=1.0)
    with pytest.raises(AtCap):
        await books.ledger.reserve(account, "m", MOST, NOON)
    assert account.refusal == "its cap of $1.00 (set by --max-cost for this run: try again with a higher one)"
    await books.ledger.settle(account, granted[0], "m", REAL, NOON, assumed=False)
    await books.ledger.reserve(account, "m", Usage(known_usd=0.2), NOON)


async def test_tokens_are_capped_likewise(books: Books) -> None:
    account = await books.open(job=Caps(tokens=2_000))
    await books.ledger.reserve(account, "m", MOST, NOON)
    with pytest.raises(AtCap, match="its cap of 2,000 tokens"):
        await books.ledger.reserve(account, "m", MOST, NOON)


async def test_what_others_have_taken_counts_where_it_belongs_together(books: Books) -> None:
    account = await books.open({Scope.ISSUE: Usage(known_usd=9.8)}, issue=Caps(cost_usd=10.0))
    with pytest.raises(AtCap, match="for all attempts together"):
        await books.ledger.reserve(account, "m", MOST, NOON)
    assert await books.states() == []


async def test_jobs_side_by_side_cannot_take_more_together_than_a_cap_of_both(books: Books) -> None:
    beside: dict[str, Account] = {}
    caps = {Scope.USER_DAY: Caps(cost_usd=1.0), Scope.REPOSITORY_DAY: Caps(cost_usd=1.5)}
    for number, by in enumerate(("alice", "alice", "bob"), start=50):
        job = make_job(id=f"{number:010x}", thread=number, requested_by=by)
        async with books.db.write() as connection:
            assert await job_rows.insert_job(connection, job)
        beside[job.id] = Account(job, caps, StoredUsage(), beside=beside)
        beside[job.id].renew(caps, StoredUsage())
    first, second, of_bob = beside.values()
    calls = [await books.ledger.reserve(account, "m", MOST, NOON) for account in (first, second, first)]
    with pytest.raises(AtCap, match="for what alice asked for today"):
        await books.ledger.reserve(second, "m", MOST, NOON)
    await books.ledger.reserve(of_bob, "m", MOST, NOON)
    with pytest.raises(AtCap, match="for this repository today"):
        await books.ledger.reserve(of_bob, "m", Usage(known_usd=0.40), NOON)
    await books.ledger.settle(first, calls[0], "m", REAL, NOON, assumed=False)
    # Once it is written down, others read it there, and it counts no more than once.
    counted = Usage(known_usd=0.05)
    second.renew(caps, StoredUsage({Scope.USER_DAY: counted}, {first.job.id: counted}))
    await books.ledger.reserve(second, "m", Usage(known_usd=0.34), NOON)
    with pytest.raises(AtCap, match="for what alice asked for today"):
        await books.ledger.reserve(second, "m", Usage(known_usd=0.02), NOON)


async def test_a_job_has_no_calls_without_end(books: Books) -> None:
    account = await books.open()
    account.calls = MAX_CALLS
    with pytest.raises(AtCap, match="after its 20,000 calls"):
        await books.ledger.reserve(account, "m", MOST, NOON)
    assert account.refusal == "its 20,000 calls of models"


async def test_a_model_without_a_price_is_not_asked_where_money_is_capped(books: Books) -> None:
    unpriced = make_usage(1_000, 0, 500, None)
    with pytest.raises(AtCap, match="nobody knows the price"):
        await books.ledger.reserve(await books.open(job=Caps(cost_usd=1.0)), "m", unpriced, NOON)
    account = await books.open(job=Caps(tokens=10_000))
    call = await books.ledger.reserve(account, "m", unpriced, NOON)
    await books.ledger.settle(account, call, "m", unpriced, NOON, assumed=False)
    assert account.settled.cost_usd is None, "which is not nothing"
    assert (await books.open()).settled.cost_usd is None
    with pytest.raises(AtCap, match="nobody knows the price"):
        await books.ledger.reserve(await books.open(job=Caps(cost_usd=1.0)), "m", MOST, NOON)


async def test_the_default_caps_refuse_no_model(books: Books) -> None:
    account = await books.open(job=DEFAULT_CAPS[Scope.JOB], user_day=DEFAULT_CAPS[Scope.USER_DAY])
    unpriced = make_usage(1_000, 0, 500, None)
    call = await books.ledger.reserve(account, "m", unpriced, NOON)
    await books.ledger.settle(account, call, "m", unpriced, NOON, assumed=False)
    with pytest.raises(AtCap, match=r"its cap of \$10.00"):  # What is known counts all the same.
        await books.ledger.reserve(account, "m", Usage(known_usd=10.01), NOON)


@pytest.mark.parametrize("cap", ["turns", "unpriced_turns"])
async def test_turns_are_counted_here_whatever_the_agent_says(books: Books, cap: str) -> None:
    account = await books.open(job=Caps(cost_usd=10.0, **{cap: 3}))
    taken = UNPRICED if cap == "unpriced_turns" else REAL
    for number in range(3):
        account = await books.open(job=account.caps[Scope.JOB])  # As another replica would.
        call = await books.ledger.reserve(account, "m", taken, NOON)
        if number < 2:
            await books.ledger.settle(account, call, "m", taken, NOON, assumed=False)
    with pytest.raises(AtCap, match="its cap of 3 turns"):
        await books.ledger.reserve(account, "m", taken, NOON)
    assert account.refusal
    assert "caps.job.turns in ptq.toml" in account.refusal
    assert account.correct(Meter("j")).usage.turns == 2, "one is still open"


async def test_what_is_known_of_the_cost_of_a_run_counts_beside_its_turns(books: Books) -> None:
    account = await books.open(job=DEFAULT_CAPS[Scope.JOB])
    for taken in (UNPRICED, REAL):
        call = await books.ledger.reserve(account, "m", taken, NOON)
        await books.ledger.settle(account, call, "m", taken, NOON, assumed=False)
    usage = account.correct(Meter("j")).usage
    assert (usage.cost_usd, usage.known_usd, usage.turns, usage.unpriced_turns) == (None, 0.05, 2, 2)
    assert (await books.open()).correct(Meter("j")).usage == usage


async def test_what_a_crash_left_open_counts_as_it_was_reserved_and_says_so(books: Books) -> None:
    before = await books.open()
    left = await books.ledger.reserve(before, "m", MOST, NOON)
    account = await books.open()
    assert await books.states() == [ASSUMED]
    assert (account.settled, account.calls) == (MOST, 1)
    await books.ledger.settle(before, left, "m", REAL, NOON, assumed=False)
    assert await books.states() == [ASSUMED], "who was away for so long changes nothing any more"


async def test_a_call_whose_agent_has_gone_before_it_was_made_takes_nothing(books: Books) -> None:
    account = await books.open()
    async with books.db.write():  # It has to wait for that.
        asking = asyncio.create_task(books.ledger.reserve(account, "m", MOST, NOON))
        await asyncio.sleep(0)
        asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (account.open, account.settled) == ({}, NOTHING)
    assert (await books.open()).settled == NOTHING
    assert await books.states() == [SETTLED]


@pytest.mark.slow
async def test_a_replica_whose_claim_has_passed_on_asks_nothing(books: Books) -> None:
    claims = Claims(books.db, lasts_s=2.0)
    async with claims.hold("job:x"):
        account = await books.open()
        await books.ledger.reserve(account, "m", MOST, NOON)
        await asyncio.sleep(2.2)
        with pytest.raises(ClaimLost):
            await books.ledger.reserve(account, "m", MOST, NOON)
    assert len(await books.states()) == 1


async def test_what_was_counted_here_goes_before_what_an_agent_says(books: Books) -> None:
    account = await books.open()
    said = make_meter(books.job.id, turns=3, input_tokens=1, output_tokens=1, cost_usd=900.0, is_self_reported=True)
    assert account.correct(said).usage == Usage(jobs=1), "of what it did not ask, it took nothing"
    call = await books.ledger.reserve(account, "m", MOST, NOON)
    await books.ledger.settle(account, call, "m", REAL, NOON, assumed=False)
    meter = account.correct(said)
    usage = meter.usage
    assert (usage.turns, usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (1, 900, 100, 50)
    assert (usage.cost_usd, meter.cost_is_estimate, meter.is_self_reported) == (0.05, True, False)


async def test_what_a_job_took_at_last_counts_for_others_once_before_and_once_after_its_meter_is_written(
    books: Books,
) -> None:
    beside: dict[str, Account] = {}
    caps = {Scope.REPOSITORY_DAY: Caps(cost_usd=1.0)}
    for number in (50, 51):
        job = make_job(id=f"{number:010x}", thread=number)
        async with books.db.write() as connection:
            assert await job_rows.insert_job(connection, job)
        beside[job.id] = Account(job, caps, StoredUsage(), beside=beside)
    ends, goes_on = beside.values()

    def read(stored: float, others: float) -> None:
        of_others, of_accounts = Usage(known_usd=others), Usage(known_usd=stored)
        goes_on.renew(caps, StoredUsage({Scope.REPOSITORY_DAY: of_others}, {ends.job.id: of_accounts}))

    def count_left() -> float:
        """What of the cap the job that goes on may still take."""
        for cents in range(100, -1, -1):
            try:
                goes_on.check(Usage(known_usd=cents / 100))
            except AtCap:
                continue
            return cents / 100
        raise AssertionError

    read(0.0, 0.0)
    call = await books.ledger.reserve(ends, "m", MOST, NOON)
    await books.ledger.settle(ends, call, "m", Usage(known_usd=0.25), NOON, assumed=False)
    assert count_left() == 0.75
    read(0.0, 0.0)
    assert count_left() == 0.75, "its meter is not written yet"
    read(0.25, 0.25)
    assert count_left() == 0.75, "its meter is written"
    read(0.0, 0.0)
    del beside[ends.job.id]
    assert count_left() == 0.75, "its meter is written, which was not read yet"
    read(0.0, 0.25)
    assert count_left() == 0.75
