"""A private repository: its machine fetches it through the service, and never has a token of GitHub's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from runner.jobd.processes import find_processes
from tests.support.machines import find_or_skip_sshd
from tests.support.sshd import OpenSshServer
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

GIT = """
import subprocess
def git(*words, where="."):
    done = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()
def show(*words, **more):
    print("GIT", words[0], git(*words, **more), flush=True)
"""
FETCHES = """
show("config", "remote.origin.url")
show("fetch", "--depth=1", "origin", "main")
url = git("config", "remote.origin.url")
show("clone", "--quiet", "--no-checkout", "--filter=blob:none", url, str(output / "partial"))
print("MISSING", git("rev-list", "--objects", "--all", "--missing=print", where=output / "partial").count("?"))
print("LAZY", git("show", "HEAD:README.md", where=output / "partial"))
show("push", "origin", "HEAD:refs/heads/mine")
show("ls-remote", url.replace("widgets", "secrets"))
"""
WAIT = """
print("waiting", flush=True)
while not (output / "go").exists():
    time.sleep(0.05)
"""


@asynccontextmanager
async def open_private(folder: Path, agent: str, repository_toml: str = "") -> AsyncIterator[World]:
    ssh = OpenSshServer(folder / "sshd", find_or_skip_sshd())
    await ssh.start()
    script = WRITE_REPORT + GIT + agent
    async with open_world(folder, agent=script, ssh=ssh, private=True, repository_toml=repository_toml) as world:
        await world.open_issue()
        yield world
    await ssh.stop()


def read_processes(job_id: str) -> Iterator[str]:
    """Everything about the job's processes that its account can read."""
    for process in find_processes(job_id):
        for name in ("environ", "cmdline"):
            with suppress(OSError):
                yield Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace")


def check(text: str) -> None:
    assert not re.search(r"gh[a-z]_[A-Za-z0-9]{20,}|PRIVATE KEY|eyJ[A-Za-z0-9_-]+\.eyJ|x-access-token", text)


async def test_a_private_repository_comes_to_its_machine_without_a_token_of_githubs(tmp_path: Path) -> None:
    async with open_private(tmp_path, FETCHES + WAIT + FIX) as world:
        await world.label()
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"waiting")
        found = [*await asyncio.to_thread(lambda: [*read_processes(job.id)]), world.machine_text()]
        assert any(f"ptq-{job.id}-" in text for text in found), "what was looked through has the job's own token"
        for text in found:
            check(text)
        log = (tmp_path / "var" / "spool" / f"{job.id}.agent.log").read_text()
        (tmp_path / "machine" / "workspace" / "jobs" / job.id / "output" / "go").touch()
        report = await world.wait_for_report()
        check(world.machine_text())
    assert f"GIT config {world.github.url}/{NAME}.git\n" in log, "a clone is known by its own address"
    assert "GIT fetch From http://127.0.0.1:" in log
    assert "-> FETCH_HEAD" in log
    assert "GIT clone \nMISSING 5\nLAZY # widgets\n" in log, "what a partial clone lacks comes when it is needed"
    assert "GIT push remote: ptq-bot: pushing is not possible by the gateway" in log
    assert "GIT ls-remote fatal: could not read Username" in log
    assert "fix staged" in report.lower()
