"""What agents ask of models, as rows: reserved before it is asked, settled once it is answered, so that none is lost.

A row that is still open when nobody can answer it any more counts as it was reserved, and says so. It refuses to know
how requests travel, and what they say.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import func, insert, literal, select, true

from runner.db.batches import Batches
from runner.db.database import Database
from runner.db.schema import model_calls
from runner.model.caps import Caps, CapUse, Scope, explain_raise, find_uses
from runner.model.job import Job
from runner.model.meter import Meter
from runner.model.usage import NOTHING, Usage
from runner.rows.claims import ClaimLost, require_claim
from runner.rows.usage_columns import sum_usage, write_usage

OPEN, SETTLED, ASSUMED = "open", "settled", "assumed"

MAX_CALLS = 20_000
"""Of one job: each is two rows, also one that takes nothing."""

MAX_BATCH = 200
"""Rows that share a commit."""


class AtCap(Exception):  # noqa: N818 - what is the case
    """A call does not fit under a cap any more. The message is a clause for people and agents."""


_COUNTED = ("turns", "tokens", "cost_usd", "unpriced_turns")
"""The caps on what calls take. Everybody else who watches over a run reads it only every few seconds."""

_SHARED: Mapping[Scope, tuple[str, ...]] = {
    Scope.ISSUE: ("repository", "thread", "series"),
    Scope.USER_DAY: ("requested_by",),
    Scope.REPOSITORY_DAY: ("repository",),
    Scope.REPOSITORY_MONTH: ("repository",),
}
"""What two jobs have in common that come under one cap. What was taken on another day has been written down by now."""


@dataclass(slots=True)
class Account:
    """One job's calls, kept by the one replica that looks after the job."""

    job: Job
    caps: Mapping[Scope, Caps]
    others: Mapping[Scope, Usage]
    """What all that belongs together has taken beside this job, as it is written down."""
    stored: Mapping[str, Usage] = field(default_factory=dict)
    """What the same reading of the database says of this job and of those beside it. `others` has no other part of
    them."""
    beside: Mapping[str, Account] = field(default_factory=dict)
    """The accounts of all jobs that this replica looks after, as they come and go."""
    claim: Context = field(default_factory=copy_context)
    """Under which claim calls are made."""
    settled: Usage = NOTHING
    assumed: int = 0
    """How many calls nobody saw the end of; they count among the settled ones as they were reserved."""
    calls: int = 0
    """Free ones are counted only as long as the service runs."""
    open: dict[str, Usage] = field(default_factory=dict)
    refusal: str | None = None
    """At which cap a call was refused, and who can raise it. The run has ended with it, whatever the agent says."""
    _beside_then: Mapping[str, Account] = field(default_factory=dict)
    """The accounts beside this one when `others` was read, which may not know the end of one that has gone since."""

    def renew(self, caps: Mapping[Scope, Caps], others: Mapping[Scope, Usage], stored: Mapping[str, Usage]) -> None:
        """Go by what was read just now."""
        self.caps, self.others, self.stored = caps, others, stored
        self._beside_then = {**self.beside}

    @property
    def caps_money(self) -> bool:
        """Whether any cap on money holds."""
        return any(caps.cost_usd is not None for caps in self.caps.values())

    def check(self, wanted: Usage) -> None:
        """Raise `AtCap` unless this fits too, with all that is under way."""
        if self.calls >= MAX_CALLS:
            self.refusal = f"its {MAX_CALLS:,} calls of models"
            raise AtCap(f"the model was not asked again after {self.refusal}")
        total = sum(self.open.values(), self.settled + wanted).as_one()
        for scope, caps in self.caps.items():
            if caps.needs_prices and total.cost_usd is None:
                raise AtCap(
                    "nobody knows the price of every model that it asked, and there is a cap on money: see [prices]"
                )
            spent = sum(self._find_unread(scope), total + self.others.get(scope, NOTHING))
            counted = Caps(**{name: getattr(caps, name) for name in _COUNTED})
            for use in find_uses({scope: counted}, {scope: spent}):
                if use.share > 1:
                    raise AtCap(self._explain(use))

    def count_free(self) -> None:
        """Count a call that costs nothing. Raises `AtCap` if there were too many."""
        self.check(NOTHING)
        self.calls += 1

    def _find_unread(self, scope: Scope) -> Iterator[Usage]:
        """What jobs beside this one have taken under the same cap, or may take at most, and have not written down."""
        names = _SHARED.get(scope)
        for job_id, one in {**self._beside_then, **self.beside}.items() if names else ():
            if job_id != self.job.id and all(getattr(one.job, name) == getattr(self.job, name) for name in names or ()):
                yield sum(one.open.values(), one.settled).as_one() - self.stored.get(job_id, NOTHING)

    def _explain(self, use: CapUse) -> str:
        cap = use.describe(self.job.requested_by)
        self.refusal = f"{cap} ({explain_raise(use, self.job)})"
        return f"the model was not asked again at {cap}: what the next answer may take at most is beyond it"

    def correct(self, meter: Meter) -> Meter:
        """A reading by the agent's own words, with what was counted here in place of its turns, tokens and money."""
        said = meter.usage
        usage = replace(self.settled, jobs=said.jobs, run_s=said.run_s, output_bytes=said.output_bytes).as_one()
        return replace(meter, usage=usage, cost_is_estimate=usage.cost_usd is not None, is_self_reported=False)


