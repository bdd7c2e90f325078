"""Machines behind other hosts, and an SSH configuration of the operator's that says where they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import pytest

from bot.demo.loopback import ADDRESS
from runner.model.machines import Machine
from runner.transport.host_errors import AccessDenied, HostError, HostKeyMismatch, Unreachable
from runner.transport.hosts import SshHost
from runner.transport.ssh import Hop, parse_hop
from tests.support.machines import find_or_skip_sshd, machine_behind, open_server
from tests.support.sshd import OpenSshServer

pytestmark = pytest.mark.sshd


@dataclass(frozen=True)
class Route:
    """A machine, and two hosts before it that know its key."""

    machine: Machine
    jumps: tuple[OpenSshServer, OpenSshServer]
    folder: Path

    def name(self, number: int) -> str:
        return f"{self.jumps[number].user}@{ADDRESS}:{self.jumps[number].port}"

    def via(self, *names: str) -> Machine:
        return replace(self.machine, jump_hosts=names)

    def configured(self, text: str, **changes: object) -> Machine:
        file = self.folder / "ssh_config"
        file.write_text(text)
        return replace(self.machine, ssh_config_file=file, **changes)  # type: ignore[arg-type]


@pytest.fixture
async def route(tmp_path: Path) -> AsyncIterator[Route]:
    target = open_server("embedded", tmp_path / "target")
    first, second = (OpenSshServer(tmp_path / name, find_or_skip_sshd()) for name in ("first", "second"))
    for server in (target, first, second):
        await server.start()
    key = asyncssh.read_private_key(str(target.client_key_file)).export_public_key()
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_bytes(b"".join(server.known_hosts_file.read_bytes() for server in (target, first, second)))
    for folder in ("first", "second"):
        (tmp_path / folder / "authorized_keys").write_bytes(key)
    machine = machine_behind(target, tmp_path / "workspace", known_hosts_file=known_hosts)
    yield Route(machine, (first, second), tmp_path)
    for server in (target, first, second):
        await server.stop()


async def greet(machine: Machine) -> bytes:
    host = SshHost(machine)
    try:
        return (await host.run(["echo", "there"])).stdout
    finally:
        await host.close()


async def count_passing(route: Route, machine: Machine) -> list[bool]:
    """Whether a connection to the machine goes through each of the hosts before it."""
    host = SshHost(machine)
    await host.run(["true"])
    passing = [bool(jump._connections()) for jump in route.jumps]
    await host.close()
    return passing


async def test_one_comes_to_a_machine_through_any_number_of_hosts_in_their_order(route: Route) -> None:
    assert await greet(route.via(route.name(0), route.name(1))) == b"there\n"
    assert await count_passing(route, route.via(route.name(1))) == [False, True]
    assert await count_passing(route, route.via(route.name(0), route.name(1))) == [True, True]


async def test_with_the_connection_those_before_it_are_closed(route: Route) -> None:
    host = SshHost(route.via(route.name(0), route.name(1)))
    await host.run(["true"])
    assert all(jump._connections() for jump in route.jumps)
    await host.close()
    async with asyncio.timeout(10):
        while any(jump._connections() for jump in route.jumps):
            await asyncio.sleep(0.01)


async def test_a_host_in_between_that_falls_is_a_lost_connection_and_found_again(route: Route) -> None:
    host = SshHost(route.via(route.name(0)))
    assert (await host.run(["true"])).exit_status == 0
    await route.jumps[0].stop()
    with pytest.raises(Unreachable):
        await host.run(["true"])
    await route.jumps[0].start()
    assert (await host.run(["true"])).exit_status == 0
    await host.close()


async def test_each_host_has_to_be_known_and_to_know_us_and_the_error_says_which_does_not(route: Route) -> None:
    async def fails(machine: Machine) -> HostError:
        with pytest.raises(HostError) as caught:
            await greet(machine)
        assert ADDRESS not in str(caught.value)
        return caught.value

    both = route.via(route.name(0), route.name(1))
    known_hosts = route.folder / "known_hosts"
    lines = known_hosts.read_bytes().splitlines(keepends=True)
    known_hosts.write_bytes(b"".join(lines[:2]))
    error = await fails(both)
    assert isinstance(error, HostKeyMismatch)
    assert error.permanent
    assert str(error).startswith("its jump host (number 2): its host key is not in the known_hosts file")
    known_hosts.write_bytes(b"".join(lines[1:]))
    assert str(await fails(both)).startswith("its host key is not")
    known_hosts.write_bytes(b"".join(lines))
    (route.folder / "first" / "authorized_keys").write_bytes(b"")
    error = await fails(both)
    assert isinstance(error, AccessDenied)
    assert str(error) == "its jump host (number 1): login failed: it did not accept our user name and key"


async def test_an_ssh_configuration_says_where_a_machine_is_and_how_one_comes_there(route: Route) -> None:
    text = (
        f"Host gpu\n  HostName {ADDRESS}\n  Port {route.machine.port}\n  User {route.machine.user}\n"
        f"  ProxyJump first,{route.name(1)}\n"
        f"Host first\n  HostName {ADDRESS}\n  Port {route.jumps[0].port}\n  User {route.jumps[0].user}\n"
    )
    machine = route.configured(text, host="gpu", port=None, user="")
    assert await greet(machine) == b"there\n"
    assert await count_passing(route, machine) == [True, True]


async def test_what_the_machines_own_table_says_goes_before_the_configuration(route: Route) -> None:
    text = f"Host *\n  HostName {ADDRESS}\n  Port 1\n  User nobody\n  ProxyJump nowhere.invalid\n"
    machine = route.configured(text, jump_hosts=(route.name(0),))
    assert await count_passing(route, machine) == [True, False]


async def test_who_we_are_and_whom_we_trust_is_never_the_configurations_to_say(route: Route) -> None:
    other = route.folder / "first" / "client_key"
    text = f"Host *\n  IdentityFile {other}\n  UserKnownHostsFile /dev/null\n  ProxyCommand false\n  HostKeyAlias x\n"
    text += "  ForwardAgent yes\n  SendEnv *\n  RemoteCommand false\n  CertificateFile /nowhere\n"
    assert await greet(route.configured(text)) == b"there\n"
    (route.folder / "known_hosts").write_bytes(b"")
    with pytest.raises(HostKeyMismatch):
        await greet(route.configured(text + "  StrictHostKeyChecking no\n"))


async def test_a_configuration_that_makes_no_sense_is_told(route: Route) -> None:
    mark = route.folder / "ran"
    for text in (
        "Host gpu\n  Port many\n",
        "Host gpu\n  ProxyJump ssh://bastion\n",
        f'Match exec "touch {mark}"\n  Port 1\n',
        f'Host x\r"match" exec "touch {mark}"\r  Port 1\r',
        "Include other\n",
    ):
        with pytest.raises(Unreachable) as caught:
            await greet(route.configured(text, host="gpu"))
        assert str(caught.value) == "its ssh_config_file cannot be used; see the log for the reason"
    assert not mark.exists()
    (route.folder / "ssh_config").unlink()
    with pytest.raises(Unreachable):
        await greet(replace(route.machine, ssh_config_file=route.folder / "ssh_config"))


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("bastion", Hop("bastion")),
        ("ops@bastion.example:2222", Hop("bastion.example", 2222, "ops")),
        ("ops@[2001:db8::1]:22", Hop("2001:db8::1", 22, "ops")),
        ("[::1]", Hop("::1")),
        ("a@corp@bastion", None),
        ("-oProxyCommand=x", None),
        ("a b", None),
        ("$(id)@bastion", None),
        ("bastion;id", None),
        ("bastion:0", None),
        ("bastion:99999", None),
        ("ssh://bastion", None),
        ("one,two", None),
        ("::1", None),
        ("", None),
    ],
)
def test_a_jump_host_is_written_as_for_ssh(text: str, hop: Hop | None) -> None:
    if hop:
        assert parse_hop(text) == hop
    else:
        with pytest.raises(ValueError, match="is not a host like"):
            parse_hop(text)
