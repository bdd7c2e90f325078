"""Parses the answers of the machine-side program. Pure.

The answers are untrusted, because an agent may have tampered with its machine. An invalid answer only raises
`JobdError`.
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

SAYS = "the machine says: "
"""The words before each text of a machine, wherever the text is shown. They warn readers, because an agent may have
chosen the text, for example as a file name. Comments show the text after them as code
(`handlers.text.sanitize.make_plain_line`)."""
SHELL_CANNOT_RUN = (126, 127)
"""A shell's exit statuses for a program that cannot be run or does not exist (POSIX, "Exit Status for Commands")."""
MAX_MESSAGE = 8_000
"""The most characters of a failure's message. The longest messages contain the last lines of a log."""
MAX_WORD = 100
"""The most characters of a name in the protocol, and of a boot id."""
MAX_WORKLOG = 100_000
"""The most bytes of a running agent's worklog that are read. If it is longer, only its end is read."""
MAX_NUMBER = 2**62
"""The largest number that is accepted, because a database cannot store larger ones."""

MAX_STDERR_SHOWN = 300
MAX_STDERR_READ = 100_000
"""The bytes at the end of stderr that are read."""


class StageState(StrEnum):
    """The state of a detached stage (`prepare`, `base`, `agent`, `collect`, `check`)."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


class JobdError(Exception):
    """A request to the machine failed there. `code` is a name of the protocol, `message` a clause for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Worklog:
    """The worklog of an agent, or its end, as it was at one moment. Untrusted text."""

    mark: str
    """A name for this version of the file. The machine chooses the name."""
    text: str
    is_cut: bool
    """Whether its beginning is missing."""


@dataclass(frozen=True, slots=True)
class Poll:
    """The state of a stage, and a part of its log."""

    state: StageState
    error: str | None
    message: str | None
    result: Mapping[str, Any]
    """The result fields of the stage. Empty before the end of the stage."""
    log: bytes
    """The log from the requested offset, up to the requested number of bytes."""
    log_size: int
    phase: str
    """The slow part that the stage is in, as a name of the protocol (`base`). Usually empty."""
    boot_id: str
    """Identifies the machine's current boot. If it changes, no earlier process is alive."""
    worklog: Worklog | None = None
    """The agent's worklog. None if the service did not ask for it, or if it has not changed."""
    told: int = 0
    """The number of the last message that the agent has got (`runner.model.telling`)."""


def parse_answer(completed: Completed) -> dict[str, Any]:
    """Parse the program's answer. Raises `JobdError` for a failure, and for anything that is not an answer."""
    answer = _last_object(completed.stdout)
    if answer is None or completed.exit_status != 0:
        raise _classify_crash(completed)
    if answer.get("ok") is not True:
        code, message = read_text(answer.get("error"), MAX_WORD), read_text(answer.get("message"))
        raise JobdError(code or "internal", f"{SAYS}{message}" if message else "the machine gave no reason")
    return answer


def read_text(told: Any, limit: int = MAX_MESSAGE) -> str:
    """A text from a machine, shortened, and without characters that a database refuses. Empty if it is not a text."""
    return make_storable(told[:limit]) if isinstance(told, str) else ""


def read_number(told: Any) -> int:
    """An integer from 0 to `MAX_NUMBER`. Raises `ValueError` for anything else."""
    if type(told) is not int or not 0 <= told <= MAX_NUMBER:
        raise ValueError("no number")
    return told


def parse_poll(answer: Mapping[str, Any]) -> Poll:
    """Parse an answer to `poll`. Raises `JobdError` if it is not valid."""
    message = read_text(answer.get("message"))
    try:
        return Poll(
            state=StageState(answer["state"]),
            error=read_text(answer.get("error"), MAX_WORD) or None,
            message=f"{SAYS}{message}" if message else None,
            result=dict(answer.get("result") or {}),
            log=base64.b64decode(answer["log"], validate=True),
            log_size=read_number(answer["log_size"]),
            phase=read_text(answer["phase"], MAX_WORD),
            worklog=_read_worklog(answer.get("worklog")),
            told=read_number(answer.get("told", 0)),
            boot_id=read_text(answer["boot_id"], MAX_WORD),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as fault:
        raise JobdError("internal", "unexpected answer from the machine about a stage") from fault


def _read_worklog(told: Any) -> Worklog | None:
    if not isinstance(told, dict):
        return None
    mark, text = read_text(told.get("mark"), MAX_WORD), read_text(told.get("text"), MAX_WORKLOG)
    return Worklog(mark, text, is_cut=told.get("is_cut") is True)


def _last_object(stdout: bytes) -> dict[str, Any] | None:
    """The JSON object on the last line. A login shell may have printed other lines before it."""
    line = stdout.rstrip().rpartition(b"\n")[2]
    try:
        answer = parse_bounded(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def is_missing(completed: Completed) -> bool:
    """Whether Python reported that the program is missing, so that nothing was done."""
    return completed.exit_status == 2 and b"can't open file" in completed.stderr


def _classify_crash(completed: Completed) -> JobdError:
    if completed.exit_status in SHELL_CANNOT_RUN:
        return JobdError("no_python", "the configured Python interpreter cannot be run there")
    lines = completed.stderr[-MAX_STDERR_READ:].decode(errors="replace").strip().splitlines()
    reason = lines[-1][:MAX_STDERR_SHOWN] if lines else f"exit status {completed.exit_status}"
    return JobdError("internal", f"the machine-side program failed; {SAYS}{reason}")
