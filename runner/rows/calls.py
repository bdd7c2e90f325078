"""Rows of agents' calls to models, so that no usage is lost.

The most that a call can use is reserved before the model is asked. After the answer, the call is settled with its real
usage. If nobody saw the end of a call, the reserved usage counts, and the row's state is `assumed`. This module does
not know how requests are sent, or what they contain.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
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
"""The most calls of one job. Each call has two rows, even if it uses nothing."""

MAX_BATCH = 200
"""The most rows that share a commit."""


class AtCap(Exception):  # noqa: N818 - what is the case
    """A call does not fit under a cap. The message is a clause for people and agents."""


_COUNTED = ("turns", "tokens", "cost_usd", "unpriced_turns")
"""The kinds of caps that are checked before each call. All other checks of a run happen only every few seconds."""

_SHARED: Mapping[Scope, Callable[[Job], object]] = {
    Scope.JOB: attrgetter("id"),
    Scope.ISSUE: attrgetter("repository", "thread", "series"),
    Scope.USER_DAY: attrgetter("requested_by"),
    Scope.REPOSITORY_DAY: attrgetter("repository"),
    Scope.REPOSITORY_MONTH: attrgetter("repository"),
}
"""Scope -> what is equal in all jobs under the same cap. Days and months are not compared, because the usage of an
earlier day is stored by now."""


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """The stored usage that counts towards the caps of a job, read in one transaction."""

    others: Mapping[Scope, Usage] = field(default_factory=dict)
    """The usage of all other jobs that share a cap with the job, by scope."""
    of_accounts: Mapping[str, Usage] = field(default_factory=dict)
    """The usage of each job that has an account, by id. `others` includes exactly this usage of these jobs."""


@dataclass(slots=True)
class Account:
    """The account of one job's calls. Only the replica that follows the job has it."""

    job: Job
    caps: Mapping[Scope, Caps]
    stored: StoredUsage
    beside: Mapping[str, Account] = field(default_factory=dict)
    """The accounts of all jobs that this replica follows, by id. The gateway adds and removes them."""
    claim: Context = field(default_factory=copy_context)
    """The context with the claim that this replica needs for calls."""
    settled: Usage = NOTHING
    """The usage of all calls that have ended. For a call whose end nobody saw, it is the reserved usage."""
    calls: int = 0
    """The number of calls. A restart of the service forgets the free ones."""
    open: dict[str, Usage] = field(default_factory=dict)
    """Call id -> reserved usage, for calls that have not ended."""
    refusal: str | None = None
    """The cap at which a call was refused, and who can raise it. The run counts as capped then, whatever the agent
    reports."""
    _beside_then: Mapping[str, Account] = field(default_factory=dict)
    """The accounts at the last `renew`. If one was removed since then, `stored` may not include its last usage."""

    def renew(self, caps: Mapping[Scope, Caps], stored: StoredUsage) -> None:
        """Replace caps and stored usage with newly read values."""
        self.caps, self.stored = caps, stored
        self._beside_then = {**self.beside}

    @property
    def caps_money(self) -> bool:
        """Whether there is a cap on money in any scope."""
        return any(caps.cost_usd is not None for caps in self.caps.values())

    def check(self, wanted: Usage) -> None:
        """Raise `AtCap` if the wanted usage does not fit under the caps, together with all calls so far."""
        if self.calls >= MAX_CALLS:
            self.refusal = f"its {MAX_CALLS:,} calls of models"
            raise AtCap(f"the model was not asked again after {self.refusal}")
        total = sum(self.open.values(), self.settled + wanted).as_one()
        for scope, caps in self.caps.items():
            if caps.needs_prices and total.cost_usd is None:
                raise AtCap(
                    "nobody knows the price of every model that it asked, and there is a cap on money: see [prices]"
                )
            spent = sum(self._find_unread(scope), total + self.stored.others.get(scope, NOTHING))
            for use in find_uses({scope: caps}, {scope: spent}):
                if use.kind in _COUNTED and use.share > 1:
                    raise AtCap(self._explain(use))

    def count_free(self) -> None:
        """Count a call that costs nothing. Raises `AtCap` if there were too many calls, or if a cap is exceeded."""
        self.check(NOTHING)
        self.calls += 1

    def _find_unread(self, scope: Scope) -> Iterator[Usage]:
        """The usage of other jobs under the same cap that is counted or reserved in their accounts, but not stored."""
        shared = _SHARED[scope]
        for job_id, one in {**self._beside_then, **self.beside}.items():
            if job_id != self.job.id and shared(one.job) == shared(self.job):
                yield sum(one.open.values(), one.settled).as_one() - self.stored.of_accounts.get(job_id, NOTHING)

    def _explain(self, use: CapUse) -> str:
        cap = use.describe(self.job.requested_by)
        self.refusal = f"{cap} ({explain_raise(use, self.job)})"
        return f"the model was not asked again at {cap}: what the next answer may take at most is beyond it"

    def correct(self, meter: Meter) -> Meter:
        """Replace the turns, tokens and cost that an agent has reported with those that were counted here."""
        reported = meter.usage
        usage = replace(
            self.settled, jobs=reported.jobs, run_s=reported.run_s, output_bytes=reported.output_bytes
        ).as_one()
        return replace(meter, usage=usage, cost_is_estimate=usage.cost_usd is not None, is_self_reported=False)


