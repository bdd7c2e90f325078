"""An agent asks its model through the gateway: what is on its machine meanwhile, and afterwards, is no secret."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runner.jobd.proxy.sockets import FOLDERS, PREFIX
from runner.rows import job_rows
from runner.transport.ssh import connect
from tests.support.calls import fetch_calls
from tests.support.gateway import come_by_address
from tests.support.machine_scan import find_on_machine
from tests.support.machines import machine_behind, open_sshd
from tests.support.model_endpoint import Hang, ModelEndpoint, Say, Step
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
HANG = """
import contextlib
with contextlib.suppress(Exception):
    ask(tools=[{"name": "x"}])
"""
WAIT = "while not (output / 'go').exists():\n    time.sleep(0.05)\n"


@asynccontextmanager
async def open_behind(
    folder: Path, agent: str, *script: Step, label: bool = True, more_toml: str = ""
) -> AsyncIterator[tuple[World, ModelEndpoint]]:
    async with ModelEndpoint(*script).running() as model, open_sshd(folder) as ssh:
        toml = f'[agents.asking]\nkind = "command"\ncommand = {json.dumps([sys.executable, str(folder / "asks.py")])}\n'
        toml += f'[agents.asking.gateway]\nurl = "{model.url}"\nkey = "{KEY}"\n\n[prices.m]\ninput = 1\noutput = 2\n\n'
        toml += more_toml
        (folder / "asks.py").write_text(WRITE_REPORT + ASK + agent)
        async with open_world(folder, more_toml=toml, repository_agent="asking", ssh=ssh) as world:
            await world.open_issue()
            if label:
                await world.label()
            yield world, model


async def test_neither_the_models_key_nor_githubs_token_is_ever_on_the_machine(tmp_path: Path) -> None:
    async with open_behind(tmp_path, WAIT + FIX, Say("Well")) as (world, model):
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"model said")
        assert world.find_on_machine(f"ptq-{job.id}-"), "what is looked through has the job's own token"
        assert world.find_secrets(KEY) == []
        assert any(secret.startswith("ghs_") for secret in world.secrets())
        assert not any(secret in job.prompt for secret in (*world.secrets(), KEY))
        (tmp_path / "machine" / "workspace" / "jobs" / job.id / "files" / "output" / "go").touch()
        report = await world.wait_for_report()
        assert "1 turn, 1.1k tokens" in report
        assert "key was on the machine" not in report
        assert world.find_secrets(KEY) == []
        assert len(model.requests) == 1


async def test_wherever_on_the_machine_a_secret_is_it_is_found(tmp_path: Path) -> None:
    way = Path(tempfile.mkdtemp(prefix=PREFIX, dir=FOLDERS))
    async with open_sshd(tmp_path) as ssh:
        machine = tmp_path / "machine"
        files = [machine / "account" / ".notes", machine / "workspace" / "jobs" / "a" / "log", way / "file"]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"a line\nand {KEY}")
        (machine / "link").symlink_to(f"/nowhere/{KEY}")
        (tmp_path / KEY).touch()
        command = f"KEY={KEY} sh -c 'cat; :' {KEY} 3< {tmp_path / KEY}"  # It ends with the connection.
        async with await connect(machine_behind(ssh, machine / "workspace"), 10.0) as connection:
            await connection.create_process(command)
            wanted = {str(file) for file in [*files, machine / "link"]} | {"environ", "cmdline", "3"}
            async with asyncio.timeout(10):
                while not wanted <= find_places(machine, ssh):
                    await asyncio.sleep(0.05)
    shutil.rmtree(way)


def find_places(machine: Path, ssh: OpenSshServer) -> set[str]:
    """Where the key is; of processes, in what of them."""
    found = find_on_machine(machine, ssh, KEY)
    return {Path(where).name if where.startswith("/proc/") else where for where in found}


async def test_of_a_run_that_is_lost_in_mid_answer_nothing_that_was_taken_is_missing(tmp_path: Path) -> None:
    limits = "[limits]\nunreachable_after_s = 1\n\n"
    async with open_behind(tmp_path, HANG, Hang(), more_toml=limits) as (world, model):
        await world.wait(lambda: len(model.requests) > 1 or None, "the second request")
        await stop_sshd(world)
        await world.wait_for_reply("### Lost")
        job, db = await world.wait_for_job("lost"), world.playground.service.context.db
        calls = await fetch_calls(db)
        assert sorted(call.state for call in calls) == ["assumed", "settled"]
        async with db.read() as connection:
            meter = await job_rows.fetch_meter(connection, job.id)
        assert meter
        assert meter.usage.output_tokens == sum(call.output_tokens for call in calls) == 100 + 500


async def test_a_cancel_ends_the_access_of_an_agent_whose_machine_only_it_reaches(tmp_path: Path) -> None:
    agent = f"{HANG}(output / 'answer').write_text(ask())\n"
    async with open_behind(tmp_path, agent, Hang(times=1), label=False) as (world, model):
        world.patience_s = 30.0
        await come_by_address(world)
        await world.label()
        await world.wait(lambda: len(model.requests) > 1 or None, "the second request")
        (job,) = await world.jobs()
        await stop_sshd(world)
        await world.comment("/ptq cancel")
        answer = tmp_path / "machine" / "workspace" / "jobs" / job.id / "files" / "output" / "answer"
        await world.wait(lambda: (answer.exists() and answer.read_text()) or None, "the third answer")
        assert answer.read_text() == "<HTTPError 400: 'Bad Request'>"
        assert len(model.requests) == 2


async def stop_sshd(world: World) -> None:
    """The machine cannot be reached from here on; what runs there goes on."""
    ssh = world.playground.ssh
    assert isinstance(ssh, OpenSshServer)
    await ssh.stop()


async def test_an_agent_with_a_key_of_its_own_is_told_of_in_the_report(tmp_path: Path) -> None:
    toml = f'[agents.own]\nkind = "command"\ncommand = {json.dumps([sys.executable, str(tmp_path / "a.py")])}\n'
    (tmp_path / "a.py").write_text(WRITE_REPORT + FIX)
    more = f'{toml}env = {{ MODEL_KEY = "{KEY}" }}\n\n'
    async with open_world(tmp_path, more_toml=more, repository_agent="own") as world:
        await world.open_issue()
        await world.label()
        assert "its API key was on the machine" in await world.wait_for_report()
