"""Whether an old issue still reproduces, seen by the service itself: no agent works."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.playground import LABEL
from tests.support.world import FIX, NOTE, WRITE_REPORT, open_world

pytestmark = pytest.mark.slow

AGENT = "raise SystemExit('no agent is to run')\n"


async def test_an_old_issue_is_checked_on_todays_base_branch_without_an_agent(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT, verify_runs=2) as world:
        await world.open_issue()
        await world.comment("/ptq verify")
        report = await world.wait_for_report()
        first = world.git("rev-parse", "main").strip()
        assert f"### Still reproduces at `{first[:10]}`" in report
        assert "**the issue's repro**: fails 2/2" in report
        assert "no agent" in report
        assert "`/ptq diagnose` asks an agent for the cause" in report
        assert "close the issue" not in report
        chunks = world.git("show", "main:widgets/chunks.py")
        world.commit({"widgets/chunks.py": chunks.replace(" - size + 1", "")})
        await world.comment("/ptq verify")
        report = await world.wait_for_report(2)
        assert f"### Does not reproduce at `{world.git('rev-parse', 'main').strip()[:10]}`" in report
        assert "close the issue" in report
        assert "fails 0/2" in report
        assert [job.started_at for job in await world.jobs()] == [None, None]


async def test_the_repro_of_an_earlier_attempt_is_run_too(tmp_path: Path) -> None:
    repro = "(output / 'repro.py').write_text('from widgets import chunked\\nassert list(chunked([1], 2))\\n')\n"
    async with open_world(tmp_path, agent=WRITE_REPORT + repro + FIX, verify_runs=1) as world:
        await world.open_issue(body="It loses the last chunk.")
        await world.comment("/ptq verify")
        await world.wait_for_reply("There is no script to run")
        await world.label(LABEL)
        await world.wait_for_report()
        digest = world.digest()
        await world.comment("/ptq verify")
        report = await world.wait_for_report(2)
        assert "### Still reproduces at" in report
        assert "**the repro of attempt 1**: fails 1/1" in report
        await world.comment("/ptq results")
        assert "### Still reproduces" in await world.wait_for_reply("report again")
        await world.comment(f"/ptq pr {digest}\n\n{NOTE}")
        await world.wait_for_pull()


async def test_where_the_service_runs_no_scripts_it_says_so(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT, verify_runs=0) as world:
        await world.open_issue()
        await world.comment("/ptq verify")
        assert "the operator has turned verification off" in await world.wait_for_report()


async def test_a_check_is_cancelled_like_any_job(tmp_path: Path) -> None:
    body = "```python\nimport time, widgets\ntime.sleep(60)\n```"
    async with open_world(tmp_path, agent=AGENT, verify_runs=3) as world:
        await world.open_issue(body=body)
        await world.comment("/ptq verify")
        await world.wait_for_job("verifying")
        await world.comment("/ptq cancel")
        assert "### Not verified: cancelled" in await world.wait_for_report()
