"""The states of a job's stages. This module imports little, because the service asks for states all the time."""

from __future__ import annotations

import base64
import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ..files import Failure, JobPaths, Piece, open_plain, read_boot_id, read_json, read_piece, try_lock
from ..safe_paths import open_safely, reopen
from .told import count_given

STAGES = ("prepare", "base", "agent", "collect", "check")

MAX_WAIT_S, LOOK_S = 10.0, 0.02
"""How long a request may wait for something new, and how often jobd looks for it, in seconds."""


def poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until there is something new about a stage, and return its state."""
    poll_request = PollRequest(request)
    while not poll_request.is_ready():
        time.sleep(LOOK_S)
    return poll_request.answer()


def find_result(request: Mapping[str, Any]) -> dict[str, Any]:
    """The collected result."""
    found = read_json(JobPaths(request).result)
    if not found:
        raise Failure("no_result", "nothing was collected")
    return {**found, "ok": True}


def stop_agent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tell the agent to end."""
    stop_stage("agent", request)
    return {}


class PollRequest:
    """A request for the state of a stage, which may wait until its log has grown or it has ended."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Raises `Failure` for an unknown stage."""
        if request["stage"] not in STAGES:
            raise Failure("bad_request", f"there is no stage {request['stage']!r}; there are {', '.join(STAGES)}")
        self._job, self._stage = JobPaths(request), request["stage"]
        reopen(self._job.root)
        note_asked(self._job)
        self._log, self._final = (self._job.of_stage(self._stage, kind) for kind in ("log", "json"))
        self._offset, self._limit = request["log_offset"], request["log_limit"]
        self._worklog_mark, self._worklog_limit = request["worklog_mark"], request["worklog_limit"]
        waits = request["wait_ms"] and read_state(self._job, self._stage)["state"] == "running"
        self._until = time.monotonic() + min(request["wait_ms"] / 1000, MAX_WAIT_S) if waits else 0.0

    def is_ready(self) -> bool:
        """Whether the request must be answered now. Called very often, so it reads as little as possible."""
        return time.monotonic() >= self._until or os.path.lexists(self._final) or find_size(self._log) > self._offset

    def answer(self) -> dict[str, Any]:
        """The current state of the stage, and a piece of its log. When a stage has ended, its log is complete."""
        reopen(self._job.root)  # The job may have closed it since the request came.
        final = read_state(self._job, self._stage)
        piece = read_piece(self._log, self._offset, self._limit) or Piece(b"", 0)
        return {
            "state": final.get("state"),
            "error": final.get("error"),
            "message": final.get("message"),
            "result": final.get("result", {}),
            "log": base64.b64encode(piece.data).decode(),
            "log_size": piece.size,
            "worklog": read_worklog(self._job, self._worklog_mark, self._worklog_limit),
            "told": count_given(self._job) if self._stage == "agent" else 0,
            "phase": (read_piece(self._job.phase, 0, 100) or Piece(b"", 0)).data.decode(errors="replace"),
            "boot_id": read_boot_id(),
        }


def find_size(path: Path) -> int:
    """The size of a file in bytes. 0 if it is missing."""
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def read_worklog(job: JobPaths, mark: str, limit: int) -> dict[str, Any] | None:
    """The last `limit` bytes of the agent's worklog, with the mark of its version.

    None if the worklog still has this `mark`, if there is no worklog, or if `limit` is 0.
    """
    if not limit:
        return None
    # The agent can put a link in place of `output`, and this code runs outside the sandbox.
    with suppress(OSError), open_safely(job.root, f"{job.output.name}/worklog.md") as file:
        about = os.fstat(file.fileno())  # Taken before the read: a later version has another mark.
        found = f"{about.st_ino}.{about.st_size}.{about.st_ctime_ns}"
        if found == mark:
            return None
        start = max(about.st_size - limit, 0)
        file.seek(start)
        return {"mark": found, "text": file.read(limit).decode(errors="replace"), "is_cut": start > 0}
    return None


def note_asked(job: JobPaths) -> None:
    """Record the time of the service's last request for a job, on a clock that nobody can set."""
    with suppress(OSError), open(job.asked, "w", opener=open_plain) as file:
        file.write(str(time.monotonic()))


def read_state(job: JobPaths, stage: str) -> dict[str, Any]:
    """The final state of a stage. If it has none, only the key `state`: `absent`, `running` or `lost`."""
    final = job.of_stage(stage, "json")
    if not job.of_stage(stage, "request").exists():
        return {"state": "absent"}
    if state := read_json(final):
        return state
    with suppress(OSError), open_lock(job, stage) as lock:
        if not try_lock(lock.fileno(), fcntl.LOCK_SH):
            return {"state": "running"}
    return read_json(final) or {"state": "lost"}  # The stage may have ended a moment ago.


def stop_stage(stage: str, request: Mapping[str, Any]) -> None:
    """Tell a stage to end its command. Does nothing if the stage was never started or has ended."""
    job = JobPaths(request)
    if job.of_stage(stage, "request").exists():
        with open(job.of_stage(stage, "stop"), "ab", opener=open_plain):
            pass


def open_lock(job: JobPaths, stage: str) -> IO[str]:
    """Open the file whose lock a stage holds all its life."""
    return open(job.of_stage(stage, "lock"), "a", opener=open_plain)
