from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from runner.db.batches import Batches, Stopped


class Work:
    """Doubles numbers, a turn at a time, once it may; refuses negative ones."""

    def __init__(self) -> None:
        self.turns, self.may_end = list[Sequence[int]](), asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> Sequence[int | Exception]:
        self.turns.append(numbers)
        await self.may_end.wait()
        if 0 in numbers:
            raise ZeroDivisionError
        return [2 * number if number > 0 else ValueError(number) for number in numbers]


async def add_all(batches: Batches[int, int], numbers: Sequence[int]) -> list[asyncio.Future[int]]:
    added = [batches.add(number) for number in numbers]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return added


async def test_what_is_asked_for_during_a_turn_shares_the_next_one_and_each_gets_its_own_answer() -> None:
    work = Work()
    batches = Batches[int, int](work, 3)
    added = await add_all(batches, [1]) + await add_all(batches, [2, 3, 4, 5])
    work.may_end.set()
    assert await asyncio.gather(*added) == [2, 4, 6, 8, 10]
    assert work.turns == [[1], [2, 3, 4], [5]]


async def test_one_that_is_refused_spoils_nobody_elses_answer() -> None:
    work = Work()
    work.may_end.set()
    added = await add_all(Batches[int, int](work, 3), [1, -2, 3])
    first, second, third = await asyncio.gather(*added, return_exceptions=True)
    assert (first, repr(second), third) == (2, "ValueError(-2)", 6)


async def test_a_turn_that_fails_fails_for_all_in_it_and_not_for_the_next() -> None:
    work = Work()
    batches = Batches[int, int](work, 2)
    added = await add_all(batches, [1, 0, 2, 3])
    work.may_end.set()
    *failed, good = await asyncio.gather(*added, return_exceptions=True)
    assert work.turns == [[1, 0], [2, 3]] or work.turns == [[1], [0, 2], [3]]
    assert any(isinstance(one, ZeroDivisionError) for one in failed)
    assert good == 6


async def test_somebody_who_leaves_spoils_nobody_elses_answer() -> None:
    work = Work()
    batches = Batches[int, int](work, 3)
    added = await add_all(batches, [1, 2, 3])
    added[1].cancel()
    work.may_end.set()
    assert [await added[0], await added[2]] == [2, 6]


async def test_whoever_waits_for_a_turn_that_is_cancelled_is_told() -> None:
    work = Work()
    batches = Batches[int, int](work, 1)
    added = await add_all(batches, [1, 2])
    await batches.cancel()
    for one in added:
        with pytest.raises(Stopped):
            await one


async def test_those_who_ask_again_soon_after_they_were_answered_share_the_next_turn() -> None:
    work = Work()
    work.may_end.set()
    batches = Batches[int, int](work, 9)

    async def ask_again(number: int) -> None:
        for _ in range(3):
            await batches.add(number)
            for _ in range(number):
                await asyncio.sleep(0)

    await asyncio.gather(*map(ask_again, (1, 2, 3)))
    assert [sorted(turn) for turn in work.turns] == [[1, 2, 3]] * 3


async def test_whoever_waits_between_two_turns_is_told_of_a_cancellation() -> None:
    work = Work()
    work.may_end.set()
    batches = Batches[int, int](work, 1)
    (first,) = await add_all(batches, [1])
    assert await first == 2
    second = batches.add(2)
    await asyncio.sleep(0)
    await batches.cancel()
    with pytest.raises(Stopped):
        await second
    assert work.turns == [[1]]
