"""Debian's real sshd on a loopback port, with the same outside as `bot.demo.sshd.EmbeddedSshServer`."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from bot.demo.loopback import ADDRESS, find_free_port
from bot.demo.sshd import write_keys, write_known_hosts

CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv SHLVL=1 {environment}
"""
"""The shell level keeps Debian's bash from reading `.bashrc`: what stands there is the developer's, and can be slow."""


def find_sshd() -> Path | None:
    """Where OpenSSH's server is; /usr/sbin is not on everybody's PATH."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


class OpenSshServer:
    """One sshd, with its keys in `folder`. A second start takes the same port and keys."""

    def __init__(self, folder: Path, program: Path, home: Path | None = None) -> None:
        """`home` stands for the account's own, to which the machine-side program may add keys."""
        self.client_key_file = folder / "client_key"
        self.known_hosts_file = folder / "known_hosts"
        self.user = getpass.getuser()
        self.port = 0
        self._folder = folder
        self._program = program
        self._home = home
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Listen. AttemptCounts another port when somebody was quicker to take the one that was free."""
        host_key = write_keys(self._folder)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Debian's unit file makes it elsewhere.
        for port in [self.port] if self.port else [find_free_port() for _ in range(5)]:
            if await self._listen(port):
                self.port = port
                write_known_hosts(self.known_hosts_file, port, host_key)
                return
        raise AssertionError(f"sshd does not start: {(self._folder / 'log').read_text()}")

    async def stop(self) -> None:
        """End the server and every connection. What has detached itself lives on."""
        if self._process and self._process.returncode is None:
            connections = self._connections()
            self._process.terminate()
            await self._process.wait()
            _kill(connections)

    @property
    def pid(self) -> int:
        """Of the server itself, while it runs."""
        assert self._process
        return self._process.pid

    async def cut_connections(self) -> None:
        """Kill the processes that hold the connections; sshd itself goes on."""
        _kill(self._connections())

    def _connections(self) -> list[int]:
        return _sshd_below(self.pid)

    async def _listen(self, port: int) -> bool:
        config, log = self._folder / "sshd_config", self._folder / "log"
        words = {"keys": f"{self._folder}/authorized_keys", "environment": ""}
        if self._home:
            keys = f"{words['keys']} {self._home}/.ssh/authorized_keys"
            words = {"keys": keys, "environment": f"HOME={self._home}"}
        config.write_text(CONFIG.format(address=ADDRESS, port=port, folder=self._folder, **words))
        with log.open("wb") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                self._program,
                "-D",
                "-e",
                "-f",
                config,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=stderr,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # What else a developer has there is none of its.
            )
        while self._process.returncode is None:
            if "Server listening on" in log.read_text():
                return True
            await asyncio.sleep(0.005)
        return False


def _sshd_below(pid: int) -> list[int]:
    """The sshd processes that descend from one: a monitor for each connection and, below it, who talks."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            if Path(f"/proc/{child}/comm").read_text().startswith("sshd"):
                found += [child, *_sshd_below(child)]
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
