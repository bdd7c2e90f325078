"""Skills of a repository: every agent of its jobs finds them, also those in a folder of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.demo.repository import NAME
from bot.operations.launch import start_task
from handlers.jobs.tasks import TaskRequest
from runner.rows import job_rows
from tests.support.world import WRITE_REPORT, open_world

pytestmark = pytest.mark.slow

LIST = (
    "print(*sorted(str(path.parent.name) for path in pathlib.Path(os.environ['PTQ_SKILLS_DIR']).glob('*/SKILL.md')))\n"
)
TABLE = 'skills = ["graph-breaks", ".claude/skills", "gone/"]'


async def test_an_agent_finds_the_skills_of_its_repository_but_none_of_a_named_commits(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + LIST, repository_toml=TABLE, on_real_machine=True) as world:
        world.commit({".claude/skills/measure/SKILL.md": "Measure twice.\n"})
        settings = load_settings(world.playground.config)
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        await start_task(settings, NAME, TaskRequest("Look around.", "ad-hoc"), "casey")
        await world.settle()
        await start_task(settings, NAME, TaskRequest("Look around.", "ad-hoc", ref="refs/heads/main"), "casey")
        await world.settle()
        async with world.playground.service.context.db.read() as connection:
            logs = [await job_rows.fetch_log(connection, job.id, "agent") for job in await world.jobs()]
        at_ref, task, issue = ((log or b"").decode() for log in logs)
        missing = "[The skill `gone/*/SKILL.md` was left out: it is not in the repository.]"
        assert issue.splitlines() == task.splitlines() == [missing, "graph-breaks measure"]
        assert at_ref.splitlines() == ["graph-breaks"], "a ref may be a stranger's pull request"
