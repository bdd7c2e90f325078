"""Checks whether deliveries can be stored now. Anyone can ask, so the answer is cached for a moment."""

from __future__ import annotations

from dataclasses import dataclass

from cachetools import TTLCache

from handlers.inbox.inbox import count_deliveries
from runner.db.database import Database
from runner.single_flight import SingleFlight

LASTS_S = 1.0
"""How long an answer is cached, in seconds. Each check is a write transaction, and only one of these runs at a time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The HTTP status and the body of an answer."""

    status: int
    body: dict[str, object]


class Readiness:
    """Checks the database, once for all requests of the same moment."""

    def __init__(self, db: Database, max_pending: int) -> None:
        self._db = db
        self._max_pending = max_pending
        self._known: TTLCache[str, Answer] = TTLCache(1, LASTS_S)
        self._looks = SingleFlight[str, Answer]()

    async def find(self) -> Answer:
        """The cached answer, or a new one."""
        return self._known.get("") or await self._looks.join("", self._look)

    async def _look(self) -> Answer:
        self._known[""] = answer = await self._try()
        return answer

    async def _try(self) -> Answer:
        try:
            await self._db.accepts_writes()
            waiting = await count_deliveries(self._db, ("pending",))
        except Exception as error:  # Any error means that the service is not ready.
            return Answer(503, {"status": "the database is not writable", "error": type(error).__name__})
        if waiting["pending"] >= self._max_pending:
            return Answer(503, {"status": "the inbox is full", **waiting})
        return Answer(200, {"status": "ok"})
