"""The loop that carries out effects: it takes what is due in its order, and stores what becomes of each attempt.

A kind of effect is a class in a file of its own: which row is next, its steps, and what is said when it is given up.
The attempt is stored before the steps begin, so that after a crash they know that an earlier attempt may have worked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.context import Context
from handlers.effects.retry_policy import MAX_COUNTED, Verdict
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

FRESH: Mapping[str, object] = {"attempts": 0, "refusals": 0, "trouble": None}
"""What a row says of its attempts once the effect is there."""


class Tries(Protocol):
    """What the row of any effect says of its attempts."""

    @property
    def attempts(self) -> int:
        """How many there were in a row."""

    @property
    def refusals(self) -> int:
        """How many of them were refused."""


Row = TypeVar("Row", bound=Tries)


@dataclass(frozen=True, slots=True)
class Due(Generic[Row]):
    """A row whose turn it is. A kind may add what its steps need."""

    key: str
    row: Row
    log_context: Mapping[str, object]
    """The ids that every log line about it carries."""


Item = TypeVar("Item", bound=Due[Any])


class NotSent(Exception):  # noqa: N818 - what is the case
    """Nothing was sent, so this was no attempt. `changes` are stored instead."""

    def __init__(self, **changes: object) -> None:
        super().__init__("nothing was sent")
        self.changes = changes


class Effect(ABC, Generic[Item]):
    """One kind of effect. Its rows have the columns of `runner.db.columns.retry_columns`."""

    store: ClassVar[Callable[..., Awaitable[object]]]
    """Changes columns of a row: `(connection, row, **changes)`."""
    waits: ClassVar[str]
    """The event in the log of one that waits."""
    waits_for_turn: ClassVar[str] = "effect.waits_for_turn"
    """The same where nothing was sent."""
    marks: ClassVar[Mapping[str, object]] = {}
    """What else is stored with an attempt. It is taken back where nothing was sent."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    async def fetch_next(self, connection: AsyncConnection, now: datetime, tried: Collection[str]) -> Item | None:
        """What is due and goes first, but for the keys that this pass has `tried`."""

    @abstractmethod
    async def carry_out(self, due: Item) -> None:
        """Look for what an earlier attempt has left, write what is missing, and store that it is there.

        The row is as it was before this attempt. Raises `NotSent`, `Abandoned`, or what the other side says.
        """

    @abstractmethod
    def judge(self, due: Item, attempts: int, error: Exception) -> Verdict:
        """What the failure of an attempt means, the `attempts`-th in a row."""

    def after_failure(self) -> Mapping[str, object]:
        """What else is stored after an attempt that failed."""
        return {}

    async def replace_text(self, connection: AsyncConnection, due: Item, verdict: Verdict) -> bool:
        """Store another text that may be taken; False where there is none."""
        return False

    async def give_up(self, connection: AsyncConnection, due: Item, verdict: Verdict, error: Exception) -> None:
        """Store that this will never be there, and why, and log it."""
        await self.store(connection, due.row, abandoned=verdict.trouble, trouble=None)
        log.error("effect.abandoned", **due.log_context, reason=str(error))

    async def save(self, due: Item, **changes: Any) -> None:
        """`store` in a transaction of its own."""
        async with self.context.db.write() as connection:
            await self.store(connection, due.row, **changes)


async def drain(effect: Effect[Item]) -> None:
    """Carry out everything of one kind that is due. One that fails waits; the others go on."""
    tried: set[str] = set()
    while True:
        # Looked up again each time: writes are slow by GitHub's own rules, and something worthier may have come.
        async with effect.context.db.read() as connection:
            due = await effect.fetch_next(connection, effect.context.now(), tried)
        if due is None:
            return
        tried.add(due.key)
        with structlog.contextvars.bound_contextvars(**due.log_context):
            await _attempt(effect, due)


async def _attempt(effect: Effect[Item], due: Item) -> None:
    marks = {"attempts": min(due.row.attempts + 1, MAX_COUNTED), **effect.marks}
    unmarked = {name: getattr(due.row, name) for name in marks}
    await effect.save(due, **marks)
    try:
        await effect.carry_out(due)
    except NotSent as error:
        await effect.save(due, **{**unmarked, **error.changes})
    except ClaimLost:
        raise
    except Exception as error:
        verdict = effect.judge(due, marks["attempts"], error)
        await _apply(effect, due, verdict, error, effect.after_failure() if verdict.was_sent else unmarked)


async def _apply(
    effect: Effect[Item], due: Item, verdict: Verdict, error: Exception, changes: Mapping[str, Any]
) -> None:
    """Store what becomes of a failed attempt: another text, an end, or a wait."""
    if verdict.wait_s is not None:
        at = effect.context.now() + timedelta(seconds=verdict.wait_s)
        tries = {"refusals": verdict.refusals, "trouble": verdict.trouble, "next_attempt_at": at}
        await effect.save(due, **{**changes, **tries})
        if verdict.was_sent:
            facts = {"reason": str(error), "attempts": due.row.attempts + 1, "wait_s": verdict.wait_s}
            log.warning(effect.waits, **due.log_context, **facts, exc_info=verdict.is_ours)
        else:
            log.info(effect.waits_for_turn, **due.log_context, wait_s=round(verdict.wait_s))
        return
    async with effect.context.db.write() as connection:
        if not (verdict.wants_other_text and await effect.replace_text(connection, due, verdict)):
            await effect.give_up(connection, due, verdict, error)
    effect.context.ring()
