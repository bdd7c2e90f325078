"""How the stages of a job stand, seen from outside. Machines are asked for it all the time: it imports little."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ..files import Failure, JobPaths, Piece, open_plain, read_json, read_piece, try_lock
from ..safe_paths import open_below

STAGES = ("prepare", "base", "agent", "collect", "check")

MAX_WAIT_S, LOOK_S = 10.0, 0.02
"""For how long a question may wait until there is something new, and how often that is looked for, in seconds."""

MAX_TAIL, MAX_HEADING = 20_000, 400
"""Bytes of a worklog's end in which its last heading is looked for, and of that."""


def poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """How a stage stands, once there is something new."""
    question = Question(request)
    while not question.is_ready():
        time.sleep(LOOK_S)
    return question.answer()


def find_result(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was collected."""
    found = read_json(JobPaths(request).result)
    if not found:
        raise Failure("no_result", "nothing was collected")
    return {**found, "ok": True}


def stop_agent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tell the agent to end."""
    stop_stage("agent", request)
    return {}


class Question:
    """Somebody who wants to know how a stage stands, and may wait until its log has grown or it has ended."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Raises `Failure` where there is no such stage."""
        if request["stage"] not in STAGES:
            raise Failure("bad_request", f"there is no stage {request['stage']!r}; there are {', '.join(STAGES)}")
        self._job, self._stage = JobPaths(request), request["stage"]
        note_asked(self._job)
        self._log, self._final = (self._job.of_stage(self._stage, kind) for kind in ("log", "json"))
        self._offset, self._limit = request["log_offset"], request["log_limit"]
        waits = request["wait_ms"] and read_state(self._job, self._stage)["state"] == "running"
        self._until = time.monotonic() + min(request["wait_ms"] / 1000, MAX_WAIT_S) if waits else 0.0

    def is_ready(self) -> bool:
        """Whether it has to be answered by now. Asked all the time, it looks at no more than it has to."""
        return time.monotonic() >= self._until or os.path.lexists(self._final) or find_size(self._log) > self._offset

    def answer(self) -> dict[str, Any]:
        """How the stage stands just now, and a piece of its log. The log of a stage that has ended is whole."""
        final = read_state(self._job, self._stage)
        piece = read_piece(self._log, self._offset, self._limit) or Piece(b"", 0)
        return {
            "state": final.get("state"),
            "error": final.get("error"),
            "message": final.get("message"),
            "result": final.get("result", {}),
            "log": base64.b64encode(piece.data).decode(),
            "log_size": piece.size,
            "heading": find_heading(self._job) if self._stage == "agent" else "",
            "phase": (read_piece(self._job.phase, 0, 100) or Piece(b"", 0)).data.decode(errors="replace"),
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        }


def find_size(path: Path) -> int:
    """The bytes of a file; none where there is none."""
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def find_heading(job: JobPaths) -> str:
    """The last heading of the worklog as it is now: what the agent says that it tries."""
    end = b""
    # The agent can put a link in place of `output`, and this code runs outside the sandbox.
    with suppress(OSError), open_below(job.root, f"{job.output.name}/worklog.md") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - MAX_TAIL, 0))
        end = file.read(MAX_TAIL)
    found = re.findall(rb"^#{1,6}[ \t]+([^\r\n]+)", end, re.MULTILINE)
    return found[-1][:MAX_HEADING].decode(errors="replace").strip(" \t#") if found else ""


def note_asked(job: JobPaths) -> None:
    """Write down that a service still wants to know of a job, by a clock that nobody sets."""
    with suppress(OSError), open(job.asked, "w", opener=open_plain) as file:
        file.write(str(time.monotonic()))


def read_state(job: JobPaths, stage: str) -> dict[str, Any]:
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
    job = JobPaths(request)
    if job.of_stage(stage, "request").exists():
        with open(job.of_stage(stage, "stop"), "ab", opener=open_plain):
            pass


def open_lock(job: JobPaths, stage: str) -> IO[str]:
    """The file whose lock a stage holds for life."""
    return open(job.of_stage(stage, "lock"), "a", opener=open_plain)
