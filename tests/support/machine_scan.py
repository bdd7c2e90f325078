"""Looks through a machine of a test: its files, its processes, and what lies in /tmp for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bot.demo.playground import SshServer
from runner.jobd.proxy.sockets import FOLDERS, PREFIX
from runner.jobd.sandbox.processes import find_processes, read_process
from tests.support.sshd import OpenSshServer


def find_on_machine(machine: Path, ssh: SshServer, pattern: str) -> list[str]:
    """Where something is that matches. The service's own key of SSH lies there too, and is not looked at."""
    wanted = re.compile(pattern.encode())
    found = [where for where, content in look_through(machine, ssh) if wanted.search(content)]
    return [where for where in found if where != str(ssh.client_key_file)]


def look_through(machine: Path, ssh: SshServer) -> Iterator[tuple[str, bytes]]:
    """Whatever can be read of it, with where that is. It changes meanwhile: what goes away is passed over."""
    for top in (machine, *FOLDERS.glob(f"{PREFIX}????????")):
        for folder, _, names in os.walk(top):
            yield from read_each(Path(folder, name) for name in names)
    for pid in find_numbers(machine, ssh):
        process = Path(f"/proc/{pid}")
        yield from read_each(process / name for name in ("environ", "cmdline"))
        with suppress(OSError):
            yield from read_each([*(process / "fd").iterdir()])


def read_each(paths: Iterator[Path] | list[Path]) -> Iterator[tuple[str, bytes]]:
    """What is in each file, and where each link leads."""
    for path in paths:
        with suppress(OSError):
            if path.is_symlink():
                yield str(path), os.fsencode(path.readlink())
            elif path.is_file():
                yield str(path), path.read_bytes()


def find_numbers(machine: Path, ssh: SshServer) -> set[int]:
    """The processes of its jobs, which outlive their connections, and everything below its sshd, with that."""
    jobs = (machine / "workspace" / "jobs").glob("*")
    numbers = {process.pid for job in jobs for process in find_processes(job.name)}
    everything = [read_process(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    new = {ssh.pid} if isinstance(ssh, OpenSshServer) else set()
    while new:
        numbers |= new
        new = {process.pid for process in everything if process and process.parent in numbers} - numbers
    return numbers
