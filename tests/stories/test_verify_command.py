"""Whether an old issue still reproduces, seen by the service itself: no agent works."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.playground import LABEL
from tests.support.world import FIX, NOTE, WRITE_REPORT, open_world

pytestmark = pytest.mark.slow

REPRO = "from widgets import chunked\nassert list(chunked([1], 2))\n"
AGENT = f"{WRITE_REPORT}(output / 'repro.py').write_text({REPRO!r})\n{FIX}"
SLOW = "```python\nimport time, widgets\ntime.sleep(60)\n```"


async def test_an_old_issue_is_checked_on_todays_base_branch_without_an_agent(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT, verify_runs=2) as world:
        # The repro of an earlier attempt is run, too.
        await world.open_issue(body="It loses the last chunk.")
        await world.comment("/ptq verify")
        await world.wait_for_reply("There is no script to run")
        await world.label(LABEL)
        await world.wait_for_report()
        digest = world.digest()
        await world.comment("/ptq verify")
        report = await world.wait_for_report(2)
        assert "### Still reproduces at" in report
        assert "**the repro of attempt 1**: fails 2/2" in report
        await world.comment("/ptq results")
        assert "### Still reproduces" in await world.wait_for_reply("report again")
        await world.comment(f"/ptq pr {digest}\n\n{NOTE}")
        await world.wait_for_pull()

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
        here = [job for job in await world.jobs() if job.issue_number == world.number]
        assert [job.started_at for job in here] == [None, None]

        # A check is cancelled like any job.
        await world.open_issue(body=SLOW)
        await world.comment("/ptq verify")
        await world.wait_for_job("verifying")
        await world.comment("/ptq cancel")
        assert "### Not verified: cancelled" in await world.wait_for_report()

        # Where the service runs no scripts it says so.
        await world.playground.stop_service()
        config = world.playground.config
        config.write_text(config.read_text().replace("runs = 2", "runs = 0"))
        await world.playground.start_service()
        await world.open_issue()
        await world.comment("/ptq verify")
        assert "the operator has turned verification off" in await world.wait_for_report()
