"""A run that finds what a stranger could abuse: the operator hears of it, and nobody else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from runner.model.job import Job
from tests.support.hook import Hook, open_hook
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

FINDING = "anyone may empty the till"
CONCERN = WRITE_REPORT.replace("fix staged", "# What I found\\n\\n**Outcome:** Security concern").replace(
    "It is fixed", FINDING
)
assert CONCERN.count(FINDING) == 1
NEUTRAL = "The run has finished. The operator of this App will review the result privately."


async def run(world: World, count: int = 1) -> Job:
    """The job of a run of the agent on the issue, once all is put away."""
    await world.label() if count == 1 else await world.comment("/ptq fix")
    await world.wait_for_report(count)
    return (await world.jobs())[0]


async def wait_until_heard(hook: Hook, count: int) -> None:
    for _ in range(400):
        if len(hook.heard) >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the operator heard only {hook.heard}")


async def test_the_operator_alone_hears_of_a_security_concern(tmp_path: Path) -> None:
    """What an end of the service left unsaid is said by the next one."""
    async with open_hook(500, 503) as hook:
        toml = f"[notify]\nurl = {json.dumps(hook.url)}\n"
        async with open_world(tmp_path, agent=CONCERN + FIX, more_toml=toml) as world:
            await world.open_issue()
            job = await run(world)
            await wait_until_heard(hook, 1)
            await world.playground.stop_service()
            await world.playground.start_service()
            assert world.reports()[0].partition("\n")[2] == NEUTRAL
            assert job.state == "succeeded"
            for word in (FINDING, "fixed", "ecurity", "succeeded", "diff", "/ptq pr"):
                assert word not in "\n".join(world.replies())

            await world.comment("/ptq status")
            assert "[ended](http" in await world.wait_for_reply("No job is running")

            await wait_until_heard(hook, 3)
            assert hook.heard[0] == hook.heard[1] == hook.heard[2]
            assert FINDING in hook.heard[2]["text"]
            assert hook.heard[2]["command"].startswith(f"ptq-bot report {job.id} ")

            shown = await world.operate("report", job.id)
            for part in (FINDING, "An early end.", "+    for start in range(0, len(items), size):", "looked, found"):
                assert part in shown

            await world.comment(f"/ptq pr\n\n{NOTE}")
            assert "no diff to open" in await world.wait_for_reply("<!-- ptq:reply=", 2)
            assert world.pulls() == []
            await asyncio.sleep(1.5)
            assert len(hook.heard) == 3, "what was taken is not said again"
            assert len(world.reports()) == 1


async def test_an_earlier_diff_still_stands_after_a_security_concern(tmp_path: Path) -> None:
    second = tmp_path / "second"
    agent = (
        WRITE_REPORT
        + FIX
        + f"""
again = pathlib.Path({str(second)!r})
if again.exists():
    (output / "report.md").write_text("security concern\\n\\n## Summary\\n{FINDING}\\n")
again.touch()
"""
    )
    async with open_world(tmp_path, agent=agent) as world:
        await world.open_issue()
        await run(world)
        digest = world.digest()
        await run(world, 2)
        assert world.reports()[-1].endswith(NEUTRAL)
        await world.comment(f"/ptq pr {digest}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert FINDING not in pull.body


async def test_what_comes_after_a_concern_is_confidential_until_an_operator_lifts_it(tmp_path: Path) -> None:
    again = tmp_path / "again"
    agent = f"""{WRITE_REPORT}{FIX}
again, summary = pathlib.Path({str(again)!r}), {f"Nobody can do it any more: {FINDING}."!r}
outcome = "fix staged" if again.exists() else "security concern"
(output / "report.md").write_text(f"{{outcome}}\\n\\n## Summary\\n{{summary}}\\n")
again.touch()
"""
    async with open_hook() as hook:
        toml = f"[notify]\nurl = {json.dumps(hook.url)}\n"
        async with open_world(tmp_path, agent=agent, more_toml=toml) as world, aiohttp.ClientSession() as session:

            async def read_page(job: Job) -> str:
                async with session.get(f"http://127.0.0.1:{world.playground.service_port}/jobs/{job.id}") as answer:
                    return await answer.text()

            await world.open_issue()
            first = await run(world)
            await world.playground.stop_service()
            await world.playground.start_service()

            second = await run(world, 2)
            assert second.state == "succeeded"
            assert world.reports()[1].partition("\n")[2] == NEUTRAL
            await world.comment(f"/ptq pr\n\n{NOTE}")
            assert "no diff to open" in await world.wait_for_reply("<!-- ptq:reply=")
            assert FINDING not in "\n".join(world.replies())
            assert "Only the operator can see this result" in await read_page(second)
            await wait_until_heard(hook, 2)
            assert "a run on this confidential issue has ended. Nobody can do it any more" in hook.heard[1]["text"]
            assert FINDING in await world.operate("report", second.id)

            shown = await world.operate("jobs", "show", second.id)
            assert f"confidential. To end that: ptq-bot jobs lift {second.id}" in shown
            await world.operate("jobs", "lift", second.id)
            third = await run(world, 3)
            assert FINDING in world.reports()[2]
            assert FINDING in await read_page(third)
            assert FINDING not in third.prompt, "what is confidential is carried nowhere"
            for job in (first, second):
                assert FINDING not in await read_page(job)
            await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
            await world.wait_for_pull()