class Ledger:
    """The rows: they are only ever added, many to a commit."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # A disk that is slow to sync would hold up each call of a model, and each that follows. See docs/gateway.md.
        self._batches = Batches(partial(db.relaxed_commit.insert, model_calls, key="id"), MAX_BATCH)

    async def load(self, account: Account, now: datetime) -> None:
        """Read what the job has taken so far. What an earlier replica left open is assumed to have taken all."""
        mine, end = model_calls.c.job_id == account.job.id, model_calls.alias()
        has_end = select(end.c.id).where(end.c.id == model_calls.c.id, end.c.ended).exists()
        given = {"ended": true(), "state": literal(ASSUMED), "at": literal(now, model_calls.c.at.type)}
        left = select(*(given.get(column.name, column) for column in model_calls.c)).where(mine, ~has_end)
        counts = (func.count(), func.count().filter(model_calls.c.state == ASSUMED))
        async with self._db.write() as connection:
            await connection.execute(insert(model_calls).from_select([*model_calls.c], left))
            ended = mine, model_calls.c.ended
            account.calls, account.assumed = (await connection.execute(select(*counts).where(*ended))).one()
            settled = (await connection.execute(select(*sum_usage(model_calls)).where(*ended))).one()
        account.settled = Usage(**settled._mapping)

    async def reserve(self, account: Account, model: str, most: Usage, now: datetime) -> str:
        """Write down that the model will be asked: the call's id. Raises `AtCap`, and `ClaimLost`."""
        account.claim.run(require_claim, 0)
        account.check(most)
        call_id = secrets.token_hex(8)
        account.open[call_id] = most  # Before anything is awaited: calls come side by side.
        writing = self._batches.add(_make_row(account, call_id, OPEN, model, most, now))
        try:
            await asyncio.shield(writing)
            account.claim.run(require_claim, 0)  # Whoever has it by now may not have read this row.
        except (asyncio.CancelledError, ClaimLost):
            # Nobody will ask; the row may be there all the same.
            await asyncio.shield(asyncio.ensure_future(self._give_back(writing, account, call_id, model, now)))
            raise
        except BaseException:
            del account.open[call_id]
            raise
        account.calls += 1
        return call_id

    async def _give_back(
        self, writing: asyncio.Future[bool], account: Account, call_id: str, model: str, now: datetime
    ) -> None:
        await asyncio.wait([writing])
        if writing.exception():
            del account.open[call_id]
        else:
            await self.settle(account, call_id, model, NOTHING, now, assumed=False)

    async def settle(
        self, account: Account, call_id: str, model: str, taken: Usage, now: datetime, *, assumed: bool
    ) -> None:
        """Write down what a call took. `assumed` where nobody saw its end."""
        del account.open[call_id]
        account.settled += taken
        account.assumed += assumed
        # Where another replica has assumed something of it by now, that stays.
        await self._batches.add(_make_row(account, call_id, ASSUMED if assumed else SETTLED, model, taken, now))


def _make_row(account: Account, call_id: str, state: str, model: str, taken: Usage, now: datetime) -> dict[str, Any]:
    row = {"id": call_id, "ended": state != OPEN, "job_id": account.job.id, "model": model, "state": state, "at": now}
    return row | write_usage(taken, model_calls)
