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
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .files import (
    MAX_MESSAGE,
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
from .processes import kill_processes, reap_orphans

GRACE_S = 5.0
"""Between the polite signal to a command whose time is over and the other one."""

DRAIN_S = 20.0
"""For what an ended command left in its pipe; somebody who cannot be killed may still be writing there."""

TICK_S = 0.1

TAIL_LINES = 20

PR_SET_CHILD_SUBREAPER = 36
"""From Linux's `prctl.h`: orphans below this process become its children, not init's."""


def start_stage(stage: str, request: Mapping[str, Any]) -> bool:
    """Start a stage. Of a race of starts one wins; False when it had been started before."""
    job = Job(request)
    job.control.mkdir(mode=0o700, parents=True, exist_ok=True)
    written, log_path = job.of_stage(stage, "request"), job.of_stage(stage, "log")
    with open_lock(job, stage) as lock, open(log_path, "ab", opener=open_plain) as log:
        if not try_lock(lock.fileno()) or written.exists():
            return False
        reserve(job.of_stage(stage, "json"))
        write_file(written, json.dumps(request))
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
    piece = read_piece(job.of_stage(stage, "log"), request["log_offset"], request["log_limit"]) or Piece(b"", 0)
    return {
        "state": final.get("state"),
        "error": final.get("error"),
        "message": final.get("message"),
        "result": final.get("result", {}),
        "log": base64.b64encode(piece.data).decode(),
        "log_size": piece.size,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


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


def open_lock(job: Job, stage: str) -> IO[str]:
    """The file whose lock a stage holds for life."""
    return open(job.of_stage(stage, "lock"), "a", opener=open_plain)


class NotRunnable(Exception):  # noqa: N818 - as a word, and why, it is part of a sentence
    """A program cannot be started."""


class Stage:
    """A stage at work: it runs commands, one after the other, and knows until when."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.job = Job(request)
        self.request = request
        self.deadline = time.monotonic() + request["timeout_s"]
        self.log_truncated = False
        self._room: int = request["max_log_bytes"]
        self._filter = LineFilter(())
        self._tail = b""

    def drop_lines(self, beginnings: Iterable[str]) -> None:
        """From here on leave lines out of the log that begin so."""
        self._filter = LineFilter(beginning.encode() for beginning in beginnings)

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: Path | None = None
    ) -> tuple[int, bool]:
        """Run a command to its end or the end of its time, after which nothing of it is alive.

        Its standard input is the file `stdin`, or empty. Returns its exit status, as a shell would give it, and
        whether its time was over. Raises `NotRunnable` when it cannot be started.
        """
        self._tail = b""
        process = start(argv, env, cwd, stdin or Path(os.devnull))
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        deadline, timed_out = self.deadline, False
        while process.poll() is None:
            if time.monotonic() > deadline:
                if timed_out:
                    break
                timed_out, deadline = True, time.monotonic() + GRACE_S
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            if not self._copy(process.stdout.fileno(), TICK_S):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
            reap_orphans(process.pid)
        kill_processes(self.job.id)
        status = process.wait()
        self._copy(process.stdout.fileno(), 0)
        self._say(self._filter.flush())
        process.stdout.close()
        return (128 - status if status < 0 else status), timed_out

    def must(self, name: str, what: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """Run a command that has to succeed. Raises `Failure`, under this name unless a better one is known."""
        self._say(f"$ {argv[-1] if argv[0] == '/bin/sh' else ' '.join(argv)}\n".encode())
        try:
            status, timed_out = self.run(argv, env, cwd)
        except NotRunnable as error:
            raise Failure("no_git" if argv[0] == "git" else name, f"{what}: {error}") from None
        if timed_out:
            raise Failure("timed_out", f"{what}: it was stopped after {self.request['timeout_s']} seconds")
        if status:
            tail = "\n".join(self._tail.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])
            full = os.strerror(errno.ENOSPC) in tail
            raise Failure("disk_full" if full else name, f"{what} (exit status {status}):\n{tail}")

    def _copy(self, pipe: int, wait_s: float) -> bool:
        """Copy to the log what the pipe holds; when it holds nothing, wait a moment. False when it has been closed."""
        until = time.monotonic() + (wait_s or DRAIN_S)
        with suppress(BlockingIOError):
            while select.select([pipe], [], [], wait_s)[0] and time.monotonic() < until:
                data = os.read(pipe, 65_536)
                if not data:
                    return False
                self._say(self._filter.feed(data))
        return True

    def _say(self, data: bytes) -> None:
        """Write to the log until that is full, which is said once; the rest is dropped."""
        self._tail = (self._tail + data)[-MAX_MESSAGE:]
        if self.log_truncated:
            return
        if len(data) > self._room:
            self.log_truncated = True
            data = data[: self._room] + b"\n[the log ends here: it had grown too long]\n"
        self._room -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(sys.stdout.fileno(), view) :]


class LineFilter:
    """Leaves out of a stream of bytes the lines that begin in certain ways, however it is cut into pieces."""

    def __init__(self, beginnings: Iterable[bytes]) -> None:
        self._beginnings = tuple(beginnings)
        self._longest = max(map(len, self._beginnings), default=0)
        self._head = b""
        self._drops: bool | None = None
        """About the line under way; None while its beginning is still in `_head`."""

    def feed(self, data: bytes) -> bytes:
        """What of this is kept; the beginning of a line may be held back."""
        if not self._beginnings:
            return data
        kept = []
        for piece in re.findall(rb"[^\n]*\n|[^\n]+", data):
            ends, text = piece.endswith(b"\n"), piece
            if self._drops is None:
                self._head += piece
                if len(self._head) < self._longest and not ends:
                    continue
                text, self._head = self._head, b""
                self._drops = text.startswith(self._beginnings)
            if not self._drops:
                kept.append(text)
            if ends:
                self._drops = None
        return b"".join(kept)

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        head, self._head, self._drops = self._head, b"", None
        return b"" if head.startswith(self._beginnings) else head


def start(argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: Path) -> subprocess.Popen[bytes]:
    """Start a command, with its output in a pipe. Raises `NotRunnable`."""
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
            )
    except OSError as error:
        raise NotRunnable(f"{error.filename or argv[0]} cannot be run: {(error.strerror or '').lower()}") from None
