"""The key that a host shows over SSH: fetched, compared with what is known of it, and written down.

A key that is fetched is not trusted yet: somebody has to compare its fingerprint with what the machine itself says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import asyncssh

from runner.own_files import make_private_folder, open_private
from runner.transport import ssh
from runner.transport.host_errors import HostError
from runner.transport.ssh import DEFAULT_PORT

FETCH_S = 15.0
"""How long a host may take to show its key, in seconds."""


class NoHostKey(Exception):  # noqa: N818
    """No key was to be had, or not the one that is known; the message is for whoever asked."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """What a host has shown."""

    host: str
    port: int
    public: str
    """The key as one line, without a comment: its kind and base64."""
    fingerprint: str
    """As `ssh-keygen -l` prints it: `SHA256:...`."""

    @property
    def line(self) -> str:
        """The line of a known_hosts file."""
        name = self.host if self.port == DEFAULT_PORT else f"[{self.host}]:{self.port}"
        return f"{name} {self.public}\n"


async def fetch_host_key(host: str, port: int = DEFAULT_PORT) -> HostKey:
    """Ask a host for its key, without logging in. Raises `NoHostKey`."""
    try:
        key = await ssh.fetch_host_key(ssh.Hop(host, port), FETCH_S)
    except HostError as error:
        raise NoHostKey(f"it shows no host key: {error}") from error
    kind, base64 = key.export_public_key().decode().split()[:2]
    return HostKey(host, port, f"{kind} {base64}", key.get_fingerprint())


def is_known(path: Path, key: HostKey) -> bool:
    """Whether a known_hosts file has this key of the host. Raises `NoHostKey` for another one, or a broken file."""
    if not path.exists():
        return False
    try:
        trusted, revoked = _match(path, key)
    except (OSError, ValueError):
        raise NoHostKey(f"{path} cannot be read as a known_hosts file") from None
    if key.public in revoked:
        raise NoHostKey(f"{path} says that its key is revoked")
    if trusted and key.public not in trusted:
        raise NoHostKey(f"{path} has another key of it: if the host was made anew, take that line out")
    return key.public in trusted


def _match(path: Path, key: HostKey) -> tuple[set[str], set[str]]:
    """The keys that are trusted of the host, and those that are revoked."""
    matched = asyncssh.read_known_hosts(str(path)).match(key.host, "", key.port)
    trusted, _, revoked = matched[:3]
    return _spell(trusted), _spell(revoked)


def _spell(keys: object) -> set[str]:
    assert isinstance(keys, (list, tuple))
    return {" ".join(key.export_public_key().decode().split()[:2]) for key in keys}


def remember(path: Path, key: HostKey) -> None:
    """Add the key to a known_hosts file, once."""
    if is_known(path, key):
        return
    before = path.read_text() if path.exists() else ""
    newline = "" if before.endswith("\n") or not before else "\n"
    make_private_folder(path.parent)
    with open(path, "a", opener=open_private) as file:
        file.write(f"{newline}{key.line}")
