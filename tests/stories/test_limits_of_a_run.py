"""A run with a level of thinking and limits of its own, from the comment to the result and to the next attempt."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.stories.test_run_command import fetch
from tests.support.site import Page
from tests.support.world import FIX, WRITE_REPORT, open_world

pytestmark = pytest.mark.slow

PROGRAM = """
import json
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s", "model": "opus"}), flush=True)
pathlib.Path(SIGN).write_text(" ".join(sys.argv))
for number in range(600):
    message = {"id": f"answer-{number}", "content": [{"type": "text", "text": "Hm."}], "usage": {"input_tokens": 1}}
    print(json.dumps({"type": "assistant", "message": message}), flush=True)
    time.sleep(0.1)
"""
"""Answers for a minute, whatever limits it is given."""


async def test_a_run_thinks_and_ends_as_requested_and_a_retry_keeps_that(tmp_path: Path) -> None:
    program, sign = tmp_path / "claude.py", tmp_path / "signs" / "argv"
    program.write_text(WRITE_REPORT + FIX + PROGRAM.replace("SIGN", repr(str(sign))))
    toml = f'[agents.thinker]\nkind = "claude"\ncommand = {json.dumps([sys.executable, str(program)])}\n'
    toml += "[caps.job]\nturns = 50\n"
    agents = 'agents = ["script"]\n'
    async with open_world(tmp_path, more_toml=toml, repository_agent="thinker", repository_toml=agents) as world:
        await world.open_issue()
        await world.comment("/ptq fix --max-turns 51")
        await world.wait_for_reply(
            "Not started: `--max-turns` is more than the cap of 50 turns "
            "(the operator can raise it: caps.job.turns in ptq.toml)."
        )
        await world.comment("/ptq fix --agent script --thinking high")
        await world.wait_for_reply("the agent `script` has no `--thinking`; agents that have it: `thinker`")
        assert await world.jobs() == []
        await world.comment("/ptq fix --thinking high --max-turns 3 look at the end")
        report = await world.wait_for_report()
        assert (
            "the agent was stopped at its cap of 3 turns (set by --max-turns for this run: try again with a higher one)"
            in report
        )
        assert "agent `thinker` (`opus`, thinking `high`)" in report
        assert "at most 3 turns, as requested" in report
        argv = sign.read_text()
        assert "--effort high" in argv
        assert "--max-turns 3" in argv
        await world.comment("/ptq retry --max-cost $1.50")
        await world.wait_for_report(2)
        again, first = await world.jobs()
        assert (first.thinking, first.max_turns, first.max_cost_usd) == ("high", 3, None)
        assert (again.thinking, again.max_turns, again.max_cost_usd) == ("high", 3, 1.5)
        html = await asyncio.to_thread(fetch, f"{world.playground.service.url}/jobs/{again.id}")
        assert "at most 3 turns and $1.50, as requested" in Page(200, {}, html).text
