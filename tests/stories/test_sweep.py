"""A backlog that is looked at again, without an agent, at a set pace, and without a word to those who wrote it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.demo.playground import STRANGER
from bot.demo.repository import ISSUE_BODY, NAME
from bot.operations.context import UnknownRepository, open_context
from bot.operations.machines import drain_machine, resume_machine
from bot.operations.reports import read_report
from bot.operations.repositories import pause, resume
from bot.operations.sweep import SweepRequest, sweep
from bot.operations.sweep_summary import Summary, render_json, render_text
from handlers.context import Context
from handlers.jobs.tasks import Refused
from tests.support import program
from tests.support.world import World, open_world

pytestmark = pytest.mark.slow

AGENT = "raise SystemExit('no agent is to run')\n"
LABEL = "old"
FINE = "```python\nimport widgets\n```"
SLOW = "```python\nimport time, widgets\ntime.sleep({seconds})\nassert False\n```"
WISH = SweepRequest(NAME, LABEL, limit=10, at_once=2, name="spring", comments=False)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, agent=AGENT, verify_runs=1) as world:
        yield world


async def file(world: World, *bodies: str, label: str = LABEL, title: str = "It breaks") -> list[int]:
    return [await world.github.open_issue(NAME, title, body, STRANGER, [label]) for body in bodies]


async def run(
    world: World, wish: SweepRequest = WISH, *, dry: bool = False, show: Callable[[str], None] = lambda _: None
) -> Summary:
    settings = load_settings(world.playground.config)
    return await sweep(settings, wish, show, dry=dry, look_every_s=0.1)


def outcomes(summary: Summary) -> list[tuple[int, str]]:
    return [(row.issue, row.outcome) for row in summary.rows]


def said(world: World, number: int) -> list[str]:
    """All that the bot has on an issue: its comments, and its reactions."""
    issue = world.github.issue(NAME, number)
    ours = [comment.body for comment in issue.comments if comment.user.login == "ptq-bot[bot]"]
    return [*ours, *(reaction.content for reaction in issue.reactions)]


async def test_a_backlog_gets_one_summary_and_its_threads_hear_nothing(world: World) -> None:
    first, second, third = await file(world, ISSUE_BODY, FINE, "No script.")
    (other,) = await file(world, ISSUE_BODY, label="new")

    # A pause stops a sweep. It goes on afterwards.
    settings = load_settings(world.playground.config)
    await pause(settings, None)
    summary = await run(world)
    assert outcomes(summary)[:2] == [(number, "not begun") for number in (first, second)]
    assert not summary.is_complete
    assert "Nothing more begins: the operator of this App has paused new jobs; ptq-bot resume" in render_text(summary)
    await resume(settings, None)

    lines: list[str] = []
    summary = await run(world, show=lines.append)
    assert outcomes(summary) == [
        (first, "still reproduces"),
        (second, "does not reproduce"),
        (third, "no script"),
    ]
    assert summary.is_complete
    head = world.git("rev-parse", "main").strip()
    text = render_text(summary)
    assert "1 still reproduces, 1 does not reproduce, 1 no script." in text
    assert re.search(rf"#{first} +still reproduces +{head[:10]} +http://\S+/jobs/[0-9a-f]{{10}} +It breaks", text)
    assert len([line for line in lines if line.startswith("#")]) == 3
    await world.settle()
    assert [said(world, number) for number in (first, second, third, other)] == [[], [], [], []]
    jobs = {job.issue_number: job for job in await world.jobs()}
    assert {*jobs} == {first, second}
    assert jobs[first].started_at is None, "no agent was started"
    report = await read_report(settings, jobs[first].id)
    assert "**the issue's repro**: fails 1/1" in report
    values = json.loads(render_json(summary))
    assert values["counts"] == {"still reproduces": 1, "does not reproduce": 1, "no script": 1}
    assert values["issues"][0]["commit"] == head
    assert values["issues"][0]["job"] == jobs[first].id


async def test_where_it_is_asked_to_comment_only_what_is_definite_is_posted(world: World) -> None:
    first, second = await file(world, ISSUE_BODY, SLOW.format(seconds=60))
    running = asyncio.create_task(run(world, replace(WISH, comments=True)))
    await world.wait_for_job("preparing")
    world.number = second
    await world.comment("/ptq cancel")
    summary = await running
    assert outcomes(summary) == [(first, "still reproduces"), (second, "not verified")]
    assert "not verified: cancelled by maintainer" in render_text(summary)
    await world.settle()
    (report,) = said(world, first)
    assert "### Still reproduces at" in report
    assert "requested by the operator of this App." in report
    assert "It was started by the operator and will not post a report here." in world.replies()[0]
    assert len(world.replies()) == 1, "somebody asked there, and is answered; no report follows"


async def test_a_dry_run_begins_nothing_and_says_what_would_be_looked_at(world: World) -> None:
    first, second, third, fourth = await file(world, SLOW.format(seconds=60), ISSUE_BODY + FINE, "No script.", FINE)
    world.number = first
    await world.comment("/ptq verify")
    await world.wait_for_reply("<!-- ptq:job=")
    summary = await run(world, replace(WISH, limit=3), dry=True)
    assert outcomes(summary) == [(first, "left out"), (second, "to be looked at"), (third, "no script")]
    text = render_text(summary)
    assert f"#{first}     left out: another job on it is under way" in text
    assert "to be looked at (2 scripts)" in text
    assert f"#{fourth}" not in text
    assert len(await world.jobs()) == 1
    await world.comment("/ptq cancel")
    await world.wait_for_report()

    # A repository that allows no verify is not swept.
    world.commit({".github/ptq.toml": 'presets = ["fix"]\n'})
    with pytest.raises(Refused, match=r"the \.github/ptq\.toml of octo/widgets does not allow verify"):
        await run(world)
    world.commit({".github/ptq.toml": "presets = 3\n"})
    with pytest.raises(Refused, match=r"invalid \.github/ptq\.toml: line 1"):
        await run(world)
    with pytest.raises(UnknownRepository, match="there is no repository 'octo/other'; configured: octo/widgets"):
        await run(world, replace(WISH, repository="octo/other"))


async def test_an_interrupted_sweep_goes_on_within_its_limit_and_runs_nothing_twice(world: World) -> None:
    numbers = await file(world, *[FINE] * 4)
    running = asyncio.create_task(run(world, replace(WISH, at_once=1)))
    first = await world.wait_for_job("preparing")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [job.id for job in await world.jobs()] == [first.id], "it is left under way"
    lines: list[str] = []
    running = asyncio.create_task(run(world, replace(WISH, at_once=2), show=lines.append))
    seen = set()
    while not running.done():
        seen.add(sum(job.active for job in await world.jobs()))
        await asyncio.sleep(0.05)
    summary = await running
    assert max(seen) == 2
    assert outcomes(summary) == [(number, "does not reproduce") for number in numbers]
    assert len(lines) == 5
    assert (await run(world)).rows == summary.rows, "once more, it is only shown"
    assert len(await world.jobs()) == 4
    summer = await run(world, replace(WISH, name="summer"), dry=True)
    assert {row.outcome for row in summer.rows} == {"to be looked at"}, "a sweep of another name looks again"


async def test_a_cap_stops_it_and_says_when_it_is_free_again(tmp_path: Path) -> None:
    caps = "caps.repository_day.jobs = 1\n"
    signed_in = '[dashboard]\nclient_id = "Iv1.0123456789abcdef"\nclient_secret = "made-up-secret"\npublic_logs = true'
    async with open_world(tmp_path, agent=AGENT, verify_runs=1, repository_toml=caps, more_toml=signed_in) as world:
        first, second = await file(world, ISSUE_BODY, ISSUE_BODY)
        summary = await run(world, replace(WISH, at_once=1))
        assert outcomes(summary) == [(first, "still reproduces"), (second, "not begun")]
        assert "the cap of 1 job for this repository today is used up. It resets at 00:00 UTC" in render_text(summary)
        assert said(world, second) == []

        # A command beside the service works with the same context.
        async with open_context(load_settings(world.playground.config)) as ours:
            served = world.playground.service.context
            for name in {field.name for field in fields(Context)} - {"github", "db", "now", "notify"}:
                shown, expected = getattr(ours, name), getattr(served, name)
                assert shown == (dict(expected) if isinstance(shown, dict) else expected), name
            assert (ours.signs_in, ours.public_logs) == (True, True)


async def test_whoever_asks_in_the_thread_comes_before_a_sweep_that_waits(world: World) -> None:
    numbers = await file(world, *[SLOW.format(seconds=60)] * 3)
    running = asyncio.create_task(run(world, replace(WISH, at_once=3)))
    while await world.leases() < 2 or len(await world.jobs()) < 3:
        await asyncio.sleep(0.05)
    waits = next(job for job in await world.jobs() if job.state == "queued")
    world.number = waits.issue_number
    await world.comment("/ptq verify")
    await world.wait_for_reply("<!-- ptq:job=")
    told = {job.id: job for job in await world.jobs()}[waits.id]
    assert (told.state, told.failure) == ("cancelled", "replaced by a job that @maintainer requested")
    await world.comment("/ptq cancel")
    await world.wait_for_reply("<!-- ptq:report=")
    for number in {*numbers} - {waits.issue_number}:
        world.number = number
        await world.comment("/ptq verify")
        await world.wait_for_reply("Only one job at a time")
        await world.comment("/ptq cancel")
    assert (await running).count() == {"not verified": 3}


async def test_ctrl_c_says_how_to_go_on(world: World, tmp_path: Path) -> None:
    await file(world, ISSUE_BODY, ISSUE_BODY, title="It \x1b[31mbreaks")
    config = world.playground.config
    settings = load_settings(config)
    words = ("--repo", NAME, "--label", LABEL, "--at-once", "1", "--config", str(config))

    def interrupt() -> str:
        with program.start(tmp_path, "sweep", *words, "--name", "my spring") as running:
            asyncio.run_coroutine_threadsafe(world.wait_for_job("queued"), loop).result()
            assert running.stop(signal.SIGINT)[0] == 130
            return running.text()

    loop = asyncio.get_running_loop()
    await drain_machine(settings, "gpu-1")  # There is no other: what the sweep begins cannot end before it is resumed.
    text = await asyncio.to_thread(interrupt)
    assert "Sweep 'my spring' of octo/widgets: 2 open issue(s)" in text
    assert "What is under way goes on. To go on with the rest: the same command, with --name 'my spring'" in text
    assert [job.state for job in await world.jobs()] == ["queued"]
    await resume_machine(settings, "gpu-1")
    done = await asyncio.to_thread(program.run, "sweep", *words, "--name", "my spring", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {"still reproduces": 2}
    assert "still reproduces at" in done.stderr
    shown = await asyncio.to_thread(program.run, "sweep", *words, "--name", "my spring")
    assert "\x1b" not in shown.stdout
    assert len(await world.jobs()) == 2
