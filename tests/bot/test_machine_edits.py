"""`ptq-bot machines add` and `remove`, with a real SSH server and a real database beside them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from bot.config.settings import load_settings
from bot.demo.loopback import ADDRESS
from bot.demo.sshd import EmbeddedSshServer
from bot.operations.host_keys import HostKey
from bot.operations.machine_edits import NewMachine, NotChanged, add_machine, remove_machine
from bot.operations.machines import UnknownMachine, check_machines, list_machines
from runner.model.job import JobState
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.machine_states import drain, fetch_machine_states
from tests.bot.test_cli import configure
from tests.support import program
from tests.support.jobs import NOON, make_job, open_database


class Site:
    """An installation with one local machine, and a host that is to become another."""

    def __init__(self, folder: Path, server: EmbeddedSshServer) -> None:
        self.folder, self.server = folder, server
        self.config = configure(folder, 0)
        self.known_hosts = folder / "known_hosts"
        self.target = f"{server.user}@{ADDRESS}:{server.port}"
        self.asked: list[HostKey] = []

    def confirm(self, key: HostKey) -> bool:
        self.asked.append(key)
        return True

    async def add(self, name: str = "gpu-1", *, agree: bool = True, workspace: str = "/srv/ptq") -> str:
        new = NewMachine(self.target, name, 2, ("gpu",), workspace, self.server.client_key_file)
        confirm = self.confirm if agree else lambda key: not self.confirm(key)
        return await add_machine(self.config, load_settings(self.config, {}), new, confirm)

    async def remove(self, name: str) -> str:
        return await remove_machine(self.config, load_settings(self.config, {}), name)


@asynccontextmanager
async def open_site(folder: Path) -> AsyncIterator[Site]:
    server = EmbeddedSshServer(folder / "ssh")
    await server.start()
    try:
        yield Site(folder, server)
    finally:
        await server.stop()


@pytest.mark.slow
async def test_a_machine_is_added_with_the_key_that_somebody_confirmed_and_can_be_used(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site, open_database(tmp_path) as database:
        async with database.write() as connection:
            await drain(connection, "gpu-1", "somebody, who had another machine of that name", NOON)
        before, mode = site.config.read_bytes(), 0o640
        site.config.chmod(mode)
        said = await site.add(workspace=str(tmp_path / "there"))
        (key,) = site.asked
        assert key.fingerprint == asyncssh.read_private_key(str(tmp_path / "ssh" / "host_key")).get_fingerprint()
        assert key.fingerprint in said
        assert "kill -HUP" in said
        top, _, rest = before.partition(b"\n[repos")
        assert site.config.read_bytes().startswith(top)
        assert site.config.read_bytes().endswith(rest)
        assert site.config.stat().st_mode & 0o777 == mode
        machine = load_settings(site.config, {}).machine_list()[1]
        assert (machine.name, machine.slots, machine.port) == ("gpu-1", 2, site.server.port)
        assert machine.labels == {"gpu"}
        assert site.known_hosts.read_text() == f"[{ADDRESS}]:{site.server.port} {key.public}\n"
        async with database.read() as connection:
            assert await fetch_machine_states(connection) == {}
        assert "cannot be asked" not in await check_machines(load_settings(site.config, {}))

        await site.add("gpu-2")
        assert len(site.asked) == 1, "its key is known by now"
        with pytest.raises(NotChanged, match="there is a machine gpu-2 already"):
            await site.add("gpu-2")
        assert not [*tmp_path.glob(".ptq.toml*")]
        await site.remove("gpu-2")
        await site.remove("gpu-1")
        assert site.config.read_bytes() == before


async def test_what_cannot_be_used_changes_no_file(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        before = site.config.read_bytes()
        with pytest.raises(NotChanged, match="nobody has confirmed"):
            await site.add(agree=False)
        with pytest.raises(NotChanged, match=r"machines\[1\]\.workspace: must be an absolute path"):
            await site.add(workspace="there")
        assert not site.known_hosts.exists()
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        site.known_hosts.write_text(f"[{ADDRESS}]:{site.server.port} {other}")
        with pytest.raises(NotChanged, match="has another key of it"):
            await site.add()
        with pytest.raises(NotChanged, match="stays as it is: machines: is missing"):
            await site.remove("here")
        site.target = f"me@{ADDRESS}:1"
        with pytest.raises(NotChanged, match="it shows no host key"):
            await site.add()
        site.target = ADDRESS
        with pytest.raises(UnknownMachine, match="user@host"):
            await site.add()
        assert site.config.read_bytes() == before
        assert not [*tmp_path.glob(".ptq.toml*")]


async def test_a_failed_addition_takes_its_key_out_of_the_known_hosts_file_in_place(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        site.known_hosts.write_text("# hosts\n")
        with site.known_hosts.open() as of_the_service:
            with pytest.raises(NotChanged, match=r"machines\[1\]\.workspace: must be an absolute path"):
                await site.add(workspace="there")
            assert site.known_hosts.read_text() == "# hosts\n"
            assert os.path.samestat(os.fstat(of_the_service.fileno()), site.known_hosts.stat())


async def test_a_machine_with_jobs_is_listed_with_them_and_stays_until_it_is_drained(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site, open_database(tmp_path) as database:
        await site.add()
        async with database.write() as connection:
            await job_rows.insert_job(connection, make_job(state=JobState.RUNNING, machine="gpu-1"))
            await job_rows.insert_lease(connection, Lease("gpu-1", 1, "0123456789"), NOON)
        settings = load_settings(site.config, {})
        assert "gpu-1  1/2 slots  in use\n       jobs: 0123456789\n" in await list_machines(settings)
        (_, listed) = json.loads(await list_machines(settings, as_json=True))
        assert listed["leases"] == [{"slot": 1, "job": "0123456789"}]
        assert (listed["state"]["drained_at"], listed["sighting"]) == (None, None)
        with pytest.raises(NotChanged, match=r"jobs are on gpu-1 \(0123456789\): drain it first"):
            await site.remove("gpu-1")
        async with database.write() as connection:
            await drain(connection, "gpu-1", "me", NOON)
        assert "Do not restart it before 0123456789 has ended" in await site.remove("gpu-1")
        assert [machine.name for machine in load_settings(site.config, {}).machine_list()] == ["here"]


@pytest.mark.slow
async def test_a_script_says_the_fingerprint_and_gets_no_other_key(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        key = asyncssh.read_private_key(str(tmp_path / "ssh" / "host_key")).get_fingerprint()
        arguments = ["--config", str(site.config), "--name", "gpu-1", "--workspace", "/srv/ptq"]
        arguments += ["--key", str(site.server.client_key_file)]
        for more, status, words in (
            ((), 1, f"--fingerprint {key}"),
            (("--fingerprint", "SHA256:AAAA"), 1, f"the host key is {key}, not the expected one"),
            (("--fingerprint", key), 0, ""),
        ):
            done = await asyncio.to_thread(program.run, "machines", "add", site.target, *arguments, *more)
            assert done.returncode == status
            assert words in done.stderr
        assert load_settings(site.config, {}).machines[1].host == ADDRESS
