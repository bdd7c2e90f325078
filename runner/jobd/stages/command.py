"""Runs one command, and ends it as a person would: with Ctrl-C first, so that it can still write something."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..files import open_plain
from ..sandbox.namespaces import leave_descriptors
from ..sandbox.processes import reap_orphans
from ..sandbox.sandbox import Sandbox
from ..sandbox.shortage import NO_PROCESS, Shortage, explain_refusal, explain_shortage
from .log import PipeOutput

TICK_S = 0.1
MAX_REASON = 1_000


class NotRunnable(Exception):  # noqa: N818 - its message is part of a sentence
    """A program cannot be started."""


class StopConditions(NamedTuple):
    """When a command has to end."""

    deadline: float
    """A time of the monotonic clock."""
    stop: Path | None
    """The command has to end once this file exists."""
    grace_s: float
    """How long the command may take to end after it was told to."""
    watcher_stop: Path | None = None
    """A watcher creates this file to end the command."""
    is_told: Callable[[], bool] = lambda: False
    """Whether the command has to end because there is a message. Its session then continues with the message."""

    def find_reason(self) -> str | None:
        """Why the command has to end: its time is over (`timed_out`), a watcher ended it (`ended_by_watcher`), it was
        stopped (`stopped`), or there is a message for it (`told`)."""
        if time.monotonic() > self.deadline:
            return "timed_out"
        if self.watcher_stop and self.watcher_stop.exists():
            return "ended_by_watcher"
        if self.stop and os.path.lexists(self.stop):
            return "stopped"
        return "told" if self.is_told() else None


class CommandResult(NamedTuple):
    """How a command ended."""

    status: int
    """As a shell reports it: 128 plus the signal's number if a signal killed it."""
    reason: str | None
    """Why it was told to end, as `StopConditions.find_reason` says it. None if it ended by itself."""
    objection: str | None = None
    """Why a watcher ended it, as a clause for people. None if no watcher ended it."""

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""
        return self.reason == "timed_out"

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it."""
        return self.reason == "stopped"


def start(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: Path, sandbox: Sandbox | None
) -> subprocess.Popen[bytes]:
    """Start a command with its output in a pipe.

    Raises `NotRunnable`, `Failure` if it cannot enter its sandbox, and `Shortage` if the machine has no room for it.
    """
    reader, writer = os.pipe()

    def enter() -> None:
        try:
            assert sandbox
            sandbox.enter(cwd)
            leave_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        except BaseException as error:
            number = error.errno if isinstance(error, OSError) else None
            os.write(writer, f"{number or 0} {error}".encode()[:MAX_REASON])
            raise

    try:
        # Opened without following links, because another job may have put one in place of this job's file.
        with open(stdin, "rb", opener=open_plain) as file:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=enter if sandbox else None,
            )
    except subprocess.SubprocessError:
        os.set_blocking(reader, False)
        number, _, reason = os.read(reader, MAX_REASON).decode(errors="replace").partition(" ")
        raise explain_refusal(int(number) if number.isdecimal() else None, reason) from None
    except OSError as error:
        if error.errno in NO_PROCESS:
            raise Shortage(explain_shortage(error.errno)) from None
        raise NotRunnable(f"{error.filename or argv[0]} cannot run: {(error.strerror or '').lower()}") from None
    finally:
        os.close(reader)
        os.close(writer)


def follow(process: subprocess.Popen[bytes], output: PipeOutput, conditions: StopConditions) -> str | None:
    """Copy a command's output until it ends, or until it must be killed. Returns why it was told to end, or None."""
    reason, killed_at = None, 0.0
    while process.poll() is None:
        if reason and time.monotonic() > killed_at:
            break
        if not reason:
            reason = conditions.find_reason()
            if reason:
                killed_at = time.monotonic() + conditions.grace_s
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
        if not output.copy(TICK_S):
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK_S)
        output.add_tail()
        reap_orphans(process.pid)
    return reason
