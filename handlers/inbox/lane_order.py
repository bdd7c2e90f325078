"""Decides which pending deliveries can be processed now, and has the query that reads them, oldest first.

Earlier deliveries of an issue go first. A cancel overtakes them, but later deliveries wait for it.
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
"""How many deliveries one query reads. Usually the first of them are due."""


@dataclass(frozen=True, slots=True)
class WaitingDelivery:
    """A pending delivery."""

    sequence: int
    lane: str
    due_at: datetime


@dataclass
class LanePicker:
    """Picks the first pending delivery of each lane. `look_at` gets them oldest first, in one or more parts."""

    busy: Mapping[str, int]
    """Lane -> sequence of the delivery in progress."""
    now: datetime
    cancels: bool
    """Whether to pick cancels, or all others."""
    most: int
    chosen: list[int] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    """Lanes whose first delivery was seen."""

    def look_at(self, waiting: Iterable[WaitingDelivery]) -> None:
        """Pick from these deliveries. They are newer than all that were looked at before."""
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
        """Whether enough deliveries are picked."""
        return len(self.chosen) >= self.most

    def _is_held_up(self, one: WaitingDelivery) -> bool:
        """Whether an earlier delivery of its issue is in progress."""
        return one.lane in self.busy or self.busy.get(one.lane + CANCEL_LANE, one.sequence) < one.sequence


def _find_oldest(*, cancels: bool) -> Select[Any]:
    """The query for pending deliveries, oldest first. Cancels have their own: many others may be before them."""
    query = (
        select(deliveries.c.sequence, deliveries.c.lane, deliveries.c.next_attempt_at)
        .where(PENDING, deliveries.c.sequence > bindparam("after", type_=Integer()))
        .where(deliveries.c.lane.not_in(bindparam("busy", expanding=True)))
    )
    if cancels:
        query = query.where(deliveries.c.lane.endswith(CANCEL_LANE))
    return query.order_by(deliveries.c.sequence).limit(PAGE)


_OLDEST = {cancels: _find_oldest(cancels=cancels) for cancels in (True, False)}
"""Built once, because building a query is slower than running it."""


async def find_due(
    connection: AsyncConnection, busy: Mapping[str, int], now: datetime, *, cancels: bool, most: int
) -> Collection[int]:
    """The sequences of up to `most` deliveries that can be processed now: cancels, or all others."""
    choice, after = LanePicker(busy, now, cancels, most), 0
    while not choice.is_done:
        rows = (await connection.execute(_OLDEST[cancels], {"busy": [*busy], "after": after})).all()
        choice.look_at(WaitingDelivery(*row) for row in rows)
        if len(rows) < PAGE:
            break
        after = rows[-1].sequence
    return choice.chosen
