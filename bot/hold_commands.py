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
from handlers.hurdles import NotStarted
from handlers.replies import job_url
from handlers.sanitize import one_line
from handlers.start import start_collecting
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

    The text, for a terminal, says how to enter it. Raises `HoldRefused`, `UnknownJob` and `DatabaseError`.
    """
    person, key = by or find_login(), read_public_key(key_file)
    if not NAME.fullmatch(person):
        raise HoldRefused("a person's name has letters, digits, dots, dashes and underscores")
    if not 0 < hours <= MAX_HOURS:
        raise HoldRefused(f"a job is held for up to {MAX_HOURS} hours")
    async with open_beside(settings.server.database_url) as database:
        async with database.write() as connection:
            job = await _fetch_job(connection, job_id)
            _require_takeable(job, await fetch_hold(connection, job.id))
            now = datetime.now(UTC).replace(microsecond=0)
            hold = Hold(job.id, person, key, begun_at=now, expires_at=now + timedelta(hours=hours))
            await save_hold(connection, hold)
            await store.add_event(connection, job.id, now, f"taken over by @{person}")
            if job.state is JobState.RUNNING:
                await store.request_cancel(connection, job.id, person, now)
        hold = await _wait(database, hold, wait_s)
    machine = next((machine for machine in settings.machine_list() if machine.name == job.machine), None)
    return show_for_terminal(_describe_success(hold, machine, key_file))


def read_public_key(file: Path) -> str:
    """The key in a file such as `id_ed25519.pub`. Raises `HoldRefused`."""
    try:
        return read_key(file.read_text())
    except (OSError, UnicodeDecodeError):
        raise HoldRefused(f"the key file {show_for_terminal(str(file))!r} cannot be read") from None
    except Failure as failure:
        raise HoldRefused(failure.message) from None


def _require_takeable(job: Job, hold: Hold | None) -> None:
    if hold is None and not job.active:
        raise HoldRefused("the job has ended, and its environment is gone; a new attempt begins from its edits")
    if job.state in (JobState.QUEUED, JobState.PREPARING):
        raise HoldRefused("the job has no environment yet; wait until its agent is at work")


async def _fetch_job(connection: AsyncConnection, job_id: str) -> Job:
    job = await store.fetch_job(connection, job_id)
    if job is None:
        raise UnknownJob(f"there is no job {show_for_terminal(job_id)!r}")
    return job


async def _wait(database: Database, hold: Hold, wait_s: float) -> Hold:
    """The hold as it is once the key is let in, or there is trouble, or nobody waits any more."""
    deadline, now = time.monotonic() + wait_s, hold
    while not now.admitted_at and not now.trouble and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_EVERY_S)
        async with database.read() as connection:
            now = await fetch_hold(connection, hold.job_id) or replace(hold, trouble="it was released meanwhile")
    return now


def _describe_success(hold: Hold, machine: Machine | None, key_file: Path) -> str:
    until = f"{hold.expires_at:%Y-%m-%d %H:%M} UTC"
    if hold.trouble:
        state = f"but its machine does not let you in yet: {one_line(hold.trouble, 300)}"
    elif hold.admitted_at:
        state = "and its machine lets you in"
    else:
        state = "and its machine lets you in once the job's result is collected"
    words = [f"Job {hold.job_id} is held for {hold.person} until {until}, {state}. Enter it by:", ""]
    words += [f"    {shlex.join(describe_way_in(machine, key_file))}" if machine else "    (its machine is gone)", ""]
    words += [f"Then let your edits be collected by: ptq-bot release {hold.job_id}. What is not released is lost."]
    return "\n".join(words) + "\n"


def describe_way_in(machine: Machine, key_file: Path) -> list[str]:
    """The command by which the person enters, on a host that reaches the machine as the service does."""
    private = key_file.with_suffix("") if key_file.suffix == ".pub" else key_file
    host = ("localhost", 22, find_login()) if machine.kind == "local" else (machine.host, machine.port, machine.user)
    port = [] if host[1] == 22 else ["-p", str(host[1])]
    return ["ssh", "-t", "-i", str(private), "-o", "IdentitiesOnly=yes", *port, f"{host[2]}@{host[0]}"]


async def release(settings: Settings, job_id: str) -> str:
    """End a hold, and have what the person changed collected by a new attempt.

    Raises `HoldRefused`, `UnknownJob` and `DatabaseError`.
    """
    async with open_beside(settings.server.database_url) as database, database.write() as connection:
        held, now = await _fetch_job(connection, job_id), datetime.now(UTC)
        hold = await fetch_hold(connection, held.id)
        if hold is None or hold.expires_at <= now:
            raise HoldRefused("nobody holds this job, or not any more")
        if held.active:
            raise HoldRefused("the job has not ended yet; its result is still to come")
        url = settings.server.public_url
        try:
            job = await start_collecting(connection, held, hold, secret=database.secret, public_url=url, now=now)
        except NotStarted as refused:
            raise HoldRefused(refused.reply) from None
    return f"Job {held.id} is released. What was edited in it comes as job {job.id}: {job_url(url, job.id)}\n"


async def list_holds(settings: Settings) -> str:
    """Every hold, a line each, for a terminal. Raises `DatabaseError`."""
    async with open_beside(settings.server.database_url) as database, database.read() as connection:
        holds = await fetch_holds(connection)
        jobs = {hold.job_id: await _fetch_job(connection, hold.job_id) for hold in holds}
    return show_for_terminal(render_holds(holds, jobs))


def render_holds(holds: Iterable[Hold], jobs: Mapping[str, Job]) -> str:
    """Job, machine, issue, person and state of each hold. Pure."""
    lines = [
        f"{hold.job_id}  {jobs[hold.job_id].machine}  {jobs[hold.job_id].case_key}  {hold.person}  "
        f"until {hold.expires_at:%Y-%m-%d %H:%M} UTC  {_describe_state(hold)}\n"
        for hold in holds
    ]
    return "".join(lines) or "Nobody holds a job.\n"


def _describe_state(hold: Hold) -> str:
    if hold.trouble:
        return f"trouble: {one_line(hold.trouble, 300)}"
    return "may be entered" if hold.admitted_at else "not yet"
