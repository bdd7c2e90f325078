"""What our machine-side program answers, read with distrust: an agent may have tampered with its machine. Pure.

Whatever an answer holds, nothing but `JobdError` comes of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runner.characters import make_storable
from runner.completed import Completed

SHELL_CANNOT_RUN = (126, 127)
"""A shell's exit statuses for a program that cannot be run, or is not there (POSIX, "Exit Status for Commands")."""
MAX_MESSAGE = 8_000
"""Characters of a refusal that are kept; the longest holds the last lines of a log."""
MAX_HEADING = 200
"""Characters of a worklog's heading."""

MAX_STDERR_SHOWN = 300


class StageState(StrEnum):
    """How far a detached stage (`prepare`, `base`, `agent`, `collect`, `check`) has come."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


class JobdError(Exception):
    """The machine was asked and said no. `code` is a name of the protocol, `message` a clause for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Poll:
    """How a stage stands, and a piece of its log."""

    state: StageState
    error: str | None
    message: str | None
    result: Mapping[str, Any]
    """The stage's own final fields; empty before its end."""
    log: bytes
    """From the asked offset on, at most as many bytes as asked for."""
    log_size: int
    phase: str
    """What takes the stage so long, as a word of the protocol (`base`); most often empty."""
    heading: str
    """The last one of an agent's worklog: a stranger's text."""
    boot_id: str
    """Names the machine's present boot: another one means that nothing from before is alive."""


def parse_answer(completed: Completed) -> dict[str, Any]:
    """The program's answer. Raises `JobdError` for a refusal, and for anything that is no answer."""
    answer = _last_object(completed.stdout)
    if answer is None or completed.exit_status != 0:
        raise _classify_crash(completed)
    if answer.get("ok") is not True:
        code, message = answer.get("error", "internal"), answer.get("message", "the machine gave no reason")
        raise JobdError(str(code)[:MAX_MESSAGE], str(message)[:MAX_MESSAGE])
    return answer


def parse_poll(answer: Mapping[str, Any]) -> Poll:
    """The typed form of an answer to `poll`. Raises `JobdError` when it has another shape."""
    error, message = answer.get("error"), answer.get("message")
    try:
        return Poll(
            state=StageState(answer["state"]),
            error=None if error is None else str(error),
            message=None if message is None else str(message),
            result=dict(answer.get("result") or {}),
            log=base64.b64decode(answer["log"], validate=True),
            log_size=int(answer["log_size"]),
            phase=str(answer["phase"])[:100],
            heading=make_storable(" ".join(str(answer.get("heading", "")).split()))[:MAX_HEADING],
            boot_id=str(answer["boot_id"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as fault:
        raise JobdError("internal", "the machine's answer about a stage makes no sense") from fault


def _last_object(stdout: bytes) -> dict[str, Any] | None:
    """The JSON object on the last line; a login shell may have printed lines of its own before it."""
    lines = stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def is_missing(completed: Completed) -> bool:
    """Whether Python said that the program is not there, so that nothing was done."""
    return completed.exit_status == 2 and b"can't open file" in completed.stderr


def _classify_crash(completed: Completed) -> JobdError:
    if completed.exit_status in SHELL_CANNOT_RUN:
        return JobdError("no_python", "the configured Python interpreter cannot be run there")
    lines = completed.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1][:MAX_STDERR_SHOWN] if lines else f"exit status {completed.exit_status}"
    return JobdError("internal", f"the machine-side program failed: {reason}")
