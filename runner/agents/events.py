"""What agents say, in one form: a backend turns its lines into these events, and a run is the fold over them. Pure.

How a run ended is judged from what happened, never from the exit status alone: command lines exit 0 when their model
could not be reached, and 1 when they had finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from runner.model.ending import Ending
from runner.model.usage import NOTHING, Usage

MAX_TEXT = 4_000
"""Characters of one event's text that are kept: it is for people, and the raw line is stored beside it."""

WHOLE = "whole"
"""The scope of a usage that covers the whole process, whatever was counted before."""

MAX_SCOPES = 50
"""How many usages may still change: answers come one after the other, but for a few at the same time."""

THREAD = "thread"
"""The scope of a usage that covers a session: a resumed one counts what earlier runs took as well."""


class EventKind(StrEnum):
    """What one event is about."""

    SESSION = "session"
    """The agent said under which id it can be resumed."""

    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    RETRY = "retry"
    """The model did not answer, and is asked again: nothing has ended."""

    ERROR = "error"
    USAGE = "usage"
    END = "end"
    UNKNOWN = "unknown"
    """Something that this version does not know: kept and counted, never fatal."""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One thing that an agent said or did."""

    kind: EventKind
    text: str = ""
    tool: str = ""
    failed: bool = False
    """Of a tool's result."""

    usage: Usage | None = None
    scope: str = ""
    """What the usage covers: the newest of a scope counts. Without a name it counts for itself."""

    before: Usage | None = None
    """Of a usage of scope `THREAD`: what the session had taken before."""

    model: str = ""
    """Which one is at work, where the backend says it."""

    turn: str = ""
    """The model's answer that this belongs to; a new one is a new turn."""

    ending: Ending | None = None
    denials: int = 0
    """Of a tool's result, or of an end for all of them: how many calls were not permitted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run amounts to, up to some event."""

    session_id: str | None = None
    model: str = ""
    turns: int = 0
    tool_calls: int = 0
    retries: int = 0
    unknown: int = 0
    last_text: str = ""
    last_tool: str = ""
    """The name of the tool that it used last, for people who wait."""
    last_error: str = ""
    ending: Ending | None = None
    denials: int = 0
    _settled: Usage = NOTHING
    _scopes: Mapping[str, Usage] = field(default_factory=dict)
    _before: Usage | None = None
    _turn: str = ""

    @property
    def usage(self) -> Usage:
        """All that was used."""
        if WHOLE in self._scopes:
            # The larger: a last word that says less than was counted is wrong, or forged.
            counted = sum((usage for scope, usage in self._scopes.items() if scope != WHOLE), self._settled)
            return max(self._scopes[WHOLE], counted, key=lambda usage: usage.tokens)
        if THREAD in self._scopes:
            return self._scopes[THREAD] - (self._before or NOTHING)
        return sum(self._scopes.values(), self._settled)

    def add(self, events: Iterable[AgentEvent]) -> Tally:
        """The tally after these events as well."""
        tally = self
        for event in events:
            tally = _COUNT[event.kind](tally, event)._count_turn(event)._count_usage(event)
            tally = replace(tally, model=event.model) if event.model else tally
        return tally

    def _count_turn(self, event: AgentEvent) -> Tally:
        if event.turn and event.turn != self._turn:
            return replace(self, turns=self.turns + 1, _turn=event.turn)
        return self

    def _count_usage(self, event: AgentEvent) -> Tally:
        if event.usage is None:
            return self
        if not event.scope:
            return replace(self, _settled=self._settled + event.usage)
        before = event.before if self._before is None else self._before
        scopes, settled = {**self._scopes, event.scope: event.usage}, self._settled
        if len(scopes) > MAX_SCOPES:
            settled += scopes.pop(next(iter(scopes)))
        return replace(self, _scopes=scopes, _settled=settled, _before=before)


_COUNT = {
    EventKind.SESSION: lambda tally, event: replace(tally, session_id=event.text or tally.session_id),
    EventKind.TEXT: lambda tally, event: replace(tally, last_text=event.text),
    EventKind.TOOL_CALL: lambda tally, event: replace(
        tally, tool_calls=tally.tool_calls + 1, ending=None, last_tool=event.tool
    ),
    EventKind.TOOL_RESULT: lambda tally, event: replace(tally, denials=tally.denials + event.denials),
    EventKind.RETRY: lambda tally, event: replace(tally, retries=tally.retries + 1, ending=None, last_error=event.text),
    EventKind.ERROR: lambda tally, event: replace(tally, last_error=event.text),
    EventKind.USAGE: lambda tally, event: tally,
    EventKind.END: lambda tally, event: replace(
        tally, ending=event.ending, denials=event.denials or tally.denials, last_error=event.text or tally.last_error
    ),
    EventKind.UNKNOWN: lambda tally, event: replace(tally, unknown=tally.unknown + 1),
}
