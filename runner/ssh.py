"""How an SSH connection to a machine is made: by exactly our key and our known hosts, through jump hosts if need be.

Nothing of the operator's own set-up is read (`~/.ssh`, agent), but for a file that the configuration names. That may
say where a machine is and how one comes there; never who we are, and never whom we trust.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import asyncssh

from runner.host_errors import AccessDenied, HostError, HostKeyMismatch, Unreachable, silent_for
from runner.machines import Machine

SILENCE_S = 15.0
"""A machine that is silent for so long is not there: while we connect, and later when asked for a sign of life."""
SIGNS_OF_LIFE = 3
"""How often it is asked for one within that time."""
HOST_KEY_KINDS = "+ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256"
"""Accepted after the kinds that known_hosts has: a host with none of those must show its key to be told mismatched."""

_HOP = re.compile(
    r"((?P<user>[^@\s,-][^@\s,]*)@)?"
    r"(?P<host>\[[0-9A-Fa-f:]+\]|[^@:\s\[\],/-][^@:\s\[\],/]*)"
    r"(:(?P<port>[0-9]{1,5}))?"
)


class Hop(NamedTuple):
    """A host on the way, as ssh's option -J names it: `user@host:port`."""

    host: str
    port: int | None = None
    user: str = ""


async def connect(machine: Machine, silence_s: float) -> asyncssh.SSHClientConnection:
    """Connect to a machine; each host may be silent for so long. Raises `HostError`."""
    asyncssh.set_log_level("WARNING")  # At INFO it writes addresses and every command.
    options = _make_options(machine, silence_s)
    target = Hop(machine.host, machine.port, machine.user)
    tunnel: asyncssh.SSHClientConnection | None = None
    try:
        for number, hop in enumerate(_list_jumps(machine, options), 1):
            tunnel = await _connect_to(hop, tunnel, options, silence_s, f"its jump host (number {number}): ")
        return await _connect_to(target, tunnel, options, silence_s, "")
    except BaseException:
        if tunnel:
            tunnel.close()
        raise


async def _connect_to(
    hop: Hop, tunnel: asyncssh.SSHClientConnection | None, options: Mapping[str, Any], silence_s: float, what: str
) -> asyncssh.SSHClientConnection:
    """Connect to a host through the one before, which is closed with it."""
    try:
        connection = await asyncssh.connect(
            hop.host, hop.port or (), username=hop.user or (), tunnel=tunnel, proxy_command=None, **options
        )
    except (OSError, ValueError, asyncssh.Error) as error:
        found = _classify(error, silence_s)
        raise type(found)(f"{what}{found}") from error
    connection.set_tunnel(tunnel)
    return connection


def _make_options(machine: Machine, silence_s: float) -> dict[str, Any]:
    """What is the same for every host on the way."""
    return {
        "known_hosts": _read_known_hosts(machine),
        "client_keys": [_read_client_key(machine)],
        "server_host_key_algs": HOST_KEY_KINDS,
        "config": [str(machine.ssh_config_file)] if machine.ssh_config_file else None,
        "agent_path": None,
        "x509_trusted_certs": None,
        "gss_host": None,
        "host_based_auth": False,
        "kbdint_auth": False,
        "password_auth": False,
        "connect_timeout": silence_s,
        "login_timeout": silence_s,
        "keepalive_interval": silence_s / SIGNS_OF_LIFE,
        "keepalive_count_max": SIGNS_OF_LIFE,
    }


def _list_jumps(machine: Machine, options: Mapping[str, Any]) -> list[Hop]:
    """The hosts before a machine, in the order in which they are passed."""
    names = machine.jump_hosts
    if machine.ssh_config_file and not names:
        try:
            found = asyncssh.SSHClientConnectionOptions(host=machine.host, **options).tunnel
        except (OSError, ValueError, asyncssh.Error) as error:
            raise Unreachable(f"its ssh_config_file cannot be used ({error})") from error
        names = tuple(found.split(",")) if isinstance(found, str) else ()
    return [parse_hop(name) for name in names]


def parse_hop(text: str) -> Hop:
    """A host as ssh's option -J names it. Raises `ValueError`."""
    found = _HOP.fullmatch(text.strip())
    if not found:
        raise ValueError("is no host like user@host:port")
    return Hop(found["host"].strip("[]"), int(found["port"]) if found["port"] else None, found["user"] or "")


def _classify(error: OSError | ValueError | asyncssh.Error, silence_s: float) -> HostError:
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return HostKeyMismatch("it showed a host key that the known_hosts file does not hold for it")
        case asyncssh.PermissionDenied():
            return AccessDenied("it did not accept our user name and key")
        case TimeoutError():
            return silent_for(silence_s)
        case socket.gaierror():
            return Unreachable("its host name is not known")
        case OSError(errno=int(number)):
            return Unreachable(f"the connection could not be made ({os.strerror(number).lower()})")
        case _:
            return Unreachable("the connection broke off before it was set up")


def _read_known_hosts(machine: Machine) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.read_known_hosts(str(machine.known_hosts_file or ""))
    except (OSError, ValueError) as error:
        raise HostKeyMismatch("its known_hosts file cannot be read, so its host key cannot be checked") from error


def _read_client_key(machine: Machine) -> asyncssh.SSHKey:
    try:
        return asyncssh.read_private_key(str(machine.client_key_file or ""))
    except (OSError, ValueError) as error:
        raise AccessDenied("the key file for it cannot be read") from error
