"""A stage: what takes long, in a process of its own that outlives the connection, started once ever (`starting`).

It holds a lock for life: a free lock without a final state means that the stage was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths, describe, read_json, write_file, write_reserved
from ..sandbox.processes import kill_processes
from ..sandbox.sandbox import open_cell
from .command import Ended, Leash, NotRunnable, follow, start
from .log import Log, PipeOutput
from .tail import TailReader

GRACE_S = 5.0
"""For a command of the operator's, from the moment at which it is told to end to the one at which it is killed."""

TAIL_LINES = 20
PR_SET_CHILD_SUBREAPER = 36
"""From Linux's `prctl.h`: orphans below this process become its children, not init's."""


def run_stage(stage: str, work: Callable[[Stage], dict[str, Any]], request_path: str) -> None:
    """Be the stage, up to its final state."""
    request = read_json(Path(request_path))
    job = JobPaths(request)
    # Where the service was started with signals ignored, commands would ignore what tells them to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        final = {"state": "done", "result": work(Stage(request))}
    except Exception as error:
        final = {"state": "failed", **describe(error)}
    kill_processes(job.id)
    write_reserved(job.of_stage(stage, "json"), final)


class Stage:
    """A stage at work: it runs commands, one after the other, and knows until when."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.job = JobPaths(request)
        self.request = request
        self.limit_s: float = request["timeout_s"]
        self.deadline = time.monotonic() + self.limit_s
        self.log = Log(request["max_log_bytes"])
        self.took: dict[str, float] = {}
        """Seconds, by what they went to."""

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
        grace_s: float = GRACE_S,
        in_cell: bool = True,
        start_beside: Callable[[], None] | None = None,
    ) -> Ended:
        """Run a command to its end, the end of its time, or until `stop` is there; then nothing of it is alive.

        Its standard input is the file `stdin`, or empty. When told to end, it may take `grace_s` for it. Its output
        joins the log, without the lines that begin as `drop_lines` do, and with those of `tail`. What is not run for
        the job, but for us, is not `in_cell`. `start_beside` starts a process beside it, where it will be. Raises
        `NotRunnable` when it cannot be started, and `Failure`.
        """
        self.log.last_words = b""
        cell = open_cell(self.job, self.request, start_beside) if in_cell else None
        if start_beside and not cell:
            start_beside()
        process = start(argv, env, cwd, stdin or Path(os.devnull), cell)
        assert process.stdout
        output = PipeOutput(process.stdout.fileno(), self.log, drop_lines, tail)
        reason = follow(process, output, Leash(self.deadline, stop, grace_s, self.job.objection))
        kill_processes(self.job.id)
        status = process.wait()
        output.finish()
        process.stdout.close()
        return Ended(128 - status if status < 0 else status, reason)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Count the time of the block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.took[what] = self.took.get(what, 0.0) + time.monotonic() - began

    def say_phase(self, phase: str) -> None:
        """Let whoever asks know what takes so long: a word of the protocol, or none."""
        write_file(self.job.phase, phase)

    def must(
        self,
        name: str,
        what: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        in_cell: bool = True,
        start_beside: Callable[[], None] | None = None,
    ) -> None:
        """Run a command that has to succeed. Raises `Failure`, under this name unless a better one is known."""
        self.log.write(f"$ {show_command(argv)}\n".encode())
        try:
            ended = self.run(argv, env, cwd, in_cell=in_cell, start_beside=start_beside)
        except NotRunnable as error:
            raise Failure("no_git" if argv[0] == "git" else name, f"{what}: {error}") from None
        if ended.timed_out:
            raise Failure("timed_out", f"{what}: it was stopped after {self.limit_s} seconds")
        if ended.status:
            tail = "\n".join(self.log.last_words.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])
            full = os.strerror(errno.ENOSPC) in tail
            raise Failure("disk_full" if full else name, f"{what} (exit status {ended.status}):\n{tail}")


def show_command(argv: Sequence[str]) -> str:
    """A command as people would type it: an operator's own line, and git without the settings that it always has."""
    return argv[-1] if argv[0] == "/bin/sh" else re.sub(r"^git( -c \S+)+", "git", " ".join(argv))
