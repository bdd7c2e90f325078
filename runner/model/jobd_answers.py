"""What our machine-side program answers, read with distrust: an agent may have tampered with its machine. Pure.

Whatever an answer holds, nothing but `JobdError` comes of it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runner.bounded_json import parse_bounded
from runner.characters import make_storable
from runner.model.completed import Completed

SHELL_CANNOT_RUN = (126, 127)
"""A shell's exit statuses for a program that cannot be run, or is not there (POSIX, "Exit Status for Commands")."""
MAX_MESSAGE = 8_000
"""Characters of a refusal that are kept; the longest holds the last lines of a log."""
MAX_WORD = 100
"""Characters of a name of the protocol, and of what names a boot."""
MAX_HEADING = 200
"""Characters of a worklog's heading."""
MAX_NUMBER = 2**62
"""The most that a number may be: a database takes no larger ones."""

MAX_STDERR_SHOWN = 300
MAX_STDERR_READ = 100_000
"""Bytes at the end of what a program complained of."""


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
        code, message = read_text(answer.get("error"), MAX_WORD), read_text(answer.get("message"))
        raise JobdError(code or "internal", message or "the machine gave no reason")
    return answer


def read_text(told: Any, limit: int = MAX_MESSAGE) -> str:
    """A text of a machine's, cut, and without what a database refuses; empty for what is no text."""
    return make_storable(told[:limit]) if isinstance(told, str) else ""


def read_number(told: Any) -> int:
    """A whole number that is not negative. Raises `ValueError` for anything else, and for more than `MAX_NUMBER`."""
    if type(told) is not int or not 0 <= told <= MAX_NUMBER:
        raise ValueError("no number")
    return told


def parse_poll(answer: Mapping[str, Any]) -> Poll:
    """The typed form of an answer to `poll`. Raises `JobdError` when it has another shape."""
    heading = read_text(answer.get("heading"), 2 * MAX_HEADING)
    try:
        return Poll(
            state=StageState(answer["state"]),
            error=read_text(answer.get("error"), MAX_WORD) or None,
            message=read_text(answer.get("message")) or None,
            result=dict(answer.get("result") or {}),
            log=base64.b64decode(answer["log"], validate=True),
            log_size=read_number(answer["log_size"]),
            phase=read_text(answer["phase"], MAX_WORD),
            heading=" ".join(heading.split())[:MAX_HEADING],
            boot_id=read_text(answer["boot_id"], MAX_WORD),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as fault:
        raise JobdError("internal", "the machine's answer about a stage makes no sense") from fault


def _last_object(stdout: bytes) -> dict[str, Any] | None:
    """The JSON object on the last line; a login shell may have printed lines of its own before it."""
    line = stdout.rstrip().rpartition(b"\n")[2]
    try:
        answer = parse_bounded(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def is_missing(completed: Completed) -> bool:
    """Whether Python said that the program is not there, so that nothing was done."""
    return completed.exit_status == 2 and b"can't open file" in completed.stderr


def _classify_crash(completed: Completed) -> JobdError:
    if completed.exit_status in SHELL_CANNOT_RUN:
        return JobdError("no_python", "the configured Python interpreter cannot be run there")
    lines = completed.stderr[-MAX_STDERR_READ:].decode(errors="replace").strip().splitlines()
    reason = lines[-1][:MAX_STDERR_SHOWN] if lines else f"exit status {completed.exit_status}"
    return JobdError("internal", f"the machine-side program failed: {reason}")
