"""Real agents through the whole path: relay, OpenSSH, gateway, scripted model. None of them has a key."""

from __future__ import annotations

import asyncio
import html
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.sandbox.processes import find_processes
from runner.model.job import Job, JobState
from tests.stories.test_restart import serve
from tests.support.calls import fetch_calls
from tests.support.cli_stories import KEY, KINDS, WORK, Story, open_story
from tests.support.clis import find_command
from tests.support.gateway import come_by_address
from tests.support.jobd import find_first
from tests.support.machines import open_sshd
from tests.support.model_endpoint import TOKENS_IN, TOKENS_OUT, Hang, Run, Say, Step
from tests.support.sshd import OpenSshServer

pytestmark = [pytest.mark.agents, pytest.mark.sshd]

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
AWAY_S = 90.0
AT_ONCE_S = 20.0
"""How long a command line may take to end at an answer. What nothing but its machine ends lives for longer."""
MANY = [Run(f"echo {number}") for number in range(40)]
DEAR = '[prices."{model}"]\ninput = 0.0\ncached = 0.0\noutput = 1000.0\n\n'
"""An answer of the scripted model costs $0.10, and what it may cost at most much more."""


class Behind(Story):
    """A story whose agent asks by the gateway."""

    ssh: OpenSshServer

    async def calls(self) -> list[Any]:
        return await fetch_calls(self.world.playground.service.context.db)

    async def wait_for_requests(self, count: int) -> None:
        await self.world.wait(lambda: len(self.endpoint.requests) >= count or None, f"{count} requests")

    def watch_machine(self) -> list[str]:
        """Look through the machine each time that the model is asked: where a key is, or a token of GitHub's."""
        found: list[str] = []

        def look(_: int) -> None:
            own = self.world.find_on_machine("ptq-[0-9a-f]{10}-[0-9a-f]{40}")
            found.extend(self.world.find_secrets(KEY) if own else ["the job's own token was not found either"])

        self.endpoint.on_request = look
        return found

    async def check_account(self, job: Job, *, assumed: int = 0) -> None:
        """Every request that reached the model is in the account, and nothing is open any more."""
        calls = await self.calls()
        assert [call.state for call in calls].count("assumed") == assumed, calls
        assert {call.state for call in calls} <= {"settled", "assumed"}
        assert len(calls) >= len(self.endpoint.requests)
        meter = await self.read_meter(job)
        assert meter.usage.input_tokens == sum(call.input_tokens for call in calls)
        assert meter.usage.cost_usd == pytest.approx(sum(call.cost_usd for call in calls))
        assert meter.usage.cost_usd > 0


@asynccontextmanager
async def open_behind(folder: Path, kind: str, script: Sequence[Step], **options: Any) -> AsyncIterator[Behind]:
    async with (
        open_sshd(folder) as ssh,
        open_story(folder, kind, *script, gateway=True, ssh=ssh, **options) as story,
    ):
        behind = Behind(story.world, story.endpoint)
        behind.ssh = ssh
        yield behind


@EACH_KIND
@pytest.mark.parametrize("network", ["host", "none"])
async def test_an_agent_without_a_key_and_without_a_network_does_its_work_and_every_token_is_counted(
    tmp_path: Path, kind: str, network: str
) -> None:
    toml = f'network = "{network}"\n'
    async with open_behind(tmp_path, kind, [WORK, Say("Done.")], repository_toml=toml) as story:
        found = story.watch_machine()
        assert "It is fixed" in await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        await story.check_account(job)
        meter, count = await story.read_meter(job), len(story.endpoint.requests)
        assert (meter.usage.input_tokens, meter.usage.output_tokens) == (count * TOKENS_IN, count * TOKENS_OUT)
        assert found == story.world.find_secrets(KEY) == []


@EACH_KIND
async def test_an_agent_whose_machine_was_cut_off_in_mid_answer_finishes(tmp_path: Path, kind: str) -> None:
    async with open_behind(tmp_path, kind, [WORK, Hang(times=1), Say("Done.")]) as story:
        await story.wait_for_requests(2)
        await story.ssh.cut_connections()
        report = await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        assert "It is fixed" in report, await story.read_log(job)
        assert "Not finished" not in report, await story.read_log(job)
        await story.check_account(job, assumed=1)


@pytest.mark.timeout(300)
async def test_agents_whose_service_was_away_for_long_in_mid_answer_finish(tmp_path: Path) -> None:
    """All at once: it takes its time."""
    script: list[Step] = [WORK, Hang(times=1), Say("Done.")]
    async with AsyncExitStack() as stack:
        stories = []
        for kind in KINDS:  # One after the other, for alembic makes one database at a time.
            (tmp_path / kind).mkdir()
            stuck = "[limits]\nstuck_after_s = 600\n\n"
            opened = open_behind(tmp_path / kind, kind, script, more_toml=stuck, label=False)
            stories.append(await stack.enter_async_context(opened))
        await asyncio.gather(*map(be_away, stories))


async def be_away(story: Behind) -> None:
    world = story.world
    world.patience_s = 60.0
    await world.playground.stop_service()
    async with serve(world) as service:
        await world.label()
        await story.wait_for_requests(2)
        service.stop(signal.SIGKILL)
    await asyncio.sleep(AWAY_S)
    await world.playground.start_service()
    report = await world.wait_for_report()
    (job,) = await world.jobs()
    assert "Not finished" not in report, await story.read_log(job)
    await story.check_account(job, assumed=1)


