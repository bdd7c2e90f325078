"""Converts an agent's log to entries for people: what the agent said and did, instead of lines of JSON. Pure.

Secrets are searched for in the values of the JSON and in its raw text, always before a text is cut. The caller provides
the function that redacts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from runner.agents import Agent
from runner.agents.events import AgentEvent, EventKind
from runner.agents.lines import parse_line
from runner.model.ending import Ending

SHOWN_LINES = 12
"""The most lines that are shown of a tool's input and of its output.

The first lines of the input are shown. Of the output, the last lines are shown, because they contain errors.
"""

LAST_LINES, MAX_LAST_LINE = 12, 300
"""The lines at the end of a log that are quoted, and the most characters of each."""

_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
"""A string in a whole line of JSON."""

_BETWEEN_QUOTES = re.compile(r'(?:[^"\\\n]|\\.)++')
"""Text that may be the inside of a JSON string.

The quotes are not part of the pattern, because in a log that was cut it is unknown which quotes open a string.
"""

_ENDINGS = {
    Ending.FINISHED: "The agent has finished",
    Ending.GAVE_UP: "The agent gave up",
    Ending.MODEL_FAILED: "The model failed",
    Ending.CAPPED: "The agent reached a limit of its own",
    Ending.INTERRUPTED: "The agent was interrupted",
}

Redact = Callable[[str], str]

_SIGNS = range(0x3400, 0xD7A4)
"""Code points of visible characters. Almost no text contains all of them, so one of them can separate texts."""


class EntryKind(StrEnum):
    """The style of an entry."""

    PLAIN = "plain"
    """Lines of the log, unchanged."""
    SAID = "said"
    CALLED = "called"
    RESULT = "result"
    FAILED = "failed"
    """The result of a failed tool call."""
    NOTE = "note"
    """Our own text about an event, or about a stage of jobd's."""
    COMMAND = "command"
    """A command of a stage of jobd's."""
    RUN = "run"
    """The heading of one run of a check."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry for readers. Its text is untrusted."""

    kind: EntryKind
    text: str


def find_last_lines(entries: Sequence[Entry]) -> str:
    """The end of a log, for people who want to know why the agent ended. Empty if the log has no text."""
    lines: list[str] = []
    for entry in reversed(entries):
        lines[:0] = entry.text.strip("\n").split("\n")
        if len(lines) >= LAST_LINES:
            break
    return "\n".join(line[:MAX_LAST_LINE] for line in lines[-LAST_LINES:]).strip("\n")


def redact_each(texts: Sequence[str], redact: Redact) -> list[str]:
    """Redact every text. Many short texts take about as long as one text of the same total length."""
    if len(texts) < 2:
        return [*map(redact, texts)]
    whole = "".join(texts)
    # The texts are joined with a separator: a line with a character that no text contains. If something that was
    # redacted spans a separator, the halves of the texts are redacted separately.
    sign = next((sign for sign in map(chr, _SIGNS) if sign not in whole), "")
    border = f"\n{sign}\n"
    cleaned = redact(border.join(texts)).split(border) if sign else []
    if len(cleaned) == len(texts):
        return cleaned
    half = len(texts) // 2
    return redact_each(texts[:half], redact) + redact_each(texts[half:], redact)


def redact_log(log: str, redact: Redact) -> str:
    """The log without secrets, line by line. Strings of JSON are searched by their values."""
    insides = {inside for inside in _BETWEEN_QUOTES.findall(log) if "\\" in inside}
    replacements = _clean_strings(insides, redact)
    if replacements:
        log = _BETWEEN_QUOTES.sub(lambda found: replacements.get(found[0], found[0]), log)
    return redact(log)


def _clean_strings(insides: Collection[str], redact: Redact, limit: int | None = None) -> dict[str, str]:
    """The insides of JSON strings that have to be replaced, each with its replacement.

    An inside is replaced if it contains a secret, or if it is longer than `limit` characters.
    """
    meanings = {inside: meaning for inside in insides if (meaning := _read_string(inside)) is not None}
    cleaned = redact_each([*meanings.values()], redact)
    shortened = (shorten(text, limit) if limit else text for text in cleaned)
    return {
        inside: json.dumps(text)[1:-1]
        for (inside, meaning), text in zip(meanings.items(), shortened, strict=True)
        if text != meaning
    }


