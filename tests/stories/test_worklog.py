"""People read an agent's worklog while it grows: on the job's page, and its headings in the thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

from bot.cli.results import write_results
from bot.config.settings import load_settings
from runner.rows.worklogs import fetch_worklog
from tests.support.quick_machine import QuickMachine
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

WRITES_A_WORKLOG = """
def write(text, sign):
    with (output / "worklog.md").open("a") as worklog:
        worklog.write(text)
    while not os.path.exists(os.path.join({folder!r}, sign)):
        time.sleep(0.02)

write("## Read the test\\n", "read")
write("## Run it *ten* times\\n\\n```\\n# a comment\\n```\\n\\nIt **fails**.\\n", "run")
"""


async def wait_for_page(world: World, job_id: str, words: str) -> None:
    """Return once the page of the job holds these words."""

    def read() -> str:
        with urlopen(f"{world.playground.service.url}/jobs/{job_id}", timeout=60) as answer:
            return str(answer.read().decode())

    async with asyncio.timeout(world.patience_s):
        while words not in await asyncio.to_thread(read):
            await asyncio.sleep(0.05)


async def test_a_worklog_is_read_while_it_grows_and_is_there_when_machine_and_service_were_away(tmp_path: Path) -> None:
    agent = WRITE_REPORT + WRITES_A_WORKLOG.format(folder=str(tmp_path)) + FIX
    async with open_world(tmp_path, agent=agent) as world:
        await world.open_issue()
        await world.label()
        job = await world.wait_for_job("running")
        await wait_for_page(world, job.id, "<h3>Read the test</h3>")
        (tmp_path / "read").touch()
        await wait_for_page(world, job.id, "<p>It <strong>fails</strong>.</p>")
        machine = world.playground.ssh
        assert isinstance(machine, QuickMachine)
        machine.is_silent = True
        await world.wait_for_reply("**Waiting:**")
        assert world.statuses()[-1].endswith(
            "**From the agent's worklog:**\n\n> - `Read the test`\n> - `Run it *ten* times`"
        )
        await world.comment("/ptq status")
        assert "> - `Run it *ten* times`" in await world.wait_for_reply("<!-- ptq:reply=")
        await world.playground.stop_service()
        await world.playground.start_service()
        await wait_for_page(world, job.id, "<p>It <strong>fails</strong>.</p>")
        folder = tmp_path / "so-far"
        await write_results(load_settings(world.playground.config), job.id, folder)
        assert "## Run it *ten* times" in (folder / "worklog.md").read_text()
        machine.is_silent = False
        (tmp_path / "run").touch()
        await world.wait_for_report()
        assert "From the agent's worklog" not in world.statuses()[-1]
        await wait_for_page(world, job.id, "<p>It <strong>fails</strong>.</p>")
        async with world.playground.service.context.db.read() as connection:
            assert await fetch_worklog(connection, job.id) is None, "the report has it"
