"""Wakeup, and the loops that it wakes."""

from __future__ import annotations

import asyncio

import pytest

from runner.steps.loops import Loop, Wakeup, finish, run_forever


async def test_a_loop_that_is_notified_and_cancelled_at_once_ends() -> None:
    wakeup = Wakeup()
    passes = 0

    async def step() -> None:
        nonlocal passes
        passes += 1

    task = asyncio.create_task(run_forever("test", step, wakeup, 60.0))
    while not passes:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    wakeup.notify()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=30)
    assert done, "it goes on"


async def test_a_ring_wakes_every_loop_at_once_and_none_is_lost() -> None:
    wakeup, heard = Wakeup(), []
    with wakeup.listen() as first, wakeup.listen() as second:
        wakeup.notify()
        for listener in (first, second):
            await asyncio.wait_for(listener.wait(60.0), 30.0)
            heard.append(listener)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.wait(60.0), 0.01)
    assert len(heard) == 2


async def test_a_pass_that_fails_is_repeated() -> None:
    wakeup, passes, twice = Wakeup(), 0, asyncio.Event()

    async def step() -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            twice.set()
        raise ValueError("no")

    task = asyncio.create_task(run_forever("test", step, wakeup, 0.01))
    await asyncio.wait_for(twice.wait(), 30.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_ring_is_told_to_the_other_replicas_and_one_of_theirs_is_not() -> None:
    told: list[str] = []
    wakeup = Wakeup(lambda: told.append("told"))
    with wakeup.listen() as listener:
        wakeup.notify_here()
        assert listener.heard.is_set()
        assert told == []
        listener.heard.clear()
        wakeup.notify()
        assert listener.heard.is_set()
    assert told == ["told"]


async def test_what_is_to_be_finished_ends_before_its_caller_is_cancelled() -> None:
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.02)
        done.append("work")

    async def caller() -> None:
        try:
            await finish(work())
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    task = asyncio.create_task(caller())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert (done, task.cancelled()) == (["work", "cancelled"], True)
    assert await finish(asyncio.sleep(0, "an answer")) == "an answer"


async def test_a_loop_that_is_to_finish_ends_after_the_pass_that_is_under_way_and_begins_no_other() -> None:
    wakeup, began, go_on, ended = Wakeup(), asyncio.Event(), asyncio.Event(), list[str]()

    async def step() -> None:
        began.set()
        await go_on.wait()
        ended.append("a pass")

    loop = Loop("test", step, wakeup, 60.0)
    await began.wait()
    wakeup.notify()
    finishing = asyncio.create_task(loop.finish())
    await asyncio.sleep(0.01)
    assert not finishing.done()
    go_on.set()
    await asyncio.wait_for(finishing, 30)
    assert ended == ["a pass"]


async def test_a_loop_that_is_cancelled_does_not_wait_for_its_pass() -> None:
    began = asyncio.Event()

    async def step() -> None:
        began.set()
        await asyncio.Event().wait()

    loop = Loop("test", step, Wakeup(), 60.0)
    await began.wait()
    await asyncio.wait_for(loop.cancel(), 30)


async def test_a_narrower_wakeup_is_notified_with_the_wide_one_but_not_the_other_way_round() -> None:
    narrower = Wakeup()
    wakeup = Wakeup(narrower=narrower)
    with wakeup.listen() as all_loops, narrower.listen() as one_loop:
        narrower.notify()
        assert (all_loops.heard.is_set(), one_loop.heard.is_set()) == (False, True)
        one_loop.heard.clear()
        wakeup.notify()
        assert (all_loops.heard.is_set(), one_loop.heard.is_set()) == (True, True)
