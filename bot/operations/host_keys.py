"""Fetches a machine's SSH host key, compares it with a known_hosts file, and adds it there.

A fetched key is not trusted yet. A person first has to compare its fingerprint with the one on the machine itself.
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
"""How long a host may take to send its key, in seconds."""


class NoHostKey(Exception):  # noqa: N818
    """The host sent no key, or one that contradicts the known_hosts file. The message is for the user."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key that a host sent."""

    host: str
    port: int
    public: str
    """The public key on one line, without a comment: its type and the base64 text."""
    fingerprint: str
    """In the format of `ssh-keygen -l`: `SHA256:...`."""

    @property
    def line(self) -> str:
        """The line for a known_hosts file."""
        name = self.host if self.port == DEFAULT_PORT else f"[{self.host}]:{self.port}"
        return f"{name} {self.public}\n"


async def fetch_host_key(host: str, port: int = DEFAULT_PORT) -> HostKey:
    """Get a host's key without logging in. Raises `NoHostKey`."""
    try:
        key = await ssh.fetch_host_key(ssh.Hop(host, port), FETCH_S)
    except HostError as error:
        raise NoHostKey(f"it shows no host key: {error}") from error
    kind, base64 = key.export_public_key().decode().split()[:2]
    return HostKey(host, port, f"{kind} {base64}", key.get_fingerprint())


def is_known(path: Path, key: HostKey) -> bool:
    """Whether a known_hosts file trusts this key for the host.

    Raises `NoHostKey` if the file only trusts other keys for it, revokes this key, or cannot be read.
    """
    if not path.exists():
        return False
    try:
        trusted, revoked = _match(path, key)
    except (OSError, ValueError):
        raise NoHostKey(f"{path} cannot be read as a known_hosts file") from None
    if key.public in revoked:
        raise NoHostKey(f"{path} says that its key is revoked")
    if trusted and key.public not in trusted:
        raise NoHostKey(f"{path} has another key of it: if the host was reinstalled, remove that line")
    return key.public in trusted


def _match(path: Path, key: HostKey) -> tuple[set[str], set[str]]:
    """The trusted and the revoked keys of the host."""
    matched = asyncssh.read_known_hosts(str(path)).match(key.host, "", key.port)
    trusted, _, revoked = matched[:3]
    return _spell(trusted), _spell(revoked)


def _spell(keys: object) -> set[str]:
    assert isinstance(keys, (list, tuple))
    return {" ".join(key.export_public_key().decode().split()[:2]) for key in keys}


def remember(path: Path, key: HostKey) -> None:
    """Add the key to a known_hosts file, unless it is there. Raises `NoHostKey` like `is_known`."""
    if is_known(path, key):
        return
    before = path.read_text() if path.exists() else ""
    newline = "" if before.endswith("\n") or not before else "\n"
    make_private_folder(path.parent)
    with open(path, "a", opener=open_private) as file:
        file.write(f"{newline}{key.line}")
