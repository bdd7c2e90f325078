"""Environments and jobs begin from another branch than the one that pull requests go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.demo.repository import NAME
from bot.operations.launch import start_task
from handlers.jobs.tasks import TaskRequest
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

GREEN = "viable/strict"
TABLE = f'environment_branch = "{GREEN}"'


def point(world: World, commit: str) -> str:
    """Move the branch for environments on "GitHub"."""
    sha = world.git("rev-parse", commit).strip()
    world.git("update-ref", f"refs/heads/{GREEN}", sha)
    return sha


async def test_jobs_and_tasks_begin_from_that_branch_and_pull_requests_go_to_the_base_branch(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, repository_toml=TABLE) as world:
        who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        alone = point(world, world.git(*who, "commit-tree", "-m", "x", "-p", "main", "main^{tree}").strip())
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        assert (job.state, job.started_at) == ("failed", None)
        assert f"the newest commit of `{GREEN}`, `{alone[:10]}`, is not on `main`, where the pull request" in report

        green = point(world, "main")
        world.commit({"widgets/broken.py": "this does not compile\n"})
        await world.comment("/ptq retry")
        report = await world.wait_for_report(2)
        job, _ = await world.jobs()
        assert (job.state, job.base_commit, job.base_branch) == ("succeeded", green, "main")
        assert green[:10] in report
        assert "at the newest commit of its branch `viable/strict`." in " ".join(job.prompt.split())
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert pull.base == "main"
        assert world.git("diff", "--name-only", f"main...{pull.head_sha}").split() == ["widgets/chunks.py"]

        settings = load_settings(world.playground.config)
        await start_task(settings, NAME, TaskRequest("Fix it.", "ad-hoc"), "casey")
        await world.settle()
        await start_task(settings, NAME, TaskRequest("Fix it.", "ad-hoc", ref="main"), "casey")
        await world.settle()
        named, unnamed, *_ = await world.jobs()
        assert (unnamed.base_branch, unnamed.base_commit) == (GREEN, green)
        assert (named.base_branch, named.base_commit) == ("main", world.git("rev-parse", "main").strip())
