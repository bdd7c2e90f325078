"""Extracts the failure from the last lines of a failed run. Pure.

Two runs fail in the same way if their signatures are equal: exception and message, or the signal, without parts that
change from run to run. This module does not judge whether it is the expected failure.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from runner.characters import drop_colours

MAX_FAILURE = 300
"""The length limit in characters."""

_EXCEPTION = re.compile(
    r"^(?:E[ \t]+)?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Warning|Exit|Interrupt|Iteration|Failed|Timeout))"
    r"(?::[ \t]*(.*))?$"
)
"""The last line of a traceback, also as pytest and `unittest` print it."""

_SUMMARY = re.compile(r"^(?:FAILED|ERROR) \S.* - (.+)$")
"""pytest's summary: only these lines describe how a plain `assert` failed."""

_RANDOM = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b")
"""Addresses, digests and UUIDs."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PLACE = re.compile(r"(?:/[\w.@+-]+){2,}")


def name_failure(words: str, status: int, *, timed_out: bool) -> str:
    """A failure in one line, in the words of the run."""
    if timed_out:
        return "did not end in time"
    if status > 128 and (name := _name_signal(status - 128)):
        return name
    lines = [line.strip() for line in drop_colours(words).splitlines() if line.strip()]
    raised = [re.sub(r"^E[ \t]+", "", line) for line in lines if _EXCEPTION.match(line)]
    summed_up = [found[1] for line in lines if (found := _SUMMARY.match(line))]
    line = next(iter([*raised[-1:], *summed_up[-1:], *lines[-1:]]), f"exit status {status}")
    return line[:MAX_FAILURE]


def find_signature(words: str, status: int, *, timed_out: bool) -> str:
    """A failure without parts that change from run to run: numbers, addresses, paths."""
    line = _RANDOM.sub("0x", name_failure(words, status, timed_out=timed_out))
    return _NUMBER.sub("0", _PLACE.sub("/", line))


@dataclass(frozen=True, slots=True)
class Counts:
    """How many tests passed or were skipped, as far as their runner reports it."""

    passed: int = 0
    skipped: int = 0


def count_tests(words: str) -> Counts:
    """The counts in the last lines of pytest or unittest; zeros if there are none."""
    text = drop_colours(words)
    if found := re.findall(r"^Ran (\d{1,9}) tests? in .*$", text, re.MULTILINE):
        bad = sum(map(int, re.findall(r"\b(?:failures|errors|skipped|expected failures)=(\d{1,9})\b", text)))
        skipped = sum(map(int, re.findall(r"\bskipped=(\d{1,9})\b", text)))
        return Counts(max(int(found[-1]) - bad, 0), skipped)
    last = next((line for line in reversed(text.splitlines()) if re.search(r"\bin [\d.]+s\b", line)), "")
    said = {
        word: int(number) for number, word in re.findall(r"(?<!\d)(\d{1,9}) (passed|skipped|xfailed|deselected)", last)
    }
    return Counts(said.get("passed", 0), said.get("skipped", 0) + said.get("xfailed", 0))


def _name_signal(number: int) -> str | None:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return None
