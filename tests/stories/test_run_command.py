"""A task without an issue: an operator's words, an agent, and a page on which all of it stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest

from bot.config.settings import load_settings
from bot.demo.playground import MAINTAINER
from bot.demo.repository import NAME
from bot.operations.context import UnknownRepository
from bot.operations.launch import IssueOrder, go_on, start_task
from bot.operations.reports import read_costs, read_report
from bot.operations.repositories import pause
from github_standin.standin import CLIENT_ID, CLIENT_SECRET
from handlers.commands.options import Options
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.start import RETRY
from handlers.jobs.tasks import Refused, TaskRequest
from handlers.rules import REBASE
from tests.stories.test_rebase import RESOLVE, agent, newest, touch_same_lines
from tests.support import program
from tests.support.dashboard import Browser
from tests.support.site import Page
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

BREAK = "sys.exit('Please break off.' in pathlib.Path(os.environ['PTQ_PROMPT_FILE']).read_text())\n"
AGENT = WRITE_REPORT + FIX + BREAK
ORDER = TaskRequest("Fix the last chunk.", "ad-hoc")
PRESETS = '[presets.slow]\nfile = "slow.md"\ngoal = "find out what is slow"\n'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "slow.md").write_text("1. Profile it.\n")
    caps = "caps.user_day.jobs = 2\n"
    async with open_world(tmp_path, agent=AGENT, more_toml=PRESETS, repository_toml=caps) as world:
        await world.open_issue()
        yield world
        assert world.replies() == [], "GitHub hears of none of it"


async def order(world: World, wanted: TaskRequest = ORDER, *, repository: str = NAME, by: str = "casey") -> str:
    return (await start_task(load_settings(world.playground.config), repository, wanted, by)).id


async def test_what_comes_of_a_task_without_an_issue_is_on_its_page(world: World) -> None:
    settings = load_settings(world.playground.config)
    job_id = await order(world)
    await world.settle()
    (job,) = await world.jobs()
    assert (job.state, job.failure, job.case_key) == ("succeeded", None, "octo/widgets~task1")
    assert (job.preset, job.agent, job.requested_by, job.may_change) == ("ad-hoc", "script", "casey", True)
    report = await read_report(settings, job_id)
    assert "octo/widgets~task1 · ad-hoc attempt 1, requested by casey · succeeded" in report
    assert "+    for start in range(0, len(items), size):" in report
    page = Page(200, {}, await asyncio.to_thread(fetch, f"{world.playground.service.url}/jobs/{job_id}")).text
    for words in ("octo/widgets~task1", "Fix the last chunk.", "It is fixed.", "range(0, len(items), size)", "casey"):
        assert words in page, words
    assert "octo/widgets,,casey,ad-hoc,1,script" in await read_costs(settings, None, None)
    listed = await asyncio.to_thread(fetch, f"{world.playground.service.url}/jobs")
    assert job_id not in listed, "who knows no address of it has no business there, as with worktrees"


async def test_who_follows_a_task_reads_its_report_and_learns_by_the_status_how_it_ended(world: World) -> None:
    words = ("--repo", NAME, "--config", str(world.playground.config), "--by", "casey", "--follow")
    named = ("--name", "chunks")
    done = await asyncio.to_thread(program.run, "run", *words, *named, "--preset", "fix", "--ref", "main", "Fix it.")
    assert done.returncode == 0, done.stderr
    assert "was created with agent script: http://127.0.0.1" in done.stdout
    assert "=== Diff ===" in done.stdout
    assert "octo/widgets~chunks" in done.stdout
    assert "queued" in done.stderr
    failed = await asyncio.to_thread(program.run, "run", *words, "--preset", "slow", "Please break off.")
    assert failed.returncode == 1
    assert "· slow attempt 1, requested by casey · failed" in failed.stdout
    assert {job.preset: job.state for job in await world.jobs()} == {"fix": "succeeded", "slow": "failed"}
    third = await asyncio.to_thread(program.run, "run", *words, "More.")
    assert (third.returncode, third.stdout) == (1, "")
    assert "the cap of 2 jobs for what casey asked for today is used up. It resets at 00:00 UTC" in third.stderr


async def test_a_task_is_continued_with_a_hint_and_its_diff_rebased_from_the_terminal(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=agent(RESOLVE)) as world:
        settings, first = load_settings(world.playground.config), await order(world, replace(ORDER, preset="fix"))
        await world.settle()
        await go_on(settings, first, IssueOrder(RETRY, advice="Leave the signature alone."))
        await world.settle()
        again = (await world.jobs())[0]
        assert (again.state, again.attempt, again.follows, again.failure) == ("succeeded", 2, first, None)
        assert again.base_commit == newest(world)
        for said in ("Fix the last chunk.", "Leave the signature alone.", "It is fixed."):
            assert said in again.prompt, said
        touch_same_lines(world)
        await go_on(settings, first, IssueOrder(REBASE))
        await world.settle()
        rebased = (await world.jobs())[0]
        assert (rebased.kind, rebased.state, rebased.failure) == ("rebase", "succeeded", None)
        assert (rebased.series, rebased.attempt, rebased.base_commit) == (again.series, 3, newest(world))
        report = await read_report(settings, rebased.id)
        assert "in conflict: widgets/chunks.py" in report
        assert "+    for first in range(0, len(items), size):" in report
        with pytest.raises(NotStarted, match="there is nothing to rebase"):
            await go_on(settings, first, IssueOrder(REBASE))
        with pytest.raises(Refused, match="only for jobs on issues: leave them out"):
            await go_on(settings, first, IssueOrder(RETRY, Options(fresh=True)))


async def test_a_task_of_the_launch_page_becomes_a_pull_request_by_a_note_on_its_page(tmp_path: Path) -> None:
    signs_in = f'[dashboard]\nclient_id = "{CLIENT_ID}"\nclient_secret = "{CLIENT_SECRET}"\n'
    async with (
        open_world(tmp_path, agent=AGENT, more_toml=signs_in) as world,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        browser = Browser(world.playground.service.url, session)
        await browser.sign_in(MAINTAINER, "/launch")
        wanted = {"repository": NAME, "preset": "fix", "name": "chunks", "advice": "Fix the last chunk."}
        await browser.fill_in("/launch", wanted)
        page = browser.path.partition("?")[0]
        await world.settle()
        await browser.choose(await browser.visit(f"{page}/note"), MAINTAINER)
        await browser.fill_in(f"{page}/note", {"note": NOTE})
        (pull,) = await world.wait(lambda: world.pulls() or None, "the pull request")
        await world.settle()
        assert pull.head == f"ptq/task-{page.rpartition('/')[2]}"
        assert pull.body.startswith(f"**@{MAINTAINER} wrote:**\n\n{NOTE}")
        assert "range(0, len(items), size)" in world.git("show", f"{pull.head_sha}:widgets/chunks.py")
        assert f"Pull request #{pull.number}" in (await browser.visit(page)).text


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"words": " "}, "a task has 1 to 10,000 characters"),
    ({"name": "no name"}, "a name has 1 to 50 letters"),
    ({"preset": "verify"}, "verify needs an issue; available: repro, diagnose, fix, ad-hoc, slow"),
    ({"preset": "simplify"}, "simplify continues an earlier attempt, so no task begins with it; available: "),
    ({"preset": "retry"}, "retry continues an earlier attempt, so it is not a preset; available: "),
    ({"preset": "rebase"}, "rebase continues an earlier attempt, so no task begins with it; available: "),
    ({"preset": "none"}, "unknown preset 'none'; available: repro, "),
    ({"options": Options(agent="none")}, "unknown agent; available: script$"),
    ({"options": Options(model="none")}, "unknown model for script"),
    ({"options": Options(thinking="high")}, "the agent script has no --thinking; no agent here has it$"),
    ({"options": Options(max_turns="5")}, "--max-turns cannot limit the agent script: nobody counts its turns"),
    ({"options": Options(machine="none")}, "unknown machine; available: gpu-1$"),
)


async def test_what_cannot_be_done_is_said_and_nothing_begins(world: World) -> None:
    for changes, refusal in REFUSED:
        with pytest.raises(Refused, match=refusal):
            await order(world, replace(ORDER, **changes))
    with pytest.raises(Refused, match="a person's name has letters"):
        await order(world, by="a b")
    assert await world.jobs() == []


async def test_what_a_repository_forbids_and_what_is_paused_does_not_begin(world: World) -> None:
    with pytest.raises(UnknownRepository, match="there is no repository 'octo/other'; configured: octo/widgets"):
        await order(world, repository="octo/other")
    world.commit({".github/ptq.toml": 'presets = ["repro"]\n'})
    with pytest.raises(Refused, match=r"\.github/ptq\.toml of octo/widgets does not allow ad-hoc; available: repro"):
        await order(world)
    await pause(load_settings(world.playground.config), None)
    with pytest.raises(NotStarted, match="the operator of this App has paused new jobs"):
        await order(world, replace(ORDER, preset="repro"))
    assert await world.jobs() == []


def fetch(url: str) -> str:
    with urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())
