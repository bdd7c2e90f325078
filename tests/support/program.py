"""`ptq-bot` as a process of its own, seen from outside only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

PROGRAM = Path(sys.executable).with_name("ptq-bot")
PATIENCE_S = 120.0


def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the program did, once it has ended by itself."""
    command, env = [PROGRAM, *arguments], os.environ | environ
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@dataclass
class Running:
    process: subprocess.Popen[bytes]
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


def hear_ctrl_c() -> None:
    """Let SIGINT have its usual effect in a program that this process is about to become.

    A shell that starts a command in the background (`make test &`) lets it ignore SIGINT, and all that it starts
    inherit that. Python then leaves SIGINT ignored, as it should: the program would never hear our Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def start(folder: Path, *arguments: str | Path, **environ: str) -> Iterator[Running]:
    """The program in the background; killed when the block ends, if it has not ended by then."""
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
