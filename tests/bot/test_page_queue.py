"""Pages take turns, and leave the database and the threads of the service alone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from sqlalchemy import event

from bot.web.auth.page_queue import AT_ONCE, AT_ONCE_FOR_ONE, PageQueue
from runner.model.job import JobState
from tests.bot.test_log_readers import follow
from tests.support.dashboard import open_dashboard
from tests.support.site import make_report


async def test_one_reader_leaves_room_for_others_and_a_long_wait_is_answered_503() -> None:
    turns, go = PageQueue(lambda request: request.headers.get("login"), patience_s=0.2), asyncio.Event()

    def ask(login: str | None) -> asyncio.Task[bool]:
        headers = {"login": login} if login else {}
        return asyncio.create_task(turns.make(make_mocked_request("GET", "/", headers), go.wait))

    strangers = [ask(None) for _ in range(10)]
    person = ask("alice")
    await asyncio.sleep(0.5)
    refused = [one for one in strangers if one.done()]
    assert len(refused) == 10 - AT_ONCE_FOR_ONE
    with pytest.raises(web.HTTPServiceUnavailable) as raised:
        refused[0].result()
    assert raised.value.headers["Retry-After"] == "10"
    assert not person.done(), "her page is being made"
    go.set()
    assert await person
    assert await ask(None), "the places are free again"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/jobs?search={}x", "/jobs/ended000{:02}/log/agent/events"])
async def test_a_storm_of_pages_leaves_connections_of_the_database_to_the_service(tmp_path: Path, path: str) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser() as browser:
        for number in range(40):
            await dashboard.add(id=f"ended000{number:02}", state=JobState.FAILED)
        taken: Counter[str] = Counter()
        pool = dashboard.database.engine.sync_engine.pool

        def check_out(*_: object) -> None:
            taken["now"] += 1
            taken["most"] = max(taken["most"], taken["now"])

        event.listen(pool, "checkout", check_out)
        event.listen(pool, "checkin", lambda *_: taken.subtract(["now"]))
        answers = await asyncio.gather(*(browser.session.get(dashboard.url + path.format(n)) for n in range(40)))
        assert {200} <= {answer.status for answer in answers} <= {200, 503}
        assert 0 < taken["most"] <= AT_ONCE


@contextmanager
def all_threads_busy() -> Iterator[None]:
    """While the threads that look up names and do steps of jobs are all at work."""
    busy, threads = threading.Event(), ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.submit(busy.wait)
    try:
        yield
    finally:
        busy.set()


@pytest.mark.slow
async def test_pages_are_drawn_while_all_threads_of_the_service_are_busy(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser() as browser:
        job = await dashboard.add(make_report(), id="0123456789", state=JobState.SUCCEEDED)
        with all_threads_busy():
            async with asyncio.timeout(10):
                assert (await browser.visit(f"/jobs/{job.id}")).status == 200


async def test_a_live_log_uses_none_of_the_threads_that_the_service_shares(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, public_logs=True) as dashboard, dashboard.browser() as browser:
        job = await dashboard.add(state=JobState.RUNNING)
        dashboard.spool.append(job.id, "agent", b"one\n")
        with all_threads_busy():
            async with asyncio.timeout(10), follow(browser, job, "agent") as reader:
                await reader.until_log("one")
