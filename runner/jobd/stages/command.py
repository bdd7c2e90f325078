"""Runs one command, and ends it as a person would: by Ctrl-C first, for it may have something left to say."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..files import Failure
from ..sandbox.processes import reap_orphans
from ..sandbox.sandbox import Cell
from .log import PipeOutput

TICK_S = 0.1
MAX_REASON = 1_000


class NotRunnable(Exception):  # noqa: N818 - as a word, and why, it is part of a sentence
    """A program cannot be started."""


class Leash(NamedTuple):
    """How long a command may go on."""

    deadline: float
    """Of the monotonic clock."""
    stop: Path | None
    """A file that is there once the command should end."""
    grace_s: float
    """How long it may take to end once it was told to."""
    objection: Path | None = None
    """A file that is there once a watcher objects to it."""

    def find_reason(self) -> str | None:
        """Why the command should end: its time is over (`timed_out`), somebody wants it (`stopped`), or objects."""
        if time.monotonic() > self.deadline:
            return "timed_out"
        if self.objection and self.objection.exists():
            return "objected"
        return "stopped" if self.stop and os.path.lexists(self.stop) else None


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    """As a shell would give it: 128 and the number of the signal that killed it."""
    reason: str | None
    """Why it was told to end, as `Leash` says it; None when it ended by itself."""

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""
        return self.reason == "timed_out"

    @property
    def stopped(self) -> bool:
        """Whether somebody wanted it to end."""
        return self.reason == "stopped"


def start(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: Path, cell: Cell | None
) -> subprocess.Popen[bytes]:
    """Start a command, with its output in a pipe. Raises `NotRunnable`, and `Failure` when it does not get its cell."""
    reader, writer = os.pipe()

    def enter() -> None:
        try:
            assert cell
            cell.enter(cwd)
        except BaseException as error:
            os.write(writer, str(error).encode()[:MAX_REASON])
            raise

    try:
        with stdin.open("rb") as file:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=enter if cell else None,
            )
    except subprocess.SubprocessError:
        os.set_blocking(reader, False)
        reason = os.read(reader, MAX_REASON).decode(errors="replace")
        raise Failure("not_sealed", f"a command could not be sealed from the rest of the machine: {reason}") from None
    except OSError as error:
        raise NotRunnable(f"{error.filename or argv[0]} cannot be run: {(error.strerror or '').lower()}") from None
    finally:
        os.close(reader)
        os.close(writer)


def follow(process: subprocess.Popen[bytes], output: PipeOutput, leash: Leash) -> str | None:
    """Copy a command's output until it ends, or its grace is over. Returns why it was told to end, if it was."""
    reason, killed_at = None, 0.0
    while process.poll() is None:
        if reason and time.monotonic() > killed_at:
            break
        if not reason:
            reason = leash.find_reason()
            if reason:
                killed_at = time.monotonic() + leash.grace_s
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
        if not output.copy(TICK_S):
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK_S)
        output.add_tail()
        reap_orphans(process.pid)
    return reason
