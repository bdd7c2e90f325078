"""Opens SSH connections to machines, with only the configured key and known hosts, through jump hosts if necessary.

The operator's own setup (`~/.ssh`, agent) is not read. If the configuration names an ssh_config file, only addresses,
ports, users and jump hosts are taken from it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import asyncssh
import structlog

from runner.model.machines import Machine
from runner.transport.host_errors import AccessDenied, HostError, HostKeyMismatch, Unreachable, no_answer
from runner.transport.machine_connection import MachineConnection, make_room

log = structlog.get_logger()

DEFAULT_PORT = 22
SILENCE_S = 15.0
"""How long a machine may be silent before it counts as gone: while connecting, and later between keep-alives."""
SIGNS_OF_LIFE = 3
"""The number of keep-alives within the time that a machine may be silent."""
HOST_KEY_KINDS = "+ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256"
"""The kinds of host keys that are accepted after the kinds in known_hosts. So a host with another key shows that key,
and the mismatch is reported."""

CIPHERS = "^aes256-gcm@openssh.com,aes128-gcm@openssh.com"
"""The preferred ciphers. With them, asyncssh takes a sixth of the time per packet that its own default takes."""

KEY_EXCHANGES = (
    "mlkem768x25519-sha256",
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group14-sha256",
)
"""The accepted methods. Methods with numbers that the machine chooses are left out, because an exchange with long
numbers would take most of a second."""

HOST = r"[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]"
USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
"""The forms of hosts and users. No character is special to a shell, because ssh passes jump hosts to a shell."""

STAYS_UNREADABLE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""The errors because of which a file cannot be read until an operator has acted. All other errors may be over in a
moment: EMFILE, ENFILE and ENOMEM, and EIO or ESTALE of a network disk."""

_HOP = re.compile(rf"((?P<user>{USER})@)?(?P<host>{HOST})(:(?P<port>[0-9]{{1,5}}))?")
_RUNS_MORE = re.compile(r"^(?:[^\S\n]|[\"'])*+(match|include)\b", re.IGNORECASE | re.MULTILINE)


class Hop(NamedTuple):
    """A host on the route, as in ssh's option -J: `user@host:port`."""

    host: str
    port: int | None = None
    user: str = ""


async def connect(machine: Machine, silence_s: float) -> MachineConnection:
    """Connect to a machine. Each host on the route may be silent for `silence_s`. Raises `HostError`."""
    asyncssh.set_log_level("WARNING")  # At INFO it logs addresses and every command.
    options = _make_options(machine, silence_s)
    hops = list_hops(machine)
    tunnel: MachineConnection | None = None
    try:
        for number, hop in enumerate(hops[:-1], 1):
            tunnel = await _connect_to(hop, tunnel, machine, options, silence_s, f"its jump host (number {number}): ")
        return await _connect_to(hops[-1], tunnel, machine, options, silence_s, "")
    except BaseException:
        if tunnel:
            tunnel.close()
        raise


async def _connect_to(
    hop: Hop,
    tunnel: MachineConnection | None,
    machine: Machine,
    options: Mapping[str, Any],
    silence_s: float,
    what: str,
) -> MachineConnection:
    """Connect to a host, directly or through the `tunnel` of the previous host, which is closed with the connection."""
    try:
        async with asyncio.timeout(silence_s):
            connection = await _open(hop, tunnel, machine, options, silence_s)
    except (OSError, ValueError, OverflowError, asyncssh.Error) as error:
        found = _classify(error, silence_s)
        raise type(found)(f"{what}{found}") from error
    if tunnel:
        connection.set_tunnel(tunnel)
    return connection


async def _open(
    hop: Hop, tunnel: MachineConnection | None, machine: Machine, options: Mapping[str, Any], silence_s: float
) -> MachineConnection:
    """Do the same as `asyncssh.connect`, which cannot use a class of our own for the connection."""
    loop = asyncio.get_running_loop()
    chosen = await asyncssh.SSHClientConnectionOptions.construct(
        host=hop.host, port=hop.port or DEFAULT_PORT, username=hop.user or (), **options
    )
    chosen.waiter = loop.create_future()
    connection = MachineConnection(loop, chosen, machine.name, silence_s)
    try:
        if tunnel:
            receive = cast(asyncssh.SSHTCPSession[bytes], connection.reading)  # It has all methods that asyncssh calls.
            channel, _ = await tunnel.create_connection(lambda: receive, chosen.host, chosen.port)
            await make_room(channel)
        else:
            await loop.create_connection(lambda: connection.reading, chosen.host, chosen.port)
        await chosen.waiter
    except BaseException:
        chosen.waiter.cancel()
        connection.abort()
        raise
    return connection


