"""The bell and the loops that it wakes."""

from __future__ import annotations

import asyncio

import pytest

from runner.loops import Bell, run_forever


async def test_a_loop_that_is_rung_and_cancelled_in_one_go_ends() -> None:
    bell = Bell()
    passes = 0

    async def step() -> None:
        nonlocal passes
        passes += 1

    task = asyncio.create_task(run_forever("test", step, bell, 60.0))
    while not passes:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    bell.ring()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=2)
    assert done, "it goes on"


async def test_a_ring_wakes_every_loop_at_once_and_none_is_lost() -> None:
    bell, heard = Bell(), []
    with bell.listen() as first, bell.listen() as second:
        bell.ring()
        for listener in (first, second):
            await asyncio.wait_for(listener.wait(60.0), 1.0)
            heard.append(listener)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.wait(60.0), 0.01)
    assert len(heard) == 2


async def test_a_pass_that_fails_is_repeated() -> None:
    bell, passes, twice = Bell(), 0, asyncio.Event()

    async def step() -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            twice.set()
        raise ValueError("no")

    task = asyncio.create_task(run_forever("test", step, bell, 0.01))
    await asyncio.wait_for(twice.wait(), 2.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_ring_is_told_to_the_other_replicas_and_one_of_theirs_is_not() -> None:
    told: list[str] = []
    bell = Bell(lambda: told.append("told"))
    with bell.listen() as listener:
        bell.ring_here()
        assert listener.heard.is_set()
        assert told == []
        listener.heard.clear()
        bell.ring()
        assert listener.heard.is_set()
    assert told == ["told"]


async def test_a_narrower_bell_is_rung_with_the_wide_one_and_not_the_other_way_round() -> None:
    narrower = Bell()
    bell = Bell(narrower=narrower)
    with bell.listen() as all_loops, narrower.listen() as one_loop:
        narrower.ring()
        assert (all_loops.heard.is_set(), one_loop.heard.is_set()) == (False, True)
        one_loop.heard.clear()
        bell.ring()
        assert (all_loops.heard.is_set(), one_loop.heard.is_set()) == (True, True)