@EACH_KIND
async def test_at_its_cap_an_agent_is_ended_at_once_and_no_answer_was_too_many(tmp_path: Path, kind: str) -> None:
    model, most = {"claude": ("claude-dear", 32_000), "codex": ("gpt-dear", 32_000), "pi": ("m", 16_384)}[kind]
    cap = most / 1000 + 0.45
    toml = f"{DEAR.format(model=model) if kind != 'pi' else ''}[caps.job]\ncost_usd = {cap}\n\n"
    options = {"more_toml": toml, "model": model, "output_price": 1000.0}
    async with open_behind(tmp_path, kind, [WORK, *MANY, Say("Done.")], **options) as story:
        report = await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        assert f"its cap of ${cap:,.2f}" in html.unescape(report), await story.read_log(job)
        assert "It is fixed" in report
        meter = await story.read_meter(job)
        assert meter.ending == "capped"
        assert 0.3 <= meter.usage.cost_usd <= 0.6
        await story.check_account(job)


@EACH_KIND
async def test_an_agent_that_is_cancelled_in_mid_answer_ends_with_its_account_complete(
    tmp_path: Path, kind: str
) -> None:
    async with open_behind(tmp_path, kind, [WORK, Hang()]) as story:
        await story.wait_for_requests(2)
        await story.world.comment("/ptq cancel")
        assert "Cancelled" in await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        calls = await story.calls()
        assert {call.state for call in calls} == {"settled", "assumed"}
        assert len(calls) == len(story.endpoint.requests)
        assert (await story.read_meter(job)).usage.input_tokens == sum(call.input_tokens for call in calls)


@contextmanager
def hold_still(job: Job) -> Iterator[None]:
    """Stop what on the machine watches over the agent: nothing tells that to end meanwhile. A busy machine is so."""
    stage = find_first([process.pid for process in find_processes(job.id)])
    os.kill(stage, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stage, signal.SIGCONT)


async def wait_for_end(job: Job, kind: str) -> None:
    """Return once no process of the job is the command line any more; one that nobody has waited for is none."""
    program = Path(find_command(kind)[0]).resolve()
    async with asyncio.timeout(AT_ONCE_S):
        while any(find_program(process.pid) == program for process in find_processes(job.id)):
            await asyncio.sleep(0.1)


def find_program(pid: int) -> Path | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink()
    return None


@EACH_KIND
async def test_an_agent_whose_token_is_revoked_in_mid_answer_ends_at_once_by_what_it_is_answered(
    tmp_path: Path, kind: str
) -> None:
    async with open_behind(tmp_path, kind, [WORK, Hang(times=1), Say("Done.")]) as story:
        await story.wait_for_requests(2)
        (job,) = await story.world.jobs()
        with hold_still(job):
            await story.world.comment("/ptq cancel")
            await wait_for_end(job, kind)
        report = await story.world.wait_for_report()
        (job,) = await story.world.jobs()
        said = await story.read_log(job)
        assert "the run is over: its access has ended" in said
        assert "Cancelled" in report, said
        assert "It is fixed" in report, said
        assert len(story.endpoint.requests) == 2
        assert (job.state, job.failure) == (JobState.CANCELLED, "cancelled by @maintainer")
        await story.check_account(job, assumed=1)


@EACH_KIND
async def test_an_agent_whose_job_was_given_up_ends_at_once_where_it_still_reaches_the_service(
    tmp_path: Path, kind: str
) -> None:
    """It comes by the service's own address, and nobody can tell its machine to end it."""
    limits = "[limits]\nunreachable_after_s = 1\n\n"
    script: list[Step] = [WORK, Hang(times=1), Say("Done.")]
    async with open_behind(tmp_path, kind, script, more_toml=limits, label=False) as story:
        world = story.world
        await come_by_address(world)
        await world.label()
        await story.wait_for_requests(2)
        (job,) = await world.jobs()
        await story.ssh.stop()
        await wait_for_end(job, kind)
        assert len(story.endpoint.requests) == 2
        report = await world.wait_for_reply("### Lost")
        lost = await world.wait_for_job("lost")
        assert lost.failure
        assert lost.failure in report
        await story.check_account(lost, assumed=1)
        while any(job.active for job in await world.jobs()):  # It was started again, with no machine.
            await asyncio.sleep(0.1)
        await story.ssh.start()
        await world.settle()


@EACH_KIND
async def test_the_tools_of_an_agent_fetch_a_private_repository_without_a_token_of_githubs(
    tmp_path: Path, kind: str
) -> None:
    """They see the way there, whatever their agent keeps from them; and nowhere on the machine is one."""
    fetch = Run("git fetch --depth=1 origin main 2>&1; git rev-parse FETCH_HEAD > fetched.txt")
    async with open_behind(tmp_path, kind, [fetch, WORK, Say("Done.")], private=True) as story:
        found = story.watch_machine()
        report = await story.world.wait_for_report()
        assert story.world.playground.base_commit in report
        assert any(
            pack.token and pack.token.value in story.world.secrets() for pack in story.world.github.git_http.packs
        )
        assert found == story.world.find_secrets(KEY) == []
