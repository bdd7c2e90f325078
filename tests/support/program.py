"""`ptq-bot` as a process of its own, seen from outside only.

Most processes are forked from one that has imported the program's many modules: importing takes longer than most
tests. Tests of the installed script, or of what the program does at its start, start a new process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.request import urlopen

from tests.support.forked_program import be_program, hear_ctrl_c

PROGRAM = Path(sys.executable).with_name("ptq-bot")
PATIENCE_S = 120.0

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.warm"])

_LOOKING = threading.Lock()
"""Only one caller may ask whether a forked process has ended: the kernel tells the first one."""


class Process(Protocol):
    """What a process of the program offers, as `subprocess.Popen` does."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A process of the program that was forked from one that is warm."""

    def __init__(self, words: list[str], environ: Mapping[str, str], stdout: Path, stderr: Path) -> None:
        self._process = PROCESSES.Process(target=be_program, args=(words, {**environ}, stdout, stderr), daemon=True)
        with _LOOKING:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    def poll(self) -> int | None:
        with _LOOKING:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (PATIENCE_S if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(PROGRAM), PATIENCE_S if timeout is None else timeout)
            time.sleep(0.005)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the program did, once it has ended by itself."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = Forked(words, os.environ | environ, stdout, stderr)
        try:
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, status, stdout.read_text(), stderr.read_text())


def run_installed(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the installed script did, once it has ended by itself."""
    command, env = [PROGRAM, *arguments], os.environ | environ
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@dataclass
class Running:
    process: Process
    written: Path
    """What it writes, stdout and stderr."""

    def text(self) -> str:
        return self.written.read_text()

    def stop(self, number: signal.Signals) -> tuple[int, float]:
        """Its exit status, and the seconds that it took after the signal."""
        asked_at = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S), time.monotonic() - asked_at

    def wait_for(self, words: str) -> None:
        """Return once it has written these words."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.text():
            assert self.process.poll() is None, f"it has ended: {self.text()}"
            assert time.monotonic() < deadline, f"{words!r} never came: {self.text()}"
            time.sleep(0.02)

    def wait_for_http(self, url: str) -> None:
        """Return once it answers there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, f"it has ended: {self.text()}"
            assert time.monotonic() < deadline, f"{url} never answered: {self.text()}"
            try:
                urlopen(url, timeout=5).close()
            except OSError:
                time.sleep(0.02)
            else:
                return


@contextmanager
def start(folder: Path, *arguments: str | Path, **environ: str) -> Iterator[Running]:
    """The program in the background; killed when the block ends, if it has not ended by then."""
    written = folder / "ptq-bot.log"
    written.touch()
    with _in_background(
        Forked([str(word) for word in arguments], os.environ | environ, written, written), written
    ) as it:
        yield it


@contextmanager
def start_installed(folder: Path, *arguments: str | Path, **environ: str) -> Iterator[Running]:
    """The same with the installed script."""
    written = folder / "ptq-bot.log"
    with written.open("ab") as output:
        command, env = [PROGRAM, *arguments], os.environ | environ
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=hear_ctrl_c,
        )
    with _in_background(process, written) as running:
        yield running


@contextmanager
def _in_background(process: Process, written: Path) -> Iterator[Running]:
    try:
        yield Running(process, written)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until_no_process(words: str) -> None:
    """Return once `find_processes` finds none."""
    deadline = time.monotonic() + PATIENCE_S
    while found := find_processes(words):
        assert time.monotonic() < deadline, f"still alive: {found}"
        time.sleep(0.05)


def find_processes(words: str) -> dict[int, str]:
    """Every process, but this one, whose command line or working folder holds these words."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                where = str((folder / "cwd").readlink())
            except OSError:
                continue
            if words in command or words in where:
                found[int(folder.name)] = command
    return found
