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


async def test_a_job_begins_from_that_branch_and_its_pull_request_goes_to_the_base_branch(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, repository_toml=TABLE) as world:
        green = point(world, "main")
        world.commit({"widgets/broken.py": "this does not compile\n"})
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        assert (job.base_commit, job.base_branch) == (green, "main")
        assert green[:10] in report
        assert "at the newest commit of its branch `viable/strict`." in " ".join(job.prompt.split())
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert pull.base == "main"
        assert world.git("diff", "--name-only", f"main...{pull.head_sha}").split() == ["widgets/chunks.py"]


async def test_a_task_begins_from_that_branch_unless_it_names_another(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, repository_toml=TABLE) as world:
        green = point(world, "main")
        world.commit({"news.txt": "newer\n"})
        settings = load_settings(world.playground.config)
        await start_task(settings, NAME, TaskRequest("Mend it.", "ad-hoc"), "casey")
        await world.settle()
        await start_task(settings, NAME, TaskRequest("Mend it.", "ad-hoc", ref="main"), "casey")
        await world.settle()
        begun = [(job.base_branch, job.base_commit) for job in reversed(await world.jobs())]
        assert begun == [(GREEN, green), ("main", world.git("rev-parse", "main").strip())]


async def test_a_job_says_plainly_that_the_base_branch_lacks_the_commit_and_does_not_start(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, repository_toml=TABLE) as world:
        who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        alone = point(world, world.git(*who, "commit-tree", "-m", "x", "-p", "main", "main^{tree}").strip())
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        assert (job.state, job.started_at) == ("failed", None)
        assert f"the newest commit of `{GREEN}`, `{alone[:10]}`, is not on `main`, where the pull request" in report
        point(world, "main")
        await world.comment("/ptq retry")
        await world.wait_for_report(2)
        assert (await world.jobs())[0].state == "succeeded"
