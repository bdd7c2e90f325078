"""`/ptq takeover` and `/ptq release` in comments.

People can do less here than an operator. The SSH command is never posted, because threads are public. Access is granted
only on machines with a sandbox, and only when the job's report is known not to be confidential.

Every function that is not pure takes the transaction in which its reply is stored.
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
from handlers.jobs.start import CLOCK_SKEW, was_requested_before
from handlers.rules import RepositoryRules
from handlers.words import replies
from runner.jobd.access.admission import MAX_KEYS, read_key
from runner.jobd.files import Failure
from runner.model.job import Job, JobKind, JobState, Topic
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold
from runner.rows.machine_states import fetch_sightings

log = structlog.get_logger()

LASTS = timedelta(hours=8)

DROP = "drop"


def choose_keys(offered: Iterable[str]) -> list[str]:
    """The first of the offered SSH keys that machines accept, each as one line. Pure."""
    keys: dict[str, None] = {}
    for line in offered:
        with suppress(Failure):
            keys[read_key(line)] = None
    return list(keys)[:MAX_KEYS]


async def find_newest(connection: AsyncConnection, repository: str, number: int) -> Job | None:
    """The newest job of an issue whose environment is useful.

    An ended `/ptq verify` job, in which nobody has worked, counts only if no job has a report.
    """
    issue = Topic(repository, number)
    last = await job_rows.fetch_last_job(connection, issue)
    if last is None or last.active or last.kind is not JobKind.VERIFY:
        return last
    return await job_rows.fetch_last_job(connection, issue, reported=True) or last


async def take_over(
    connection: AsyncConnection,
    context: Context,
    person: Person,
    number: int,
    offered: Iterable[str],
    written_at: datetime,
) -> str:
    """Hold the newest job's environment for a person with these keys, or refuse. Returns the reply.

    A job or a hold that began after the comment is left alone: the delivery may be late, or a copy of an old one.
    """
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
    job = await takeover.find_job(connection, last.id) or last
    hold = await fetch_hold(connection, job.id)
    if not was_requested_before(last, written_at) or (hold and _began_after(hold, written_at)):
        return hold_replies.render_too_late()
    try:
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
    """Whether `/ptq takeover` on the issue would apply to this job, and succeed as soon as its agent runs, for a person
    with permission and a key."""
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
    """The machine on which to rebuild a job's environment. None if any machine is suitable, or the environment exists.

    Raises `HoldRefused` if a person could leave the environment and access the whole account.
    """
    sightings = await fetch_sightings(connection)
    sealing = [name for name, sighting in sightings.items() if sighting.inventory.sealed]
    if not await takeover.is_gone(connection, job):
        if job.machine and job.machine not in sealing:
            raise HoldRefused("its machine has no sandbox, so only the operator can give access there")
        return None
    machines = context.machines_for(rules, private=job.private)
    able = [name for name in machines if name in sealing]
    if not able:
        raise HoldRefused("no machine of this repository has a sandbox, so only the operator can give access")
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
    *,
    private: bool,
) -> str:
    """End the hold of an issue, no matter who has it, or refuse. Returns the reply.

    A hold that began after the comment is left alone: the delivery may be late, or a copy of an old one. If the
    repository is not `private` now, edits from when it was private can only be dropped, because the thread would show
    them.
    """
    now = context.now()
    found = await takeover.find_held(connection, f"{person.rules.name}#{number}", now)
    if found is None:
        return hold_replies.render_nothing_held()
    held, hold = found
    if _began_after(hold, written_at):
        return hold_replies.render_too_late()
    if await _is_for_operator(connection, held):
        return hold_replies.render_takeover_refused()
    if how not in ("", DROP):
        return hold_replies.render_release_unclear()
    if how != DROP and held.private and not private:
        return hold_replies.render_only_dropped()
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


def _began_after(hold: Hold, written_at: datetime) -> bool:
    """Whether a hold began after a comment was written. The two clocks may differ a little."""
    return hold.begun_at - CLOCK_SKEW > written_at


async def _is_for_operator(connection: AsyncConnection, job: Job) -> bool:
    """Whether the job's environment may contain confidential results.

    An active job has no report yet; access waits for it.
    """
    runs = filter(None, (job.id, job.adopts, job.follows))
    return any([await fetch_withheld(connection, job_id) for job_id in runs])


async def describe_hold(connection: AsyncConnection, context: Context, rules: RepositoryRules, number: int) -> str:
    """The last paragraph of a status, about the hold of the issue. Empty if there is none.

    It also reports that an environment could not be rebuilt, because a worktree has no thread of its own.
    """
    if found := await takeover.find_held(connection, f"{rules.name}#{number}", context.now()):
        return f"\n\n{hold_replies.render_held(found[1], context.secrets)}"
    last = await find_newest(connection, rules.name, number)
    worktree = await job_rows.fetch_last_worktree(connection, last.id) if last else None
    if worktree is None or worktree.state not in (JobState.FAILED, JobState.LOST):
        return ""
    return f"\n\n{hold_replies.render_not_made(worktree, context.secrets)}"