def _read_string(inside: str) -> str | None:
    try:
        text: str = json.loads(f'"{inside}"', strict=False)
    except ValueError:
        return None
    return text


def shorten(text: str, limit: int) -> str:
    """Omit the middle of a text that is longer than `limit`."""
    if len(text) <= limit:
        return text
    left_out = f"\n[{len(text) - limit} characters are left out]\n"
    half = (limit - len(left_out)) // 2
    return f"{text[:half]}{left_out}{text[-half:]}"


def clean_events(lines: Sequence[str], redact: Redact, limit: int | None = None) -> list[str]:
    """Redact events, one on each line, and shorten their strings to `limit` characters."""
    replacements = _clean_strings({inside for line in lines for inside in _STRING.findall(line)}, redact, limit)
    return [_respell(line, replacements) for line in lines] if replacements else [*lines]


def _respell(line: str, replacements: Mapping[str, str]) -> str:
    return _STRING.sub(lambda found: f'"{replacements.get(found[1], found[1])}"', line)


def drop_unfinished(log: str) -> str:
    """The log without an unfinished event at its end."""
    head, _, last = log.rpartition("\n")
    return head if last.startswith("{") and parse_line(last) is None else log


@dataclass(slots=True)
class Teller:
    """Converts lines to entries, and remembers what it needs between lines."""

    agent: Agent
    unknown: int = 0
    error: str = field(default="", repr=False)

    def tell(self, line: str) -> Iterator[Entry]:
        """The entries of one line, which may have several events."""
        for event in self.agent.read_line(line):
            if event.kind is EventKind.END and event.text == self.error:
                yield Entry(EntryKind.NOTE, _describe_end(event, ""))
            elif entry := _show(event):
                yield entry
            self.unknown += event.kind is EventKind.UNKNOWN
            self.error = event.text if event.kind is EventKind.ERROR else self.error

    def conclude(self) -> Iterator[Entry]:
        """The entries after the last line."""
        if self.unknown:
            what = "1 event is" if self.unknown == 1 else f"{self.unknown} events are"
            yield Entry(EntryKind.NOTE, f"{what} not shown, because this version does not know them.")


def _show(event: AgentEvent) -> Entry | None:
    """An event as an entry. None if people do not need to see it."""
    text = event.text.strip("\n")
    match event.kind:
        case EventKind.TEXT:
            return Entry(EntryKind.SAID, text) if text.strip() else None
        case EventKind.TOOL_CALL:
            call = f"▸ {event.tool}: {text}" if text else f"▸ {event.tool}"
            return Entry(EntryKind.CALLED, _keep_first(call))
        case EventKind.TOOL_RESULT if event.failed:
            return Entry(EntryKind.FAILED, f"It failed:\n{_keep_last(text)}" if text else "It failed.")
        case EventKind.TOOL_RESULT:
            return Entry(EntryKind.RESULT, _keep_last(text) or "(no output)")
        case EventKind.RETRY:
            return Entry(EntryKind.NOTE, f"The model did not answer. Trying again: {text or 'no reason given'}")
        case EventKind.ERROR:
            return Entry(EntryKind.NOTE, f"Error: {text or 'no reason given'}")
        case EventKind.END:
            return Entry(EntryKind.NOTE, _describe_end(event, text))
        case _:
            return None


def _describe_end(event: AgentEvent, reason: str) -> str:
    ending = event.ending or Ending.GAVE_UP
    words = _ENDINGS.get(ending, f"The agent has ended: {ending}")
    calls = "1 tool call was" if event.denials == 1 else f"{event.denials} tool calls were"
    return (f"{words}: {reason}" if reason else f"{words}.") + (f" {calls} not permitted." if event.denials else "")


def _keep_first(text: str) -> str:
    lines = text.split("\n")
    return text if len(lines) <= SHOWN_LINES else "\n".join([*lines[:SHOWN_LINES], "[the rest is left out]"])


def _keep_last(text: str) -> str:
    lines = text.split("\n")
    return text if len(lines) <= SHOWN_LINES else "\n".join(["[the beginning is left out]", *lines[-SHOWN_LINES:]])
