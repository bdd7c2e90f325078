"""The loop that carries out effects in order, and stores the result of each attempt.

Each kind of effect is a class in its own file. The class says which row is next, what its steps are, and what happens
when an effect is given up. An attempt is stored before its steps begin. So after a crash, the next attempt knows that
an earlier one may have worked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.context import Context
from handlers.effects.retry_policy import MAX_COUNTED, Verdict, judge
from runner.rows.claims import ClaimLost
from runner.rows.effect_rows import EffectRow

log = structlog.get_logger()

FRESH: Mapping[str, object] = {"attempts": 0, "refusals": 0, "absences": 0, "trouble": None}
"""The columns that a success resets."""

Row = TypeVar("Row", bound=EffectRow)


@dataclass(frozen=True, slots=True)
class Due(Generic[Row]):
    """The next row to carry out. A subclass may add what its steps need."""

    key: str
    row: Row
    log_context: Mapping[str, object]
    """The ids in every log line about the row."""


Item = TypeVar("Item", bound=Due[Any])


class NotSent(Exception):  # noqa: N818 - not a failure
    """Nothing was sent, so this does not count as an attempt. `changes` are stored instead."""

    def __init__(self, **changes: object) -> None:
        super().__init__("nothing was sent")
        self.changes = changes


class Effect(ABC, Generic[Item]):
    """One kind of effect."""

    store: ClassVar[Callable[..., Awaitable[object]]]
    """Changes columns of a row: `(connection, row, **changes)`."""
    waits: ClassVar[str]
    """The log event after a failed attempt that will be retried."""
    waits_for_turn: ClassVar[str] = "effect.waits_for_turn"
    """The log event if nothing was sent."""
    has_quiet_since: ClassVar[bool] = False
    """Whether its rows have `quiet_since`: since when no attempt is running. None means that one may be running."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> Item | None:
        """The next due row whose key this pass has not `tried`."""

    @abstractmethod
    async def carry_out(self, due: Item) -> None:
        """Look for the result of an earlier attempt, write what is missing, and store that it exists.

        `due.row` is the row as it was before this attempt was counted. Raises `NotSent`, `Abandoned`, or the error of
        the other side.
        """

    def judge(self, due: Item, error: Exception) -> Verdict:
        """Decide what follows a failed attempt."""
        return judge(error, due.row)

    async def replace_text(self, connection: AsyncConnection, due: Item, verdict: Verdict) -> bool:
        """Store another text that may be accepted. Returns False if there is none."""
        return False

    async def give_up(self, connection: AsyncConnection, due: Item, verdict: Verdict, error: Exception) -> None:
        """Store and log that the effect is abandoned, and why."""
        await self.store(connection, due.row, abandoned=verdict.trouble, trouble=None)
        log.error("effect.abandoned", **due.log_context, reason=str(error))

    async def save(self, due: Item, **changes: Any) -> None:
        """`store` in its own transaction."""
        async with self.context.db.write() as connection:
            await self.store(connection, due.row, **changes)


async def drain(effect: Effect[Item]) -> None:
    """Carry out all due effects of one kind. A failed effect waits, and the others continue."""
    tried: set[str] = set()
    while True:
        # Looked up before each write: GitHub requires slow writes, and a more important one may have been added.
        async with effect.context.db.read() as connection:
            due = await effect.fetch_next(connection, effect.context.now(), tried)
        if due is None:
            return
        tried.add(due.key)
        with structlog.contextvars.bound_contextvars(**due.log_context):
            await _attempt(effect, due)


async def _attempt(effect: Effect[Item], due: Item) -> None:
    started: dict[str, object] = {"attempts": min(due.row.attempts + 1, MAX_COUNTED)}
    if effect.has_quiet_since:
        started["quiet_since"] = None
    before = {name: getattr(due.row, name) for name in started}
    await effect.save(due, **started)
    try:
        await effect.carry_out(due)
    except NotSent as error:
        await effect.save(due, **{**before, **error.changes})
    except ClaimLost:
        raise
    except Exception as error:
        verdict = effect.judge(due, error)
        ended = {"quiet_since": effect.context.now()} if effect.has_quiet_since else {}
        await _apply(effect, due, verdict, error, ended if verdict.was_sent else before)


async def _apply(
    effect: Effect[Item], due: Item, verdict: Verdict, error: Exception, changes: Mapping[str, Any]
) -> None:
    """Store the consequence of a failed attempt: another text, giving up, or a wait."""
    if verdict.wait_s is not None:
        at = effect.context.now() + timedelta(seconds=verdict.wait_s)
        await effect.save(due, **{**changes, **verdict.columns, "next_attempt_at": at})
        if verdict.was_sent:
            facts = {"reason": str(error), "attempts": due.row.attempts + 1, "wait_s": verdict.wait_s}
            log.warning(effect.waits, **due.log_context, **facts, exc_info=verdict.is_ours)
        else:
            log.info(effect.waits_for_turn, **due.log_context, wait_s=round(verdict.wait_s))
        return
    async with effect.context.db.write() as connection:
        if not (verdict.wants_other_text and await effect.replace_text(connection, due, verdict)):
            await effect.give_up(connection, due, verdict, error)
    effect.context.notify()
