"""How much may be taken, by one run and by all that belong together: what is exceeded, and what soon will be. Pure."""

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
"""The share of a cap from which on an agent is told to come to an end, and the operator that the cap is near."""


class Scope(StrEnum):
    """What belongs together. Days and months are UTC's."""

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
    """The most that may be taken; None is without end."""

    jobs: int | None = None
    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    run_s: int | None = None
    """Seconds that agents run."""
    output_bytes: int | None = None
    """Bytes that agents print."""
    unpriced_turns: int | None = None
    """Turns of runs whose cost is unknown. With `unpriced_run_s`, it takes the place of a cap on money there."""
    unpriced_run_s: int | None = None

    @property
    def needs_prices(self) -> bool:
        """Whether only models of known cost may be asked: money is capped, and nothing takes its place elsewhere."""
        return self.cost_usd is not None and self.unpriced_turns is None and self.unpriced_run_s is None


DEFAULT_CAPS: Mapping[Scope, Caps] = {
    # `Limits.timeout_s` always caps the time of one run.
    Scope.JOB: Caps(cost_usd=10.0, unpriced_turns=300),
    Scope.USER_DAY: Caps(cost_usd=50.0, unpriced_turns=1_500, unpriced_run_s=5 * 3600),
    Scope.REPOSITORY_MONTH: Caps(cost_usd=500.0, unpriced_turns=15_000, unpriced_run_s=50 * 3600),
}
"""The caps of an installation whose operator has set none. At unknown cost, 300 turns and an hour stand for $10."""


@dataclass(frozen=True, slots=True)
class CapUse:
    """How far one cap is used up."""

    scope: Scope
    kind: str
    limit: float
    spent: float

    @property
    def share(self) -> float:
        """1.0 and more is too much."""
        return self.spent / self.limit if self.limit else math.inf

    @property
    def key(self) -> str:
        """The key of `ptq.toml` that sets it, also inside the table of a repository."""
        return f"caps.{self.scope}.{self.kind.removeprefix('unpriced_')}"

    def describe(self, requested_by: str, whose: str = "its") -> str:
        """It as a clause: `its cap of 200 turns`, `the cap of $30.00 for all attempts together`.

        The requester is named without an `@`: it may be an account on the host.
        """
        unit = _UNITS[self.kind].removesuffix("s") if self.limit == 1 else _UNITS[self.kind]
        amount = f"${self.limit:,.2f}" if self.kind == "cost_usd" else f"{self.limit:,.0f} {unit}"
        article = whose if self.scope is Scope.JOB else "the"
        return f"{article} cap of {amount}{OF_WHAT[self.scope].format(requester=requested_by)}"


def say_who_raises(key: str) -> str:
    """Who can raise a limit of `ptq.toml`, as a clause."""
    return f"the operator can raise it: {key} in ptq.toml"


_OPTIONS = {"turns": "--max-turns", "cost_usd": "--max-cost", "unpriced_turns": "--max-cost"}
"""The option of a request that sets a cap of this kind for its own run."""


def explain_raise(use: CapUse, request: JobRequest) -> str:
    """Who can raise a cap of a run, as a clause: the operator, or who requested the run with a lower limit."""
    if use.scope is Scope.JOB and use.limit == getattr(lower(Caps(), request), use.kind):
        instead = ", at 30 turns for each dollar" if use.kind == "unpriced_turns" else ""
        return f"set by {_OPTIONS[use.kind]} for this run{instead}: try again with a higher one"
    return say_who_raises(use.key)


def lower(caps: Caps, request: JobRequest) -> Caps:
    """The caps of a run, lowered to what its request allows.

    At unknown cost, turns stand for the money of the request, in the relation of the defaults.
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
    """How much of what one run says of itself counts towards a cap that others share; None is all.

    An agent without the gateway can say anything. So its word counts no more than what one run may take, and alone it
    never uses up more than half of such a cap.
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
    """Every cap there is, and what has been taken of it."""
    for scope, of_scope in caps.items():
        for field in fields(Caps):
            limit = getattr(of_scope, field.name)
            if limit is not None:
                yield CapUse(scope, field.name, limit, _count(spent.get(scope, NOTHING), field.name))


def _count(usage: Usage, kind: str) -> float:
    """What of a usage counts for a cap of this kind. Money that nobody knows does not count."""
    taken: float = usage.known_usd if kind == "cost_usd" else getattr(usage, kind)
    return taken


def find_tightest(caps: Mapping[Scope, Caps], spent: Mapping[Scope, Usage], *, starting: bool = False) -> CapUse | None:
    """The cap that is used up most. None when there is none.

    The number of jobs holds back only those that are `starting`: one that runs counts among them.
    """
    uses = (use for use in find_uses(caps, spent) if starting or use.kind != "jobs")
    return max(uses, key=lambda use: use.share, default=None)
