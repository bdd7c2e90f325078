"""What agents printed, and how it was judged: the transcripts, read by their backends, and the table of verdicts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.agents import BACKENDS, Agent, AgentSpec, build_agent
from runner.agents.events import AgentEvent, Tally
from runner.agents.verdict import judge
from runner.model.ending import Ending, RunVerdict

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"

_TABLE = tomllib.loads((TRANSCRIPTS / "verdicts.toml").read_text())

HAPPENINGS: Mapping[str, str] = _TABLE["happenings"]
"""What a transcript's name says happened, in words."""

WRITTEN_BY_HAND: frozenset[str] = frozenset(_TABLE["written_by_hand"])
"""The kinds whose transcripts are no recordings."""


@dataclass(frozen=True)
class Judged:
    """One transcript, and the verdict that it must get."""

    kind: str
    name: str
    exit_statuses: tuple[int, ...]
    """The one that was seen most comes first; on a busy machine a race inside the program may give another."""
    ending: Ending

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def list_judged() -> Sequence[Judged]:
    """The table of verdicts."""
    return [
        Judged(kind, name, tuple(_listed(row["exit_status"])), Ending(row["ending"]))
        for kind in BACKENDS
        for name, row in _TABLE.get(kind, {}).items()
    ]


@dataclass(frozen=True)
class EndedByService:
    """A run that the service itself ends."""

    name: str
    what: str
    """What happened, in Markdown."""
    ending: Ending
    says: str
    """What its report says of it."""
    config: str = ""
    """What brings it about, in `ptq.toml`."""

    def __str__(self) -> str:
        return self.name


def list_ended_by_service() -> Sequence[EndedByService]:
    """The endings that are the service's own doing, the same for every backend."""
    rows = _TABLE["service"].items()
    return [EndedByService(name, **{**row, "ending": Ending(row["ending"])}) for name, row in rows]


def _listed(statuses: int | list[int]) -> list[int]:
    return statuses if isinstance(statuses, list) else [statuses]


def build(kind: str, **fields: object) -> Agent:
    """A backend, with as much configuration as it needs."""
    return build_agent(AgentSpec("mine", kind, **{"command": ("agent",), **fields}))  # type: ignore[arg-type]


def list_speaking() -> Sequence[str]:
    """The kinds that say themselves how a run ended."""
    return [kind for kind in BACKENDS if build(kind).speaks]


def list_transcripts(kind: str) -> Sequence[Path]:
    """The transcripts of a kind."""
    return sorted((TRANSCRIPTS / kind).glob("*.jsonl"))


def read_lines(kind: str, name: str) -> Sequence[str]:
    """A transcript, line by line."""
    return (TRANSCRIPTS / kind / f"{name}.jsonl").read_text().splitlines()


def read_events(kind: str, name: str) -> Iterator[AgentEvent]:
    """A transcript, as its backend reads it."""
    agent = build(kind)
    return (event for line in read_lines(kind, name) for event in agent.read_line(line))


def tally_of(kind: str, name: str) -> Tally:
    """What a transcript amounts to."""
    return Tally().add(read_events(kind, name))


def verdict_on(kind: str, name: str, exit_status: int) -> RunVerdict:
    """How a transcript's run ended."""
    return judge(tally_of(kind, name), exit_status, speaks=build(kind).speaks)
