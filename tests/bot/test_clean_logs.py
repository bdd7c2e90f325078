"""A log is cleaned once, one at a time, and nobody waits behind a crowd."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bot.web.dashboard.prose import MAX_PROSE
from bot.web.job_logs import CleanLogs, JobLogs, LogTail, ShownWorklog, TooMany
from runner.model.job import Job, JobState
from runner.model.jobd_answers import Worklog
from tests.support.jobs import make_job
from tests.support.site import AGENTS, SECRET, make_report, open_site


class Cleaner:
    """Cleans logs slowly: none is done before `go`."""

    def __init__(self) -> None:
        self.cleaned = list[bytes]()
        self.at_once = self.most_at_once = 0
        self.go = threading.Event()

    def clean(self, log: LogTail) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.go.wait(30)
        self.at_once -= 1
        self.cleaned.append(log.data)
        return log.data.decode().upper()


async def test_one_is_cleaned_at_a_time_and_a_crowd_is_turned_away() -> None:
    cleaner = Cleaner()
    logs = CleanLogs(cleaner.clean, max_waiting=2)
    asked = [asyncio.ensure_future(logs.fetch(LogTail(0, b"log %d" % number))) for number in range(5)]
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    assert all(isinstance(one.exception(), TooMany) for one in done)
    cleaner.go.set()
    assert {await one for one in waiting} < {b"LOG %d" % number for number in range(5)}
    assert cleaner.most_at_once == 1
    assert (await logs.fetch(LogTail(0, b"later"))) == b"LATER"


async def test_a_log_is_cleaned_once_while_there_is_room_to_keep_it() -> None:
    cleaner = Cleaner()
    cleaner.go.set()
    logs = CleanLogs(cleaner.clean, most=10)
    same = await asyncio.gather(*(logs.fetch(LogTail(0, b"same")) for _ in range(3)))
    assert same == [b"SAME"] * 3
    assert cleaner.cleaned == [b"same"]
    await logs.fetch(LogTail(0, b"other"))
    await logs.fetch(LogTail(0, b"same"))
    assert cleaner.cleaned == [b"same", b"other"], "both fit"
    await logs.fetch(LogTail(0, b"third"))
    await logs.fetch(LogTail(0, b"same"))
    assert cleaner.cleaned == [b"same", b"other", b"third"], "the one that was not asked for is gone"
    assert (await logs.fetch(LogTail(0, b"other"))) == b"OTHER"
    assert (await logs.fetch(LogTail(5, b"other"))) == b"OTHER", "a cut log is another: its beginning is left out"
    assert cleaner.cleaned[3:] == [b"other", b"other"]


@pytest.mark.slow
async def test_a_log_that_is_asked_for_again_costs_little(tmp_path: Path) -> None:
    """By the processor's time of one run, so that a busy machine changes nothing."""
    async with open_site(tmp_path) as site:
        job = await site.add(make_report(), state=JobState.SUCCEEDED, agent="mine")
        await site.keep_log(
            job, "agent", b"".join(b"step %d: a line of a long log\n" % number for number in range(30_000))
        )
        before = cpu_s()
        first = await site.get(f"/jobs/{job.id}/log/agent")
        cost, costs = cpu_s() - before, []
        for _ in range(3):  # The garbage collection of the whole test process may fall into one.
            before = cpu_s()
            again = await site.get(f"/jobs/{job.id}/log/agent")
            costs.append(cpu_s() - before)
            assert again.html == first.html
        assert min(costs) < cost / 2


async def test_a_page_draws_a_log_once(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        logs = JobLogs(site.database, site.spool, AGENTS, frozenset())
        growing, ended = (make_job(state=state, agent="mine") for state in (JobState.RUNNING, JobState.SUCCEEDED))
        for job in (growing, ended):
            drawn = [logs.draw(job, "agent", LogTail(0, b"a line\nmore\n")).entries for _ in range(2)]
            assert drawn[0] is drawn[1]
        keys = LogTail(0, (b"-----BEGIN RSA PRIVATE KEY-----\n" + b"A\n" * 500) * 20)
        before = cpu_s()
        assert logs.draw(growing, "agent", keys).entries
        cost, before = cpu_s() - before, cpu_s()
        assert logs.draw(growing, "agent", replace(keys)).entries
        assert cpu_s() - before < cost / 2, "what may be shown of a growing log is found once"
        for other in (LogTail(0, b"another\n"), LogTail(20_000, b"a line\nmore\n")):
            assert logs.draw(ended, "agent", other).entries != drawn[0]


KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + f"{'A' * 64}\n" * 20 + "-----END RSA PRIVATE KEY-----\n"


async def test_a_long_worklog_is_shown_from_its_end_without_any_part_of_a_secret(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        logs = JobLogs(site.database, site.spool, AGENTS, frozenset({SECRET}))
        running, lost = make_job(state=JobState.RUNNING), make_job(state=JobState.LOST)

        def draw(job: Job, text: str, *, is_cut: bool = False) -> ShownWorklog:
            return logs.draw_worklog(job, Worklog("1", text, is_cut))

        assert draw(running, f"## Look\n\n{SECRET}\n") == ShownWorklog("## Look\n\n[redacted]\n")
        assert draw(running, f"## Look\n{KEY[:200]}").text == "## Look\n", "what comes may be the rest of a key"
        assert "AAAA" not in draw(lost, f"## Look\n{KEY[:200]}").text
        rest_of_key = f"{'A' * 64}\n" * 460 + "-----END RSA PRIVATE KEY-----\n"
        cut = draw(running, f"{rest_of_key}{'🙂' * 17_000}\n## Done\n", is_cut=True)
        assert cut == ShownWorklog("## Done\n", is_cut=True)
        long = draw(running, "one\n" + "two\n" * 10_000)
        assert (long.is_cut, set(long.text.split("\n")), len(long.text) <= MAX_PROSE) == (True, {"two", ""}, True)
        assert len(draw(running, "x" * 30_000 + "\n").text) == MAX_PROSE


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system
