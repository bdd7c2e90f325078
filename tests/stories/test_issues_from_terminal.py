"""Jobs on issues that an operator starts at a terminal. They report in the thread as usual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from tests.support import program
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX + "print('looking')\n") as world:
        await world.open_issue()
        yield world


async def run(world: World, *words: str, status: int = 0) -> str:
    """What the program prints; its failures, if it is to end with another status."""
    done = await asyncio.to_thread(program.run, *words, "--config", str(world.playground.config))
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


async def test_an_operator_starts_retries_and_rebases_at_the_terminal(world: World) -> None:
    said = await run(world, "run", "--repo", NAME, "--issue", "1", "--preset", "fix", "Look at the end.")
    assert "was created with agent script: http://127.0.0.1" in said
    await world.wait_for_report()
    (first,) = await world.jobs()
    assert (first.preset, first.requested_by, first.attempt) == ("fix", "the operator", 1)
    assert "Look at the end." in first.prompt
    assert "`fix` attempt 1, requested by the operator." in world.reports()[-1]
    await run(world, "jobs", "retry", first.id, "Keep it a generator.")
    await world.wait_for_report(2)
    retried = (await world.jobs())[0]
    assert (retried.preset, retried.attempt, retried.follows) == ("fix", 2, first.id)
    assert "Keep it a generator." in retried.prompt
    world.commit({"more.txt": "more\n"})
    await run(world, "jobs", "rebase", first.id)
    await world.wait_for_report(3)
    assert (await world.jobs())[0].preset == "rebase"


async def test_what_cannot_begin_at_the_terminal_is_said(world: World) -> None:
    on = ("run", "--repo", NAME, "--issue")
    assert f"there is no issue #99 in {NAME}" in await run(world, *on, "99", status=1)
    assert "Available presets:" in await run(world, *on, "1", "--preset", "none", status=1)
    assert "--issue cannot be combined with --ref, --name or --by" in await run(
        world, *on, "1", "--by", "casey", status=2
    )
    assert "need --issue" in await run(world, "run", "--repo", NAME, "--fresh", "Look.", status=2)
    assert "there is no job 'none'" in await run(world, "jobs", "retry", "none", status=1)
    assert "say what the agent should do" in await run(world, "run", "--repo", NAME, status=2)
    assert "ptq-bot jobs retry JOB" in await run(world, *on, "1", "--preset", "retry", status=2)
    assert world.replies() == []


async def test_all_operators_share_the_cap_of_a_person(tmp_path: Path) -> None:
    caps = "caps.user_day.jobs = 1\n"
    async with open_world(tmp_path, agent=WRITE_REPORT, repository_toml=caps) as world:
        await world.open_issue()
        await run(world, "run", "--repo", NAME, "--issue", "1")
        await world.wait_for_report()
        refused = await run(world, "run", "--repo", NAME, "--issue", "1", "--fresh", status=1)
        assert "the cap of 1 job for what the operator asked for today is used up" in refused


async def test_results_are_written_as_files_once(world: World, tmp_path: Path) -> None:
    await run(world, "run", "--repo", NAME, "--issue", "1", "--preset", "fix")
    await world.wait_for_report()
    (job,) = await world.jobs()
    folder = tmp_path / "results"
    said = await run(world, "jobs", "results", job.id, str(folder))
    assert f"Wrote to {folder}:\n  agent.log\n  changes.diff\n" in said
    assert {path.name for path in folder.iterdir()} >= {"report.md", "worklog.md", "summary.txt"}
    assert "looking" in (folder / "agent.log").read_text()
    assert "It is mended." in (folder / "report.md").read_text()
    assert "+    for start in range(0, len(items), size):\n" in (folder / "changes.diff").read_text()
    assert "has agent.log, changes.diff" in await run(world, "jobs", "results", job.id, str(folder), status=1)
