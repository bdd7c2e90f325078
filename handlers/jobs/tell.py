"""Tells the agent of an active job something, before the agent begins or while it runs.

`tell` takes its caller's transaction.
"""

from __future__ import annotations

from datetime import datetime
from secrets import token_hex

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.commands.rights import Operation, Person
from handlers.jobs.brief import MAX_STEERING, render_told
from handlers.words import tellings
from runner.model.job import KINDS, Job, JobState
from runner.model.telling import Telling
from runner.rows import job_rows
from runner.rows.tellings import fetch_tellings, insert_telling

MAX_TELLINGS = 20
"""The most messages to the agent of one job."""

TO_COME = (JobState.QUEUED, JobState.PREPARING)
"""The states before the agent."""


class NotTold(Exception):  # noqa: N818
    """The agent is not told. The message says why, in a sentence for every surface."""

    def __init__(self, why: str, *, is_late: bool = False) -> None:
        """`is_late` says that this agent can get no more messages, but another attempt could get this one."""
        super().__init__(why)
        self.is_late = is_late


async def tell(connection: AsyncConnection, person: Person, job: Job, words: str, occasion: str, now: datetime) -> None:
    """Store a message for the agent of a job, once for each `occasion` (a unique text). The service passes it on.

    Raises `NotPermitted` and `NotTold`.
    """
    person.require(Operation.TELL, job.repository)
    job, words = await job_rows.fetch_job(connection, job.id) or job, words.strip()
    told = await fetch_tellings(connection, job.id)
    if any(telling.occasion == occasion for telling in told):
        return
    if objection := find_objection(job, words, len(told)):
        raise objection
    message = render_told(words, now, token_hex(8))
    telling = Telling(
        job_id=job.id,
        number=len(told) + 1,
        occasion=occasion,
        told_by=person.signature,
        told_at=now,
        words=words,
        message=message,
    )
    await insert_telling(connection, telling)
    await job_rows.add_event(connection, job.id, now, f"{person.mention} told the agent something")


def find_objection(job: Job, words: str, told: int) -> NotTold | None:
    """Why the agent of a job cannot be told this. None if it can. Pure.

    `told` is the number of earlier messages to the agent.
    """
    if not words:
        return NotTold(tellings.say_no_words())
    if len(words) > MAX_STEERING:
        return NotTold(tellings.say_too_long(MAX_STEERING))
    if not KINDS[job.kind].has_agent:
        return NotTold(tellings.say_no_agent())
    if not job.active:
        return NotTold(tellings.say_ended(), is_late=True)
    if job.is_ending:
        return NotTold(tellings.say_ending(), is_late=True)
    if job.state not in (*TO_COME, JobState.RUNNING):
        return NotTold(tellings.say_at_result(), is_late=True)
    return NotTold(tellings.say_too_many(MAX_TELLINGS)) if told >= MAX_TELLINGS else None
