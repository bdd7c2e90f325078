"""`/ptq takeover` and `/ptq release`: what people may do with environments by a comment, and what they are told.

Less than an operator may. Nobody is told a way in here, for threads are public; and nobody is let in where a machine
could not keep them in the one job, or before it is sure that the job's report is not for the operator alone.

Every function takes the transaction in which its answer is written down, but for those that are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases.withheld import fetch_withheld
from handlers.commands.rights import Person
from handlers.context import Context
from handlers.holds import hold_replies, takeover
from handlers.holds.manual_jobs import HoldRefused, KeyHolder
from handlers.rules import RepositoryRules
from handlers.words import replies
from runner.jobd.access.admission import MAX_KEYS, read_key
from runner.jobd.files import Failure
from runner.model.job import Job, JobKind, JobState
from runner.rows import job_rows
from runner.rows.machine_states import fetch_sightings

log = structlog.get_logger()

LASTS = timedelta(hours=8)

DROP = "drop"


def choose_keys(offered: Iterable[str]) -> list[str]:
    """The first of somebody's keys that machines take, as lines. Pure."""
    keys: dict[str, None] = {}
    for line in offered:
        with suppress(Failure):
            keys[read_key(line)] = None
    return list(keys)[:MAX_KEYS]


async def find_newest(connection: AsyncConnection, repository: str, number: int) -> Job | None:
    """The newest job of an issue whose environment somebody may want: not one in which nobody has worked, if it has
    ended and another one has left something."""
    last = await job_rows.fetch_last_job(connection, repository, number)
    if last is None or last.active or last.kind is not JobKind.VERIFY:
        return last
    return await job_rows.fetch_last_job(connection, repository, number, reported=True) or last


async def take_over(
    connection: AsyncConnection,
    context: Context,
    person: Person,
    number: int,
    offered: Iterable[str],
) -> str:
    """Hold the newest job of an issue for somebody with these keys, or not. What they are told."""
    rules, login = person.rules, person.name
    last, keys = await find_newest(connection, rules.name, number), choose_keys(offered)
    if rules.fault:
        return replies.render_broken_rules(rules.fault)
    if not rules.takeover:
        return hold_replies.render_takeover_off(rules.name)
    if last is None:
        return hold_replies.render_nothing_to_take_over()
    if await _is_for_operator(connection, last):
        return hold_replies.render_takeover_refused()
    if not keys:
        return hold_replies.render_no_keys(login)
    try:
        job = await takeover.find_job(connection, last.id) or last
        taken = await takeover.take_over(
            connection,
            person,
            job,
            KeyHolder(login, "\n".join(keys), LASTS),
            agent=rules.agent,
            machine=await _find_sealing(connection, context, rules, job),
            secret=context.db.secret,
            now=context.now().replace(microsecond=0),
        )
    except HoldRefused as refused:
        return hold_replies.render_not_taken_over(str(refused), context.secrets)
    log.info("hold.taken", **taken.job.log_context(), person=login)
    before = taken.before.person if taken.before and taken.before.person != login else None
    return hold_replies.render_taken_over(
        last, taken.job, taken.hold, len(keys), before, context.find_page_root(taken.job), signs_in=context.signs_in
    )


async def would_take_over(connection: AsyncConnection, context: Context, rules: RepositoryRules, wanted: Job) -> bool:
    """Whether `/ptq takeover` on a job's issue would be about this job, and be done once its agent is at work: for
    whoever may, and has a key."""
    newest = await find_newest(connection, wanted.repository, wanted.issue_number)
    if newest is None or newest.id != wanted.id:
        return False
    if rules.fault or not rules.takeover or await _is_for_operator(connection, newest):
        return False
    try:
        await _find_sealing(connection, context, rules, await takeover.find_job(connection, newest.id) or newest)
    except HoldRefused:
        return False
    return True


async def _find_sealing(connection: AsyncConnection, context: Context, rules: RepositoryRules, job: Job) -> str | None:
    """The one machine on which a job's environment is to be made anew; None where any is as good, or it is there.

    Raises `HoldRefused` where a person would be let out of it, to all that the machine's account has.
    """
    sightings = await fetch_sightings(connection)
    sealing = [name for name, sighting in sightings.items() if sighting.inventory.sealed]
    if not await takeover.is_gone(connection, job):
        if job.machine and job.machine not in sealing:
            raise HoldRefused("its machine cannot seal jobs, and so only its operator lets people in there")
        return None
    machines = context.machines_for(rules, private=job.private)
    able = [name for name in machines if name in sealing]
    if not able:
        raise HoldRefused("no machine of this repository can seal jobs, and so only its operator lets people in there")
    if able == machines:
        return None
    return job.machine if job.machine in able else able[0]


async def release(
    connection: AsyncConnection,
    context: Context,
    person: Person,
    number: int,
    how: str,
    written_at: datetime,
) -> str:
    """End the hold that has to do with an issue, whoever has it, or not. What whoever asked, at that time, is told."""
    now = context.now()
    found = await takeover.find_held(connection, f"{person.rules.name}#{number}", now)
    if found is None:
        return hold_replies.render_nothing_held()
    held, hold = found
    if await _is_for_operator(connection, held):
        return hold_replies.render_takeover_refused()
    if how not in ("", DROP):
        return hold_replies.render_release_unclear()
    try:
        job = await takeover.release(
            connection,
            person,
            held,
            drop=how == DROP,
            secret=context.db.secret,
            public_url=context.find_page_root(held),
            now=now,
            requested_at=written_at,
        )
    except HoldRefused as refused:
        return hold_replies.render_not_released(str(refused), context.secrets)
    log.info("hold.released", **held.log_context(), person=hold.person, by=person.name)
    return hold_replies.render_released(hold.person, job, context.find_page_root(held))


async def _is_for_operator(connection: AsyncConnection, job: Job) -> bool:
    """Whether only the operator may see what a run found, and it may be in the job's environment.

    An active job has no report yet; nobody is let in before it has.
    """
    runs = filter(None, (job.id, job.adopts, job.follows))
    return any([await fetch_withheld(connection, job_id) for job_id in runs])


async def describe_hold(connection: AsyncConnection, context: Context, rules: RepositoryRules, number: int) -> str:
    """Who holds an environment that has to do with an issue, as the last line of a status; or nothing.

    It is also where people read that one could not be made anew: a worktree has no thread of its own.
    """
    if found := await takeover.find_held(connection, f"{rules.name}#{number}", context.now()):
        return f"\n\n{hold_replies.render_held(found[1], context.secrets)}"
    last = await find_newest(connection, rules.name, number)
    worktree = await job_rows.fetch_last_worktree(connection, last.id) if last else None
    if worktree is None or worktree.state not in (JobState.FAILED, JobState.LOST):
        return ""
    return f"\n\n{hold_replies.render_not_made(worktree, context.secrets)}"
