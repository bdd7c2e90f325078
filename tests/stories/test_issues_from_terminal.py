"""Jobs on issues that an operator starts at a terminal. They report in the thread as usual."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot.cli.main import app
from bot.demo.repository import NAME
from runner.model.job import Job
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow


@pytest.mark.slow(20)
async def test_an_operator_starts_retries_and_rebases_at_the_terminal_and_has_the_results_as_files(
    tmp_path: Path,
) -> None:
    agent, caps = WRITE_REPORT + FIX + "print('looking')\n", "caps.user_day.jobs = 3\n"
    async with open_world(tmp_path, agent=agent, repository_toml=caps) as world:
        await world.open_issue()
        await check_refusals(world)
        said = await world.operate("run", "--repo", NAME, "--issue", "1", "--preset", "fix", "Look at the end.")
        assert "was created with agent script: http://127.0.0.1" in said
        await world.wait_for_report()
        (first,) = await world.jobs()
        assert (first.preset, first.requested_by, first.attempt) == ("fix", "the operator", 1)
        assert "Look at the end." in first.prompt
        assert "`fix` attempt 1, requested by the operator." in world.reports()[-1]
        await check_results(world, first, tmp_path / "results")
        await world.operate("jobs", "retry", first.id, "Keep it a generator.")
        await world.wait_for_report(2)
        retried = (await world.jobs())[0]
        assert (retried.preset, retried.attempt, retried.follows) == ("fix", 2, first.id)
        assert "Keep it a generator." in retried.prompt
        world.commit({"more.txt": "more\n"})
        await world.operate("jobs", "rebase", first.id)
        await world.wait_for_report(3)
        assert (await world.jobs())[0].preset == "rebase"
        refused = await world.operate("run", "--repo", NAME, "--issue", "1", "--fresh", status=1)
        assert "the cap of 3 jobs for what the operator asked for today is used up" in refused, "all operators share it"


async def check_refusals(world: World) -> None:
    """What cannot begin is said."""
    on = ("run", "--repo", NAME, "--issue")
    assert f"there is no issue #99 in {NAME}" in await world.operate(*on, "99", status=1)
    assert "Available presets:" in await world.operate(*on, "1", "--preset", "none", status=1)
    assert "there is no job 'none'" in await world.operate("jobs", "retry", "none", status=1)
    assert world.replies() == []


async def check_results(world: World, job: Job, folder: Path) -> None:
    """Results are written as files, once."""
    said = await world.operate("jobs", "results", job.id, str(folder))
    assert f"Wrote to {folder}:\n  agent.log\n  changes.diff\n" in said
    assert {path.name for path in folder.iterdir()} >= {"report.md", "worklog.md", "summary.txt"}
    assert "looking" in (folder / "agent.log").read_text()
    assert "It is fixed." in (folder / "report.md").read_text()
    assert "+    for start in range(0, len(items), size):\n" in (folder / "changes.diff").read_text()
    assert "has agent.log, changes.diff" in await world.operate("jobs", "results", job.id, str(folder), status=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--issue", "1", "--by", "casey"), "--issue cannot be combined with --ref, --name or --by"),
        (("--fresh", "Look."), "need --issue"),
        ((), "say what the agent should do"),
        (("--issue", "1", "--preset", "retry"), "ptq-bot jobs retry JOB"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_before_the_configuration_is_read(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    config = tmp_path / "ptq.toml"
    config.touch()
    done = CliRunner().invoke(app, ["run", "--repo", NAME, *words, "--config", str(config)])
    assert done.exit_code == 2
    assert said in done.output
