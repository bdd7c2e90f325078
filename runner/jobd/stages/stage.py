"""A stage: a process that outlives the connection, for work that takes long. It is started only once (`starting`).

The process holds a lock all its life. If the lock is free and there is no final state, the stage was killed.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths, describe, is_full, read_json, write_file, write_reserved
from ..safe_paths import reopen
from ..sandbox.processes import kill_processes
from ..sandbox.sandbox import open_sandbox
from ..sandbox.shortage import PATIENCE_S, wait_for_room
from .command import CommandResult, NotRunnable, StopConditions, follow, start
from .log import Log, PipeOutput
from .tail import TailReader

GRACE_S = 5.0
"""How long an operator's command may take to end before it is killed."""

KILLED_S = 5.0
"""How long a command may take to end after it was killed. One that hangs in the kernel takes longer."""

PR_SET_CHILD_SUBREAPER = 36
"""From Linux's `prctl.h`: orphaned descendants become children of this process, not of init."""


def run_stage(stage: str, work: Callable[[Stage], dict[str, Any]], request_path: str) -> None:
    """Run a stage, and write its final state."""
    request = read_json(Path(request_path))
    job = JobPaths(request)
    # If the service was started with signals ignored, commands would ignore the signal that ends them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        final = {"state": "done", "result": work(Stage(request))}
    except Exception as error:
        final = {"state": "failed", **describe(error)}
    kill_processes(job.id)
    reopen(job.root)
    write_reserved(job.of_stage(stage, "json"), final)


class Stage:
    """A running stage: runs commands one after the other, and has a deadline."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.job = JobPaths(request)
        self.request = request
        self.limit_s: float = request["timeout_s"]
        self.deadline: float = time.monotonic() + self.limit_s
        self.log = Log(request["max_log_bytes"])
        self.watchers: list[Callable[[], None]] = []
        """Each starts a process that watches the next command. It can end the command, and ends with the command."""
        self.took: dict[str, float] = {}
        """Seconds for each part of the work."""
        self._said = ""

    @property
    def patience_s(self) -> float:
        """How long to wait until the machine has room for a sandbox."""
        return min(PATIENCE_S, self.deadline - time.monotonic())

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: Path | None = None,
        drop_lines: Iterable[str] = (),
        tail: TailReader | None = None,
        stop: Path | None = None,
        is_told: Callable[[], bool] = lambda: False,
        grace_s: float = GRACE_S,
        in_sandbox: bool = True,
        start_beside: Callable[[], None] | None = None,
    ) -> CommandResult:
        """Run a command, and then kill everything that it started.

        The command is told to end when its time is over, when `stop` exists, or when `is_told` says that a message is
        there for it. `StopConditions` has these conditions.

        Its standard input is the file `stdin`, or empty. After it is told to end, it may take `grace_s`. Its output
        goes to the log, without lines that begin with one of `drop_lines`, and with the lines of `tail`. A command of
        jobd itself, not of the job, is not `in_sandbox`. `start_beside` starts a process beside the command, in the
        same namespaces. Raises `NotRunnable` if it cannot be started, and `Failure`, also if it cannot be killed.
        """
        self.log.last_words = b""
        sandbox = open_sandbox(self.job, self.request, start_beside) if in_sandbox else None
        if start_beside and not sandbox:
            start_beside()
        self.job.watcher_stop.unlink(missing_ok=True)  # It may be from an earlier command.
        for start_watcher in self.watchers:
            start_watcher()
        source = stdin or Path(os.devnull)
        process = wait_for_room(lambda: start(argv, env, cwd, source, sandbox), self.patience_s)
        assert process.stdout
        output = PipeOutput(process.stdout.fileno(), self.log, drop_lines, tail)
        conditions = StopConditions(self.deadline, stop, grace_s, self.job.watcher_stop, is_told)
        reason = follow(process, output, conditions)
        kill_processes(self.job.id)
        output.finish()
        process.stdout.close()
        try:
            status = process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            raise Failure("still_alive", "a process of the job cannot be killed") from None
        found = read_json(self.job.watcher_stop) if reason == "ended_by_watcher" else {}
        return CommandResult(128 - status if status < 0 else status, reason, found.get("reason"))

    def do_inside(self, work: Callable[[], Any], patience_s: float | None = None) -> Any:
        """Do jobd's own work on the job's files in the job's sandbox, if it has one (`Sandbox.do`).

        Waits up to `patience_s` for room. Raises `Failure`, and what the work raises.
        """
        sandbox = open_sandbox(self.job, self.request)
        if not sandbox:
            return work()
        return wait_for_room(lambda: sandbox.do(work), self.patience_s if patience_s is None else patience_s)

    @contextmanager
    def at_most(self, limit_s: float) -> Iterator[None]:
        """Give the block this time, but no more than the stage has left."""
        deadline = self.deadline
        self.deadline = min(deadline, time.monotonic() + limit_s)
        try:
            yield
        finally:
            self.deadline = deadline

    @contextmanager
    def with_own_limit(self, limit_s: float) -> Iterator[None]:
        """Give the block a limit of its own. What it takes does not count: the stage's deadline is later by that."""
        began, stage_limit_s, deadline = time.monotonic(), self.limit_s, self.deadline
        self.limit_s, self.deadline = limit_s, began + limit_s
        try:
            yield
        finally:
            self.limit_s, self.deadline = stage_limit_s, deadline + (time.monotonic() - began)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the duration of the block to `took`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.took[what] = self.took.get(what, 0.0) + time.monotonic() - began

    def say(self, sentence: str) -> None:
        """Write a sentence to the log, unless it repeats the last one."""
        if sentence != self._said:
            self.log.say(f"[{sentence}]")
        self._said = sentence

    def say_phase(self, phase: str) -> None:
        """Tell the service what the stage is busy with. `phase` is a word of the protocol, or empty."""
        write_file(self.job.phase, phase)

    def must(
        self,
        name: str,
        what: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        in_sandbox: bool = True,
        start_beside: Callable[[], None] | None = None,
    ) -> None:
        """Run a command that has to succeed. Raises `Failure` with this name, or with a more precise one."""
        self.log.say(f"$ {show_command(argv)}")
        try:
            ended = self.run(argv, env, cwd, in_sandbox=in_sandbox, start_beside=start_beside)
        except NotRunnable as error:
            # Inside the sandbox, git may fail because the job closed or removed the worktree. Git itself exists: it
            # ran outside before.
            is_missing = argv[0] == "git" and not in_sandbox
            raise Failure("no_git" if is_missing else name, f"{what}: {error}") from None
        if ended.timed_out:
            raise Failure("timed_out", f"{what}: it was stopped after {self.limit_s} seconds")
        if ended.objection:
            raise Failure("ended_by_watcher", f"{what}: {ended.objection}")
        if ended.status:
            tail = self.log.last_lines
            full = is_full(self.job.control, tail)
            raise Failure("disk_full" if full else name, f"{what} (exit status {ended.status}):\n{tail}")


def show_command(argv: Sequence[str]) -> str:
    """A command as people would type it: an operator's shell line, or git without the settings that jobd adds."""
    if [*argv[:2]] == ["/bin/sh", "-ec"]:
        return argv[2].replace('"$@"', " ".join(argv[4:]))
    return re.sub(r"^git( -c \S+)+", "git", " ".join(argv))
