"""How the stages of a job stand, seen from outside. Machines are asked for it all the time: it imports little."""

from __future__ import annotations

import base64
import fcntl
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .files import Failure, Job, Piece, open_plain, read_json, read_piece, try_lock

STAGES = ("prepare", "base", "agent", "collect", "check")

MAX_WAIT_S, LOOK_S = 10.0, 0.02
"""For how long a question may wait until there is something new, and how often that is looked for."""

MAX_TAIL, MAX_HEADING = 20_000, 400
"""Bytes of a worklog's end in which its last heading is looked for, and of that."""


def poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """How a stage stands."""
    if request["stage"] not in STAGES:
        raise Failure("bad_request", f"there is no stage {request['stage']!r}; there are {', '.join(STAGES)}")
    return poll_stage(request["stage"], request)


def find_result(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was collected."""
    found = read_json(Job(request).result)
    if not found:
        raise Failure("no_result", "nothing was collected")
    return {**found, "ok": True}


def stop_agent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tell the agent to end."""
    stop_stage("agent", request)
    return {}


def poll_stage(stage: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """How a stage stands, and a piece of its log. The log of a stage that has ended is whole."""
    job = Job(request)
    note_asked(job)
    wait_for_news(job, stage, request)
    final = read_state(job, stage)
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


def wait_for_news(job: Job, stage: str, request: Mapping[str, Any]) -> None:
    """Wait until a stage's log has grown beyond the offset or the stage has ended, for as long as is asked for."""
    until = time.monotonic() + min(request["wait_ms"] / 1000, MAX_WAIT_S)
    log = job.of_stage(stage, "log")
    while time.monotonic() < until and read_state(job, stage)["state"] == "running":
        if (read_piece(log, 0, 0) or Piece(b"", 0)).size > request["log_offset"]:
            return
        time.sleep(LOOK_S)


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
