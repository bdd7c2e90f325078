"""Which deliveries may be worked now: a decision over those that wait, oldest first, and the query that brings them.

What came earlier on an issue goes first. A cancel overtakes that, and yet what came after it waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, Select, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.events import CANCEL_LANE
from runner.db.schema import PENDING, deliveries

PAGE = 100
"""How many that wait are looked at in one query; most often the first of them are due."""


@dataclass(frozen=True, slots=True)
class WaitingDelivery:
    """A delivery that is to be worked."""

    sequence: int
    lane: str
    due_at: datetime


@dataclass
class LanePicker:
    """Picks the first of each lane among those that wait, which are shown to it oldest first, in one part or many."""

    busy: Mapping[str, int]
    """Lanes in which one is being worked, each with its sequence."""
    now: datetime
    cancels: bool
    """Whether cancels are looked for, or everything else."""
    most: int
    chosen: list[int] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    """Lanes of which the first has been seen."""

    def look_at(self, waiting: Iterable[WaitingDelivery]) -> None:
        """Choose among these, which are younger than all before."""
        for one in waiting:
            if one.lane in self.closed or self._is_held_up(one):
                continue
            self.closed.add(one.lane)
            if is_cancel := one.lane.endswith(CANCEL_LANE):
                self.closed.add(one.lane.removesuffix(CANCEL_LANE))
            if is_cancel is self.cancels and one.due_at <= self.now and not self.is_done:
                self.chosen.append(one.sequence)

    @property
    def is_done(self) -> bool:
        """Whether no more are wanted."""
        return len(self.chosen) >= self.most

    def _is_held_up(self, one: WaitingDelivery) -> bool:
        """Whether something that came before it on its issue is being worked."""
        return one.lane in self.busy or self.busy.get(one.lane + CANCEL_LANE, one.sequence) < one.sequence


def _find_oldest(*, cancels: bool) -> Select[Any]:
    """Find what waits, oldest first; only cancels, if wanted, because many others may have come before them."""
    query = (
        select(deliveries.c.sequence, deliveries.c.lane, deliveries.c.next_attempt_at)
        .where(PENDING, deliveries.c.sequence > bindparam("after", type_=Integer()))
        .where(deliveries.c.lane.not_in(bindparam("busy", expanding=True)))
    )
    if cancels:
        query = query.where(deliveries.c.lane.endswith(CANCEL_LANE))
    return query.order_by(deliveries.c.sequence).limit(PAGE)


_OLDEST = {cancels: _find_oldest(cancels=cancels) for cancels in (True, False)}
"""Made once: making one costs more than asking it."""


async def find_due(
    connection: AsyncConnection, busy: Mapping[str, int], now: datetime, *, cancels: bool, most: int
) -> Collection[int]:
    """The sequences of at most so many deliveries that may be worked now: cancels, or all others."""
    choice, after = LanePicker(busy, now, cancels, most), 0
    while not choice.is_done:
        rows = (await connection.execute(_OLDEST[cancels], {"busy": [*busy], "after": after})).all()
        choice.look_at(WaitingDelivery(*row) for row in rows)
        if len(rows) < PAGE:
            break
        after = rows[-1].sequence
    return choice.chosen
