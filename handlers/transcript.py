"""An agent's log as people read it: what was said and done, in place of lines of JSON. Pure.

Secrets are looked for in what the JSON means as well as in how it is spelt, and always before anything is cut. It
refuses to know what a secret is: whoever calls says how they are redacted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from handlers.sanitize import MIN_SECRET
from runner.agents import Agent
from runner.agents.events import MAX_TEXT, AgentEvent, Ending, EventKind
from runner.agents.lines import parse_line

SHOWN_LINES = 12
"""Lines that are shown of what a tool was asked, and of what came of it: there the last, where errors are."""

_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*+)"?')
"""A string of JSON, whether it is closed or not: the search goes over each character once."""

_ENDINGS = {
    Ending.FINISHED: "The agent has finished",
    Ending.GAVE_UP: "The agent gave up",
    Ending.MODEL_FAILED: "The model failed",
    Ending.CAPPED: "The agent reached a limit of its own",
    Ending.INTERRUPTED: "The agent was interrupted",
}

Redact = Callable[[str], str]


class EntryKind(StrEnum):
    """What an entry looks like."""

    PLAIN = "plain"
    """Lines as they stand in the log."""
    SAID = "said"
    CALLED = "called"
    RESULT = "result"
    FAILED = "failed"
    """A tool's result that is no success."""
    NOTE = "note"
    """Our own words, about what happened."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a reader sees. Its text is a stranger's."""

    kind: EntryKind
    text: str


def spell_out(secrets: Collection[str]) -> frozenset[str]:
    """The secrets, and how they look inside a string of JSON, and inside one that stands in another."""
    forms = {form for secret in secrets for form in (secret, secret.strip())}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in forms for escaped in (True, False)}
    return frozenset(forms)


def redact_log(log: str, redact: Redact) -> str:
    """The log without secrets, line for line as it is otherwise. A string of JSON is judged by what it means."""

    def respell(found: re.Match[str]) -> str:
        return _rewrite(found, redact) if "\\" in found[1] else found[0]

    return redact(_STRING.sub(respell, log))


def render_transcript(log: str, agent: Agent, redact: Redact, *, margin: int = 0) -> list[Entry]:
    """The log of an agent that tells by events what it does; lines that are none stay as they are.

    A log whose beginning is cut off has a `margin`: as many characters are there only so that a secret in them is
    whole. They are left out, and so is the half of an event before the first whole one.
    """
    teller = _Teller(agent, redact)
    entries: list[Entry] = []
    for is_event, group in groupby(_drop_unfinished(log).split("\n"), lambda line: parse_line(line) is not None):
        lines = [*group]
        if is_event:
            entries += (entry for line in lines for entry in teller.tell(line))
            margin = 0
            continue
        text = redact("\n".join(lines))
        if margin:
            text = text[max(margin, text.find("\n") + 1) :] if len(lines) > 1 else ""
            margin = 0
        if text.strip():
            entries.append(Entry(EntryKind.PLAIN, text.strip("\n")))
    return [*entries, *teller.conclude()]


def _drop_unfinished(log: str) -> str:
    """The log without the event that is being written at its end just now."""
    head, _, last = log.rpartition("\n")
    return head if last.startswith("{") and parse_line(last) is None else log


@dataclass(slots=True)
class _Teller:
    """Says what lines tell, with what it has to remember from one to the next."""

    agent: Agent
    redact: Redact
    unknown: int = 0
    error: str = field(default="", repr=False)

    def tell(self, line: str) -> Iterator[Entry]:
        """What stands on a line that is a whole event or several."""
        clean = _STRING.sub(lambda found: _rewrite(found, self.redact, MAX_TEXT), line)
        for event in self.agent.read_line(clean):
            if event.kind is EventKind.END and event.text == self.error:
                yield Entry(EntryKind.NOTE, _describe_end(event, ""))
            elif entry := _show(event):
                yield entry
            self.unknown += event.kind is EventKind.UNKNOWN
            self.error = event.text if event.kind is EventKind.ERROR else self.error

    def conclude(self) -> Iterator[Entry]:
        """What is said below all of it."""
        if self.unknown:
            what = "1 event is" if self.unknown == 1 else f"{self.unknown} events are"
            yield Entry(EntryKind.NOTE, f"{what} not shown: this version does not know what to make of them.")


def _rewrite(found: re.Match[str], redact: Redact, limit: int | None = None) -> str:
    """A string of JSON without secrets, and shortened in its middle: backends would keep its beginning only."""
    if len(found[1]) < MIN_SECRET:
        return found[0]
    try:
        text = json.loads(f'"{found[1]}"', strict=False)
    except ValueError:
        return found[0]
    clean = redact(text)
    if limit and len(clean) > limit:
        left_out = f"\n[{len(clean) - limit} characters are left out]\n"
        half = (limit - len(left_out)) // 2
        clean = f"{clean[:half]}{left_out}{clean[-half:]}"
    return found[0] if clean == text else json.dumps(clean)


def _show(event: AgentEvent) -> Entry | None:
    """An event in words; None for one that says nothing to people."""
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
            return Entry(EntryKind.NOTE, f"The model did not answer and is asked again: {text or 'no reason given'}")
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
    more = len(lines) - SHOWN_LINES
    return text if more <= 1 else "\n".join([*lines[:SHOWN_LINES], f"[{more} more lines]"])


def _keep_last(text: str) -> str:
    lines = text.split("\n")
    more = len(lines) - SHOWN_LINES
    return text if more <= 1 else "\n".join([f"[{more} lines before]", *lines[-SHOWN_LINES:]])
