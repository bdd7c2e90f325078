"""An agent asks its model through the gateway: what is on its machine meanwhile, and afterwards, is no secret."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from runner.jobd.processes import find_processes
from tests.support.machines import find_or_skip_sshd
from tests.support.model_endpoint import ModelEndpoint, Say, Step
from tests.support.sshd import OpenSshServer
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

KEY = "sk-the-operators-own-key-1234567890"
ASK = """
import json, urllib.request
def ask(url=None, **changes):
    url, token = url or os.environ["PTQ_GATEWAY_URL"], os.environ["PTQ_GATEWAY_TOKEN"]
    body = {"model": "m", "max_tokens": 500, "stream": True, "messages": [], **changes}
    request = urllib.request.Request(url + "/v1/messages", json.dumps(body).encode(), {"x-api-key": token})
    try:
        return urllib.request.urlopen(request, timeout=30).read().decode()
    except OSError as error:
        return repr(error)
print("model said", ask()[-40:], flush=True)
"""
WAIT = "while not (output / 'go').exists():\n    time.sleep(0.05)\n"


@asynccontextmanager
async def open_behind(
    folder: Path, agent: str, *script: Step, label: bool = True
) -> AsyncIterator[tuple[World, ModelEndpoint]]:
    ssh = OpenSshServer(folder / "sshd", find_or_skip_sshd())
    await ssh.start()
    async with ModelEndpoint(*script).running() as model:
        toml = f'[agents.asking]\nkind = "command"\ncommand = {json.dumps([sys.executable, str(folder / "asks.py")])}\n'
        toml += f'[agents.asking.gateway]\nurl = "{model.url}"\nkey = "{KEY}"\n\n[prices.m]\ninput = 1\noutput = 2\n\n'
        (folder / "asks.py").write_text(WRITE_REPORT + ASK + agent)
        async with open_world(folder, more_toml=toml, repository_agent="asking", ssh=ssh) as world:
            await world.open_issue()
            if label:
                await world.label()
            yield world, model
    await ssh.stop()


def read_processes(job_id: str) -> Iterator[str]:
    """Everything about the job's processes that its account can read."""
    for process in find_processes(job_id):
        for name in ("environ", "cmdline"):
            with suppress(OSError):
                yield Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace")


def check(text: str) -> None:
    assert KEY not in text
    assert not re.search(r"gh[a-z]_[A-Za-z0-9]{20,}|PRIVATE KEY|eyJ[A-Za-z0-9_-]+\.eyJ", text)


async def test_neither_the_models_key_nor_githubs_token_is_ever_on_the_machine(tmp_path: Path) -> None:
    async with open_behind(tmp_path, WAIT + FIX, Say("Well")) as (world, model):
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"model said")
        found = [*await asyncio.to_thread(lambda: [*read_processes(job.id)]), world.machine_text()]
        assert any(f"ptq-{job.id}-" in text for text in found), "what was looked through has the job's own token"
        for text in found:
            check(text)
        (tmp_path / "machine" / "workspace" / "jobs" / job.id / "output" / "go").touch()
        report = await world.wait_for_report()
        assert "1 turn" not in report
        assert "1.1k tokens" in report
        assert "key was on the machine" not in report
        check(world.machine_text())
        assert len(model.requests) == 1


async def test_a_machine_may_come_to_the_service_by_its_address(tmp_path: Path) -> None:
    async with open_behind(tmp_path, FIX, Say("Well"), label=False) as (world, model):
        playground = world.playground
        await playground.stop_service()
        with playground.config.open("a") as config:
            config.write(f'\n[gateway]\nurl = "http://127.0.0.1:{playground.service_port}/gateway"\n')
        await playground.start_service()
        await world.label()
        assert "1.1k tokens" in await world.wait_for_report()
        assert len(model.requests) == 1


async def test_an_agent_with_a_key_of_its_own_is_told_of_in_the_report(tmp_path: Path) -> None:
    toml = f'[agents.own]\nkind = "command"\ncommand = {json.dumps([sys.executable, str(tmp_path / "a.py")])}\n'
    (tmp_path / "a.py").write_text(WRITE_REPORT + FIX)
    more = f'{toml}env = {{ MODEL_KEY = "{KEY}" }}\n\n'
    async with open_world(tmp_path, more_toml=more, repository_agent="own") as world:
        await world.open_issue()
        await world.label()
        assert "its model's key was on the machine" in await world.wait_for_report()
