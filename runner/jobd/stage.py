"""A stage: what takes long, in a process of its own that outlives the connection, started once ever.

It holds a lock for life: a free lock without a final state means that the stage was killed.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .cell import open_cell
from .command import Ended, Leash, NotRunnable, follow, start
from .ended import not_ended
from .files import (
    MAX_JSON,
    Failure,
    Job,
    Piece,
    describe,
    open_plain,
    read_json,
    read_piece,
    reserve,
    try_lock,
    write_file,
    write_reserved,
)
from .log import Log, Output
from .processes import kill_processes
from .tail import Tail

GRACE_S = 5.0
"""For a command of the operator's, from the moment at which it is told to end to the one at which it is killed."""

TAIL_LINES = 20
MAX_TAIL, MAX_HEADING = 20_000, 400
"""Bytes of a worklog's end in which its last heading is looked for, and of that."""

PR_SET_CHILD_SUBREAPER = 36
"""From Linux's `prctl.h`: orphans below this process become its children, not init's."""


def start_stage(stage: str, request: Mapping[str, Any]) -> bool:
    """Start a stage. Of a race of starts one wins; False when it had been started before.

    Raises `Failure` when the job's environment was cleaned.
    """
    job = Job(request)
    with not_ended(job):
        return _start(job, stage, request)


def _start(job: Job, stage: str, request: Mapping[str, Any]) -> bool:
    job.control.mkdir(mode=0o700, parents=True, exist_ok=True)
    written, log_path, text = job.of_stage(stage, "request"), job.of_stage(stage, "log"), json.dumps(request)
    if len(text) > MAX_JSON:
        raise Failure("bad_request", f"the request is larger than {MAX_JSON} bytes")
    with open_lock(job, stage) as lock, open(log_path, "ab", opener=open_plain) as log:
        if not try_lock(lock.fileno()) or written.exists():
            return False
        reserve(job.of_stage(stage, "json"))
        write_file(written, text)
        subprocess.Popen(
            [sys.executable, "-I", sys.argv[0], "stage", stage, str(written)],
            env={**os.environ, "PTQ_JOB_ID": job.id},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock.fileno()],
            start_new_session=True,
            cwd=job.workspace,
        ).returncode = 0  # Nobody will wait for it: it outlives us.
    return True


def run_stage(stage: str, work: Callable[[Stage], dict[str, Any]], request_path: str) -> None:
    """Be the stage, up to its final state."""
    request = read_json(Path(request_path))
    job = Job(request)
    # Where the service was started with signals ignored, commands would ignore what tells them to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        final = {"state": "done", "result": work(Stage(request))}
    except Exception as error:
        final = {"state": "failed", **describe(error)}
    kill_processes(job.id)
    write_reserved(job.of_stage(stage, "json"), final)


def poll_stage(stage: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """How a stage stands, and a piece of its log. The log of a stage that has ended is whole."""
    job = Job(request)
    final = read_state(job, stage)
    note_asked(job)
    piece = read_piece(job.of_stage(stage, "log"), request["log_offset"], request["log_limit"]) or Piece(b"", 0)
    return {
        "state": final.get("state"),
        "error": final.get("error"),
        "message": final.get("message"),
        "result": final.get("result", {}),
        "log": base64.b64encode(piece.data).decode(),
        "log_size": piece.size,
        "heading": find_heading(job) if stage == "agent" else "",
        "phase": (read_piece(job.phase, 0, 100) or Piece(b"", 0)).data.decode(errors="replace"),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


def find_heading(job: Job) -> str:
    """The last heading of the worklog as it is now: what the agent says that it tries."""
    worklog = job.output / "worklog.md"
    size = (read_piece(worklog, 0, 0) or Piece(b"", 0)).size
    end = (read_piece(worklog, max(size - MAX_TAIL, 0), MAX_TAIL) or Piece(b"", 0)).data
    found = re.findall(rb"^#{1,6}[ \t]+([^\r\n]+)", end, re.MULTILINE)
    return found[-1][:MAX_HEADING].decode(errors="replace").strip(" \t#") if found else ""


def note_asked(job: Job) -> None:
    """Write down that a service still wants to know of a job, by a clock that nobody sets."""
    with suppress(OSError), open(job.asked, "w", opener=open_plain) as file:
        file.write(str(time.monotonic()))


def read_state(job: Job, stage: str) -> dict[str, Any]:
    """The final state of a stage; only its `state` when it has none: `absent`, `running` or `lost`."""
    final = job.of_stage(stage, "json")
    if not job.of_stage(stage, "request").exists():
        return {"state": "absent"}
    if state := read_json(final):
        return state
    with suppress(OSError), open_lock(job, stage) as lock:
        if not try_lock(lock.fileno(), fcntl.LOCK_SH):
            return {"state": "running"}
    return read_json(final) or {"state": "lost"}  # It may have ended just now.


def stop_stage(stage: str, request: Mapping[str, Any]) -> None:
    """Have a stage end what it is running. Nothing happens when it was never started, or has ended."""
    job = Job(request)
    if job.of_stage(stage, "request").exists():
        with open(job.of_stage(stage, "stop"), "ab", opener=open_plain):
            pass


def open_lock(job: Job, stage: str) -> IO[str]:
    """The file whose lock a stage holds for life."""
    return open(job.of_stage(stage, "lock"), "a", opener=open_plain)


class Stage:
    """A stage at work: it runs commands, one after the other, and knows until when."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.job = Job(request)
        self.request = request
        self.limit_s: float = request["timeout_s"]
        self.deadline = time.monotonic() + self.limit_s
        self.log = Log(request["max_log_bytes"])

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: Path | None = None,
        drop_lines: Iterable[str] = (),
        tail: Tail | None = None,
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
        output = Output(process.stdout.fileno(), self.log, drop_lines, tail)
        reason = follow(process, output, Leash(self.deadline, stop, grace_s, self.job.objection))
        kill_processes(self.job.id)
        status = process.wait()
        output.finish()
        process.stdout.close()
        return Ended(128 - status if status < 0 else status, reason)

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
        self.log.write(f"$ {argv[-1] if argv[0] == '/bin/sh' else ' '.join(argv)}\n".encode())
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