async def fetch_host_key(hop: Hop, silence_s: float) -> asyncssh.SSHKey:
    """The host key that a host shows to anybody, of our preferred kind. Raises `HostError`."""
    asyncssh.set_log_level("WARNING")
    try:
        async with asyncio.timeout(silence_s):
            key = await asyncssh.get_server_host_key(hop.host, hop.port or DEFAULT_PORT, config=None)
    except (OSError, ValueError, OverflowError, asyncssh.Error) as error:
        raise _classify(error, silence_s) from error
    if key is None:
        raise Unreachable("it showed no host key")
    return key


def _make_options(machine: Machine, silence_s: float) -> dict[str, Any]:
    """The options for all hosts on the route."""
    return {
        "known_hosts": _read_known_hosts(machine),
        "client_keys": [_read_client_key(machine)],
        "server_host_key_algs": HOST_KEY_KINDS,
        "kex_algs": KEY_EXCHANGES,
        "encryption_algs": CIPHERS,
        # A malicious machine could send a packet that unpacks to a thousand times its size.
        "compression_algs": ["none"],
        "config": None,
        "agent_path": None,
        "x509_trusted_certs": None,
        "gss_host": None,
        "host_based_auth": False,
        "kbdint_auth": False,
        "password_auth": False,
        "login_timeout": silence_s,
        "keepalive_interval": silence_s / SIGNS_OF_LIFE,
        "keepalive_count_max": SIGNS_OF_LIFE,
    }


def list_hops(machine: Machine) -> list[Hop]:
    """The hosts on the route to a machine. The last one is the machine. Raises `HostError`."""
    target = Hop(machine.host, machine.port, machine.user)
    try:
        if not machine.ssh_config_file:
            return [*map(parse_hop, machine.jump_hosts), target]
        check_ssh_config(machine.ssh_config_file)
        target, jumps = _look_up(target, machine.ssh_config_file)
        names = machine.jump_hosts or jumps
        return [*(_look_up(parse_hop(name), machine.ssh_config_file)[0] for name in names), target]
    except (OSError, ValueError, asyncssh.Error) as error:
        log.warning("ssh.configuration_unusable", machine=machine.name, reason=str(error))
        raise Unreachable("its ssh_config_file cannot be used; see the log for the reason") from error


def check_ssh_config(path: Path) -> None:
    """Raise `ValueError` for a file that runs programs or includes other files, and `OSError` if it cannot be read."""
    if _RUNS_MORE.search(path.read_text()):
        raise ValueError("may contain neither Match nor Include")


def _look_up(hop: Hop, config: Path) -> tuple[Hop, tuple[str, ...]]:
    """The address of a host with this name, and the names of its jump hosts. Nothing else is read from the file."""
    found = asyncssh.SSHClientConnectionOptions(
        host=hop.host,
        port=hop.port or (),
        username=hop.user or (),
        config=[str(config)],
        known_hosts=None,
        client_keys=None,
        agent_path=None,
        pkcs11_provider=None,
    )
    jumps = tuple(found.tunnel.split(",")) if isinstance(found.tunnel, str) else ()
    return Hop(found.host, found.port, found.username), jumps


def parse_hop(text: str) -> Hop:
    """Parse a host as in ssh's option -J. Raises `ValueError`."""
    found = _HOP.fullmatch(text)
    port = int(found["port"]) if found and found["port"] else None
    if not found or (port is not None and not 1 <= port <= 65_535):
        raise ValueError("is not a host like user@host:port")
    return Hop(found["host"].strip("[]"), port, found["user"] or "")


def _classify(error: Exception, silence_s: float) -> HostError:
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return HostKeyMismatch("its host key is not in the known_hosts file")
        case asyncssh.PermissionDenied():
            return AccessDenied("login failed: it did not accept our user name and key")
        case TimeoutError():
            return no_answer(silence_s)
        case socket.gaierror():
            return Unreachable("host name not found")
        case OSError(errno=int(number)):
            return Unreachable(f"the connection failed ({os.strerror(number).lower()})")
        case _:
            return Unreachable("the connection was closed before it was set up")


def _read_known_hosts(machine: Machine) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.read_known_hosts(str(machine.known_hosts_file or ""))
    except (OSError, ValueError) as error:
        what = "its known_hosts file cannot be read, so its host key cannot be checked"
        raise _say_unreadable(error, what, HostKeyMismatch) from error


def _read_client_key(machine: Machine) -> asyncssh.SSHKey:
    try:
        return asyncssh.read_private_key(str(machine.client_key_file or ""))
    except (OSError, ValueError) as error:
        raise _say_unreadable(error, "the key file for it cannot be read", AccessDenied) from error


def _say_unreadable(error: Exception, what: str, permanent: type[HostError]) -> HostError:
    """The error for a file that the service cannot read. It is not permanent if it may be over in a moment."""
    if isinstance(error, OSError) and error.errno not in STAYS_UNREADABLE:
        return Unreachable(f"{what} ({os.strerror(error.errno or errno.EIO).lower()})")
    return permanent(what)
