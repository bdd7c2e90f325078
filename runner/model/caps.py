"""Caps: how much one run, or several runs together, may use, and how far each cap is used up. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TypeVar

from runner.model.job import JobRequest
from runner.model.usage import NOTHING, Usage

Number = TypeVar("Number", int, float)

WARN_FROM = 0.8
"""When this share of a cap is used, the agent is told to finish, and the operator is told that the cap is near."""


class Scope(StrEnum):
    """The runs whose usage is added up for a cap. Days and months are in UTC."""

    JOB = "job"
    ISSUE = "issue"
    USER_DAY = "user_day"
    REPOSITORY_DAY = "repository_day"
    REPOSITORY_MONTH = "repository_month"


OF_WHAT: Mapping[Scope, str] = {
    Scope.JOB: "",
    Scope.ISSUE: " for all attempts together",
    Scope.USER_DAY: " for what {requester} asked for today",
    Scope.REPOSITORY_DAY: " for this repository today",
    Scope.REPOSITORY_MONTH: " for this repository this month",
}


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that the runs in one scope may use. None means no cap."""

    jobs: int | None = None
    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    run_s: int | None = None
    """Seconds that agents run."""
    output_bytes: int | None = None
    """Bytes that agents print."""
    unpriced_turns: int | None = None
    """Turns of runs whose cost is unknown. For these runs, this and `unpriced_run_s` replace a cap on money."""
    unpriced_run_s: int | None = None

    @property
    def needs_prices(self) -> bool:
        """Whether only models with a known cost may be used.

        This is so if money is capped, and no other cap replaces this one for runs of unknown cost.
        """
        return self.cost_usd is not None and self.unpriced_turns is None and self.unpriced_run_s is None


DEFAULT_CAPS: Mapping[Scope, Caps] = {
    # `Limits.timeout_s` always caps the time of one run.
    Scope.JOB: Caps(cost_usd=10.0, unpriced_turns=300),
    Scope.USER_DAY: Caps(cost_usd=50.0, unpriced_turns=1_500, unpriced_run_s=5 * 3600),
    Scope.REPOSITORY_MONTH: Caps(cost_usd=500.0, unpriced_turns=15_000, unpriced_run_s=50 * 3600),
}
"""The caps of an installation whose operator has set none. At unknown cost, 300 turns, or an hour, count as $10."""


@dataclass(frozen=True, slots=True)
class CapUse:
    """How far one cap is used up."""

    scope: Scope
    kind: str
    limit: float
    spent: float

    @property
    def share(self) -> float:
        """The used share of the cap. From 1.0 on, the cap is used up."""
        return self.spent / self.limit if self.limit else math.inf

    @property
    def key(self) -> str:
        """The key in `ptq.toml` that sets the cap. In a repository's table, the key is the same."""
        return f"caps.{self.scope}.{self.kind.removeprefix('unpriced_')}"

    def describe(self, requested_by: str, whose: str = "its") -> str:
        """Describe the cap for people: `its cap of 200 turns`, `the cap of $30.00 for all attempts together`.

        The requester is named without an `@`, because the name may be that of an account on the host.
        """
        unit = _UNITS[self.kind].removesuffix("s") if self.limit == 1 else _UNITS[self.kind]
        amount = f"${self.limit:,.2f}" if self.kind == "cost_usd" else f"{self.limit:,.0f} {unit}"
        article = whose if self.scope is Scope.JOB else "the"
        return f"{article} cap of {amount}{OF_WHAT[self.scope].format(requester=requested_by)}"


def say_who_raises(key: str) -> str:
    """Who can raise a limit of `ptq.toml`, as a clause."""
    return f"the operator can raise it: {key} in ptq.toml"


_OPTIONS = {"turns": "--max-turns", "cost_usd": "--max-cost", "unpriced_turns": "--max-cost"}
"""Kind of cap -> the option with which a request sets such a cap for its own run."""


def explain_raise(use: CapUse, request: JobRequest) -> str:
    """Who can raise a cap of a run, as a clause: the operator, or the requester if an option has set the cap."""
    if use.scope is Scope.JOB and use.limit == getattr(lower(Caps(), request), use.kind):
        instead = ", at 30 turns for each dollar" if use.kind == "unpriced_turns" else ""
        return f"set by {_OPTIONS[use.kind]} for this run{instead}: try again with a higher one"
    return say_who_raises(use.key)


def lower(caps: Caps, request: JobRequest) -> Caps:
    """The caps of a run, lowered to what its request allows.

    At unknown cost, turns replace the money that the request allows: as many turns for each dollar as in the defaults.
    """
    lowered = replace(caps, turns=_find_least(caps.turns, request.max_turns))
    if request.max_cost_usd is None:
        return lowered
    usual = DEFAULT_CAPS[Scope.JOB]
    assert usual.cost_usd
    assert usual.unpriced_turns
    instead = math.ceil(request.max_cost_usd / usual.cost_usd * usual.unpriced_turns)
    return replace(
        lowered,
        cost_usd=_find_least(caps.cost_usd, request.max_cost_usd),
        unpriced_turns=None if caps.needs_prices else _find_least(caps.unpriced_turns, instead),
    )


def bound_self_reported(caps: Mapping[Scope, Caps], scope: Scope) -> Caps:
    """The most of one run's self-reported usage that counts towards the caps of a scope. None means all of it.

    An agent that does not use the gateway can report anything. So its report counts at most as much as one run may use,
    and one run alone never uses up more than half of a shared cap.
    """
    run, shared = caps.get(Scope.JOB, Caps()), caps.get(scope, Caps())
    return Caps(
        turns=_find_least(run.turns, _halve(shared.turns)),
        unpriced_turns=_find_least(run.turns, run.unpriced_turns, _halve(shared.turns), _halve(shared.unpriced_turns)),
        tokens=_find_least(run.tokens, _halve(shared.tokens)),
        cost_usd=_find_least(run.cost_usd, None if shared.cost_usd is None else shared.cost_usd / 2),
    )


def _halve(limit: int | None) -> int | None:
    return None if limit is None else limit // 2


def _find_least(*limits: Number | None) -> Number | None:
    return min((limit for limit in limits if limit is not None), default=None)


_UNITS = {
    **{"jobs": "jobs", "turns": "turns", "tokens": "tokens", "cost_usd": "USD"},
    **{"run_s": "seconds", "output_bytes": "bytes of output"},
    **{"unpriced_turns": "turns at unknown cost", "unpriced_run_s": "seconds at unknown cost"},
}


def find_uses(caps: Mapping[Scope, Caps], spent: Mapping[Scope, Usage]) -> Iterator[CapUse]:
    """Every cap, and how much of it is used."""
    for scope, of_scope in caps.items():
        for field in fields(Caps):
            limit = getattr(of_scope, field.name)
            if limit is not None:
                yield CapUse(scope, field.name, limit, _count(spent.get(scope, NOTHING), field.name))


def _count(usage: Usage, kind: str) -> float:
    """The part of a usage that counts towards a cap of this kind. An unknown cost does not count as money."""
    counted: float = usage.known_usd if kind == "cost_usd" else getattr(usage, kind)
    return counted


def find_tightest(caps: Mapping[Scope, Caps], spent: Mapping[Scope, Usage], *, starting: bool = False) -> CapUse | None:
    """The cap with the largest used share. None if there is no cap.

    Caps on the number of jobs count only when a job is `starting`. A running job is already included in that number.
    """
    uses = (use for use in find_uses(caps, spent) if starting or use.kind != "jobs")
    return max(uses, key=lambda use: use.share, default=None)
