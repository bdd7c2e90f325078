"""The common form of agents' output: a backend parses its lines into these events, and a `Tally` sums them up. Pure.

How a run ended is judged from its events, never from the exit status alone. Some programs exit with 0 although their
model could not be reached, or with 1 although they had finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from runner.model.ending import Ending
from runner.model.usage import NOTHING, Usage

MAX_TEXT = 4_000
"""The most characters of an event's text, which is only for people. The raw line is stored, too."""

WHOLE = "whole"
"""The scope of a usage that covers the whole process, and replaces all other usages of the process."""

GOES_ON = "\x1e[Somebody has told the agent something. Its session goes on.]"
"""The line between two processes of a session in an agent's log. `runner.jobd.stages.told` writes it. It begins with a
mark that jobd removes from everything that the agent prints."""

MAX_SCOPES = 50
"""The most scopes whose usage may still change. Only a few answers arrive at the same time."""

THREAD = "thread"
"""The scope of a usage that covers a session. A resumed session includes the usage of earlier runs."""


class EventKind(StrEnum):
    """The kind of an event."""

    SESSION = "session"
    """The agent reported its session id."""

    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    RETRY = "retry"
    """The model did not answer, and the agent tries again. Nothing has ended."""

    ERROR = "error"
    USAGE = "usage"
    END = "end"
    UNKNOWN = "unknown"
    """An event that this version does not know. It is counted, and never ends the run."""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """Something that an agent said or did."""

    kind: EventKind
    text: str = ""
    tool: str = ""
    failed: bool = False
    """Whether a tool call failed."""

    usage: Usage | None = None
    scope: str = ""
    """The name of what the usage covers. Only the newest usage of a scope counts. Usages without a scope are added."""

    before: Usage | None = None
    """For scope `THREAD`: the usage of the session before this run."""

    model: str = ""
    """The current model, if the backend reports it."""

    turn: str = ""
    """The id of the model answer that the event belongs to. A new answer is a new turn."""

    ending: Ending | None = None
    denials: int = 0
    """How many tool calls were not permitted: in one tool's result, or in total in the event of kind `END`."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of a run's events so far."""

    session_id: str | None = None
    model: str = ""
    processes: int = 0
    """How many processes of the session were replaced because the agent was told something."""
    turns: int = 0
    tool_calls: int = 0
    open_calls: int = 0
    """Tool calls without a result."""
    retries: int = 0
    unknown: int = 0
    last_tool: str = ""
    """The name of the last used tool, for people who wait."""
    last_error: str = ""
    ending: Ending | None = None
    denials: int = 0
    _earlier: Usage = NOTHING
    """The usage of the earlier processes of the session."""
    _settled: Usage = NOTHING
    _scopes: Mapping[str, Usage] = field(default_factory=dict)
    _before: Usage | None = None
    _turn: str = ""
    _earlier_turns: int = 0

    @property
    def usage(self) -> Usage:
        """The total usage."""
        return self._earlier + self._usage_of_process

    @property
    def turns_of_process(self) -> int:
        """How often the model has answered the current process. After the first answer, it has read its input."""
        return self.turns - self._earlier_turns

    @property
    def _usage_of_process(self) -> Usage:
        if WHOLE in self._scopes:
            # The larger one counts. A final total that is less than the counted usage is wrong or forged.
            counted = sum((usage for scope, usage in self._scopes.items() if scope != WHOLE), self._settled)
            return max(self._scopes[WHOLE], counted, key=lambda usage: usage.tokens)
        if THREAD in self._scopes:
            return self._scopes[THREAD] - (self._before or NOTHING)
        return sum(self._scopes.values(), self._settled)

    def add(self, events: Iterable[AgentEvent]) -> Tally:
        """The tally after these events."""
        tally = self
        for event in events:
            tally = _COUNT[event.kind](tally, event)._count_turn(event)._count_usage(event)
            tally = replace(tally, model=event.model) if event.model else tally
        return tally

    def go_on(self) -> Tally:
        """The tally when another process resumes the session.

        If the usage has the scope `THREAD`, the next process reports it for the whole session, so it is not added up.
        """
        tally = replace(
            self, processes=self.processes + 1, ending=None, open_calls=0, _turn="", _earlier_turns=self.turns
        )
        if THREAD in self._scopes:
            return tally
        return replace(tally, _earlier=self.usage, _settled=NOTHING, _scopes={})

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
    EventKind.TEXT: lambda tally, event: tally,
    EventKind.TOOL_CALL: lambda tally, event: replace(
        tally,
        tool_calls=tally.tool_calls + 1,
        open_calls=tally.open_calls + 1,
        ending=None,
        last_tool=event.tool,
    ),
    EventKind.TOOL_RESULT: lambda tally, event: replace(
        tally, denials=tally.denials + event.denials, open_calls=max(tally.open_calls - 1, 0)
    ),
    EventKind.RETRY: lambda tally, event: replace(tally, retries=tally.retries + 1, ending=None, last_error=event.text),
    EventKind.ERROR: lambda tally, event: replace(tally, last_error=event.text),
    EventKind.USAGE: lambda tally, event: tally,
    EventKind.END: lambda tally, event: replace(
        tally, ending=event.ending, denials=event.denials or tally.denials, last_error=event.text or tally.last_error
    ),
    EventKind.UNKNOWN: lambda tally, event: replace(tally, unknown=tally.unknown + 1),
}