class Ledger:
    """The rows of all jobs' calls. Rows are only added, never changed, and many rows share a commit."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # With normal commits, a slow disk would delay every call to a model. See docs/gateway.md.
        self._batches = Batches(partial(db.relaxed_commit.insert, model_calls, key="id"), MAX_BATCH)

    async def load(self, account: Account, now: datetime) -> None:
        """Read the job's usage so far. A call that an earlier replica left open ends here, with its reserved usage."""
        mine, end = model_calls.c.job_id == account.job.id, model_calls.alias()
        has_end = select(end.c.id).where(end.c.id == model_calls.c.id, end.c.ended).exists()
        given = {"ended": true(), "state": literal(ASSUMED), "at": literal(now, model_calls.c.at.type)}
        left = select(*(given.get(column.name, column) for column in model_calls.c)).where(mine, ~has_end)
        async with self._db.write() as connection:
            await connection.execute(insert(model_calls).from_select([*model_calls.c], left))
            ended = mine, model_calls.c.ended
            account.calls = (await connection.execute(select(func.count()).where(*ended))).scalar_one()
            settled = (await connection.execute(select(*sum_usage(model_calls)).where(*ended))).one()
        account.settled = Usage(**settled._mapping)

    async def reserve(self, account: Account, model: str, most: Usage, now: datetime) -> str:
        """Reserve the most that a call can use, and return the call's id. Raises `AtCap` and `ClaimLost`."""
        account.claim.run(require_claim, 0)
        account.check(most)
        call_id = secrets.token_hex(8)
        account.open[call_id] = most  # Set before the first `await`, because other calls are checked meanwhile.
        writing = self._batches.add(_make_row(account, call_id, OPEN, model, most, now))
        try:
            await asyncio.shield(writing)
            account.claim.run(require_claim, 0)  # A replica that has taken the claim may not have read this row.
        except (asyncio.CancelledError, ClaimLost):
            # The model will not be asked, but the row may be stored.
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
        """Store the usage of a call that has ended. `assumed` means that nobody saw the end."""
        del account.open[call_id]
        account.settled += taken
        # If another replica has already stored an assumed end of this call, that row stays.
        await self._batches.add(_make_row(account, call_id, ASSUMED if assumed else SETTLED, model, taken, now))


def _make_row(account: Account, call_id: str, state: str, model: str, taken: Usage, now: datetime) -> dict[str, Any]:
    row = {"id": call_id, "ended": state != OPEN, "job_id": account.job.id, "model": model, "state": state, "at": now}
    return row | write_usage(taken, model_calls)
