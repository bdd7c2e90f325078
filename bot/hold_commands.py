"""What people say on the command line about environments of jobs, beside a running service: take over, release, list.

It speaks with the service through the database alone. The service, which alone speaks with machines, follows within
seconds.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config import Settings
from bot.machine_commands import find_login
from bot.reports import UnknownJob, show_for_terminal
from handlers.by_hand import Person, Source, start_collecting, start_worktree
from handlers.hurdles import NotStarted
from handlers.report import is_confidential
from handlers.sanitize import one_line, redact
from handlers.status_comment import job_url
from runner import store
from runner.db import Database, open_beside
from runner.holds import Hold, fetch_hold, fetch_holds, save_hold
from runner.job import Job, JobState
from runner.jobd.admission import read_key
from runner.jobd.files import Failure
from runner.machines import Machine

MAX_HOURS = 168
WAIT_S = 60.0
"""How long somebody who takes a job over waits at the terminal for its machine to let them in."""
LOOK_EVERY_S = 0.5

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")


class HoldRefused(Exception):  # noqa: N818
    """A job cannot be taken over, or released; the message says why, as a sentence without its end."""


async def take_over(
    settings: Settings, job_id: str, key_file: Path, *, hours: float, by: str, wait_s: float = WAIT_S
) -> str:
    """End a job, unless it has ended, and keep its environment for a person; or keep for longer what is kept.

    What is gone already is made again, with the edits that were collected, as a worktree of the job's name. The text,
    for a terminal, says how to enter it. Raises `HoldRefused`, `UnknownJob` and `DatabaseError`.
    """
    person = read_person(key_file, hours=hours, by=by)
    async with open_beside(settings.server.database_url) as database:
        async with database.write() as connection:
            job, now = await find_job(connection, job_id), datetime.now(UTC).replace(microsecond=0)
            hold = person.hold(job.id, now)
            if not job.active and await fetch_hold(connection, job.id) is None:
                job = await _start_again(connection, settings, job, person, database.secret, now)
                hold = person.hold(job.id, now)
            elif job.state in (JobState.QUEUED, JobState.PREPARING):
                wait = "it is being made" if job.by_hand else "wait until its agent is at work"
                raise HoldRefused(f"the job has no environment yet; {wait}")
            else:
                await save_hold(connection, hold)
            await store.add_event(connection, job.id, now, f"taken over by @{person.name}")
            if job.state is JobState.RUNNING:
                await store.request_cancel(connection, job.id, person.name, now)
        return await wait_for_way_in(settings, database, hold, key_file, wait_s)


def read_person(key_file: Path, *, hours: float, by: str) -> Person:
    """Who wants to be let in. Raises `HoldRefused`."""
    name, key = by or find_login(), read_public_key(key_file)
    if not NAME.fullmatch(name):
        raise HoldRefused("a person's name has letters, digits, dots, dashes and underscores")
    if not 0 < hours <= MAX_HOURS:
        raise HoldRefused(f"a job is held for up to {MAX_HOURS} hours")
    return Person(name, key, timedelta(hours=hours))


def read_public_key(file: Path) -> str:
    """The key in a file such as `id_ed25519.pub`. Raises `HoldRefused`."""
    try:
        return read_key(file.read_text())
    except (OSError, UnicodeDecodeError):
        raise HoldRefused(f"the key file {show_for_terminal(str(file))!r} cannot be read") from None
    except Failure as failure:
        raise HoldRefused(failure.message) from None


async def _start_again(
    connection: AsyncConnection, settings: Settings, ended: Job, person: Person, secret: bytes, now: datetime
) -> Job:
    """Make the environment of a job that has ended anew."""
    if ended.by_hand and not ended.adopts:
        raise HoldRefused("this worktree is gone, and nothing was collected from it: make a new one")
    report = await store.fetch_report(connection, ended.id)
    if report and is_confidential(report.body):
        raise HoldRefused("its report is for you alone, and a release would publish its edits: see ptq-bot report")
    agent = settings.repos[ended.repository].agent if ended.repository in settings.repos else ended.agent
    source = Source(
        ended.repository, ended.private, ended.clone_url, ended.base_branch, ended.base_commit, agent, ended.id
    )
    try:
        return await start_worktree(connection, person, source, ended.id, machine=None, secret=secret, now=now)
    except NotStarted as refused:
        raise HoldRefused(refused.reply) from None


async def find_job(connection: AsyncConnection, named: str) -> Job:
    """The job of an id, or the one that somebody holds under this name. Raises `UnknownJob`."""
    for hold in await fetch_holds(connection):
        held = await store.fetch_job(connection, hold.job_id)
        if held and named in (held.id, held.name):
            return held
    job = await store.fetch_job(connection, named)
    if job is None:
        raise UnknownJob(f"there is no job {show_for_terminal(named)!r}")
    return job


async def wait_for_way_in(
    settings: Settings, database: Database, hold: Hold, key_file: Path, wait_s: float = WAIT_S
) -> str:
    """Wait until a person is let in, for so long. How they enter, for a terminal. Raises `HoldRefused`."""
    deadline, now = time.monotonic() + wait_s, hold
    while not now.admitted_at and not now.trouble and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_EVERY_S)
        async with database.read() as connection:
            found, job = await fetch_hold(connection, hold.job_id), await store.fetch_job(connection, hold.job_id)
        if found is None:
            reason = job.failure if job and job.failure else "it was released meanwhile"
            reason = redact(one_line(reason, 2_000), settings.secret_values())
            raise HoldRefused(f"job {hold.job_id} is not held any more: {reason}")
        now = found
    async with database.read() as connection:
        job = await store.fetch_job(connection, hold.job_id)
    machines = {machine.name: machine for machine in settings.machine_list()}
    return show_for_terminal(redact(_describe_success(now, job, machines, key_file), settings.secret_values()))


def _describe_success(hold: Hold, job: Job | None, machines: Mapping[str, Machine], key_file: Path) -> str:
    until = f"{hold.expires_at:%Y-%m-%d %H:%M} UTC"
    if hold.trouble:
        state = f"but its machine does not let you in yet: {one_line(hold.trouble, 300)}"
    elif hold.admitted_at:
        state = "and its machine lets you in"
    elif job and job.by_hand and not job.adopts:
        state = "and its machine lets you in once its environment is made: see ptq-bot holds"
    else:
        state = "and its machine lets you in once the job's result is collected"
    words = [f"Job {hold.job_id} is held for {hold.person} until {until}, {state}."]
    if job and job.machine:
        machine = machines.get(job.machine)
        way_in = shlex.join(describe_way_in(machine, key_file)) if machine else "(its machine is gone)"
        words += ["Enter it by:", "", f"    {way_in}", ""]
    name = (job and job.name) or hold.job_id
    words += [f"Then let your edits be collected by: ptq-bot release {name}. What is not released is lost."]
    return "\n".join(words) + "\n"


def describe_way_in(machine: Machine, key_file: Path) -> list[str]:
    """The command by which the person enters, on a host that reaches the machine as the service does."""
    private = key_file.with_suffix("") if key_file.suffix == ".pub" else key_file
    words = ["ssh", "-t", "-i", str(private), "-o", "IdentitiesOnly=yes"]
    if machine.kind == "local":
        return [*words, f"{find_login()}@localhost"]
    words += ["-F", str(machine.ssh_config_file)] if machine.ssh_config_file else []
    words += ["-J", ",".join(machine.jump_hosts)] if machine.jump_hosts else []
    words += ["-p", str(machine.port)] if machine.port not in (None, 22) else []
    return [*words, f"{machine.user}@{machine.host}" if machine.user else machine.host]


async def release(settings: Settings, job_id: str, *, drop: bool = False) -> str:
    """End a hold, and have what the person changed collected by a new attempt, or dropped.

    Raises `HoldRefused`, `UnknownJob` and `DatabaseError`.
    """
    async with open_beside(settings.server.database_url) as database, database.write() as connection:
        now = datetime.now(UTC)
        if drop:
            return await _drop(connection, job_id, now)
        held, hold = await find_held(connection, job_id)
        url = settings.server.public_url
        try:
            job = await start_collecting(connection, held, hold, secret=database.secret, public_url=url, now=now)
        except NotStarted as refused:
            raise HoldRefused(refused.reply) from None
    where = f": {job_url(url, job.id)}" if job.has_thread else f"; see it by: ptq-bot report {job.id}"
    return f"Job {held.id} is released. What was edited in it comes as job {job.id}{where}\n"


async def _drop(connection: AsyncConnection, named: str, now: datetime) -> str:
    job = await find_job(connection, named)
    if job.active and job.by_hand and not job.adopts:
        await store.request_cancel(connection, job.id, find_login(), now)
        if hold := await fetch_hold(connection, job.id):  # It may just have been made.
            await save_hold(connection, replace(hold, begun_at=now, expires_at=now))
        return f"Job {job.id} ends: its environment is not wanted any more.\n"
    held, hold = await find_held(connection, named)
    await save_hold(connection, replace(hold, expires_at=now))
    return f"Job {held.id} is released. What was edited in it is dropped.\n"


async def find_held(connection: AsyncConnection, named: str) -> tuple[Job, Hold]:
    """A job that has ended and is held, by its id or name. Raises `HoldRefused` and `UnknownJob`."""
    held = await find_job(connection, named)
    hold = await fetch_hold(connection, held.id)
    if hold is None or hold.expires_at <= datetime.now(UTC):
        raise HoldRefused("nobody holds this job, or not any more")
    if held.active:
        is_new = held.by_hand and not held.adopts
        result = "its environment is not made yet" if is_new else "its result is still to come"
        raise HoldRefused(f"the job has not ended yet; {result}")
    if held.by_hand and not held.adopts and held.state is not JobState.SUCCEEDED:
        raise HoldRefused(f"its environment was never made: {one_line(held.failure or 'it was lost', 300)}")
    return held, hold


async def list_holds(settings: Settings) -> str:
    """Every hold, a line each, for a terminal. Raises `DatabaseError`."""
    async with open_beside(settings.server.database_url) as database, database.read() as connection:
        holds = await fetch_holds(connection)
        jobs = {hold.job_id: await find_job(connection, hold.job_id) for hold in holds}
    return show_for_terminal(render_holds(holds, jobs))


def render_holds(holds: Iterable[Hold], jobs: Mapping[str, Job]) -> str:
    """Job, machine, issue, person and state of each hold. Pure."""
    lines = [
        f"{hold.job_id}  {jobs[hold.job_id].machine or 'no machine yet'}  {jobs[hold.job_id].case_key}  {hold.person}  "
        f"until {hold.expires_at:%Y-%m-%d %H:%M} UTC  {_describe_state(hold)}\n"
        for hold in holds
    ]
    return "".join(lines) or "Nobody holds a job.\n"


def _describe_state(hold: Hold) -> str:
    if hold.trouble:
        return f"trouble: {one_line(hold.trouble, 300)}"
    return "may be entered" if hold.admitted_at else "not yet"
