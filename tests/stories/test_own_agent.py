"""`docs/own-agent.md`: the programs on that page are agents, exactly as they are printed there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.machines import open_sshd
from tests.support.world import open_world

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "own-agent.md"
SMALLEST, ASKING = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)

DIFF = """\
--- a/widgets/chunks.py
+++ b/widgets/chunks.py
@@ -6,3 +6,3 @@
         raise ValueError("size must be at least 1")
-    for start in range(0, len(items) - size + 1, size):
+    for start in range(0, len(items), size):
         yield items[start : start + size]
"""
ANSWER = f"The loop ends before a shorter last chunk.\n\n```diff\n{DIFF}```\n"


@asynccontextmanager
async def open_model() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a model that always gives this answer, and what it is asked."""
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        usage = {"input_tokens": 1_000, "output_tokens": 100}
        return web.json_response({"content": [{"type": "text", "text": ANSWER}], "usage": usage})

    application = web.Application()
    application.router.add_post("/v1/messages", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2]), asked
    finally:
        await runner.cleanup()


async def test_the_smallest_agent_on_the_page_leaves_the_report_that_the_page_shows(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=SMALLEST, on_real_machine=True) as world:
        await world.open_issue()
        await world.label()
        shown = re.search(r"```text\n(### .*?)```", PAGE.read_text(), re.DOTALL)
        assert shown
        said = (await world.wait_for_report()).splitlines()
        assert [line for line in shown[1].splitlines() if line != "..." and line not in said] == []


@pytest.mark.sshd
async def test_the_agent_on_the_page_that_asks_a_model_proposes_its_answer(tmp_path: Path) -> None:
    program = tmp_path / "asks.py"
    program.write_text(ASKING)
    async with open_model() as (url, asked), open_sshd(tmp_path) as ssh:
        toml = f'[agents.agent]\nkind = "command"\ncommand = {json.dumps([sys.executable, str(program)])}\n'
        toml += f'model = "m"\n[agents.agent.gateway]\nurl = "{url}"\nkey = "sk-the-operators-own"\n\n'
        toml += "[prices.m]\ninput = 1\noutput = 2\n"
        async with open_world(tmp_path, more_toml=toml, repository_agent="agent", ssh=ssh) as world:
            await world.open_issue()
            await world.label()
            report = await world.wait_for_report()
            assert "### Fix staged" in report
            assert "The loop ends before a shorter last chunk." in report
            assert "+    for start in range(0, len(items), size):" in report
            assert world.digest()
    assert "chunked" in asked[0]["messages"][0]["content"]
