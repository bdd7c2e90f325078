"""How much an installation may write on GitHub, and whose turn it is: the worthier a write, the more of it is theirs.

GitHub allows an installation to create content 80 times a minute and 500 times an hour:
https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits
Pure, but for the port by which the client asks for a turn. It refuses to know where turns are written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from handlers.ports import Worth

MINUTE_S = 60.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What GitHub takes from one installation, and how long we wait for our turn."""

    per_minute: int = 80
    per_hour: int = 500
    longest_wait_s: float = 10.0
    """Who would have to wait longer is told so instead."""
    longest_write_s: float = 160.0
    """Until a write that began has certainly ended, whatever becomes of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a write: it goes after `wait_s` seconds; or not at all for now, where it is `dropped`."""

    wait_s: float
    dropped: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """A write's place in the budget: it may go after `wait_s` seconds. `number` is the account's own count."""

    account: str
    number: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that is to be written. `case` is the issue that it is about."""

    id: str
    case: str
    worth: Worth
    since: datetime


class WriteBudget(Protocol):
    """Where every write of an account gets its turn first. One is shared by all who write as the same App."""

    async def reserve(self, account: str, worth: Worth) -> Turn:
        """A turn within the budget. Raises `OverBudget` when it would be long in coming."""

    async def settle(self, turn: Turn) -> None:
        """The write has ended, whatever came of it. Never raises: a turn that is not settled counts for longer."""


def plan_write(ages_s: Sequence[float], worth: Worth, budget: Budget) -> Plan:
    """When a write of this worth may go.

    `ages_s` are the seconds since each earlier write counted; negative for one that is under way and may yet count so
    late. No minute and no hour sees more writes than its budget, and each kind leaves the rest to the worthier ones.
    """
    newest_first = sorted(ages_s)
    wait_s = 0.0
    for period_s, most in ((MINUTE_S, budget.per_minute), (HOUR_S, budget.per_hour)):
        share = count_share(most, worth)
        if len(newest_first) >= share:
            wait_s = max(wait_s, period_s - newest_first[share - 1])
    # A live edit never queues: the next one says what is so then.
    patience_s = 0.0 if worth is Worth.LIVE else budget.longest_wait_s
    return Plan(wait_s, dropped=wait_s > patience_s)


def count_share(most: int, worth: Worth) -> int:
    """How many of `most` writes may have been made when one of this worth still goes; at least 1."""
    return max(1, -(-most * worth.percent // 100))


def take_turns(waiting: Iterable[Waiting]) -> list[Waiting]:
    """In which order they are written: what is worth more goes first.

    Within one worth every case gets a turn before any case gets a second one, and what came first goes first. So a
    case with much to say holds up no other, and none of them starves.
    """
    places: list[tuple[int, int, datetime, str, Waiting]] = []
    turns: Counter[tuple[str, Worth]] = Counter()
    for one in sorted(waiting, key=lambda one: (one.since, one.id)):
        places.append((-one.worth.percent, turns[one.case, one.worth], one.since, one.id, one))
        turns[one.case, one.worth] += 1
    return [place[-1] for place in sorted(places, key=lambda place: place[:-1])]
