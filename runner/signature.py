"""What a failure was, out of the last words of what failed. Pure.

Two runs fail alike when their signatures are the same: exception and message, or the signal, without what differs from
run to run. Refuses to know whether a failure is the one that somebody meant.
"""

from __future__ import annotations

import re
import signal

MAX_FAILURE = 300
"""Characters."""

_EXCEPTION = re.compile(
    r"^(?:E[ \t]+)?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Warning|Exit|Interrupt|Iteration|Failed|Timeout))"
    r"(?::[ \t]*(.*))?$"
)
"""The line with which Python ends a traceback, also as pytest quotes it, and as `unittest` does."""

_SUMMARY = re.compile(r"^(?:FAILED|ERROR) \S.* - (.+)$")
"""pytest's last lines: how a plain `assert` failed stands nowhere else by itself."""

_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PLACE = re.compile(r"(?:/[\w.@+-]+){2,}")


def name_failure(words: str, status: int, *, timed_out: bool) -> str:
    """A failure in one line of its own words."""
    if timed_out:
        return "did not end in time"
    if status > 128 and (name := _name_signal(status - 128)):
        return name
    lines = [line.strip() for line in _COLOURS.sub("", words).splitlines() if line.strip()]
    raised = [re.sub(r"^E[ \t]+", "", line) for line in lines if _EXCEPTION.match(line)]
    summed_up = [found[1] for line in lines if (found := _SUMMARY.match(line))]
    line = next(iter([*raised[-1:], *summed_up[-1:], *lines[-1:]]), f"exit status {status}")
    return line[:MAX_FAILURE]


def find_signature(words: str, status: int, *, timed_out: bool) -> str:
    """A failure without what differs from run to run: numbers, addresses, paths."""
    line = _ADDRESS.sub("0x", name_failure(words, status, timed_out=timed_out))
    return _NUMBER.sub("0", _PLACE.sub("/", line))


def _name_signal(number: int) -> str | None:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return None
