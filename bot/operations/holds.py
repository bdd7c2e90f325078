"""`ptq-bot takeover`, `release` and `holds`: people's SSH access to the environments of jobs.

The commands only change the database. Within seconds, the service does the work on the machines.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.settings import Settings
from bot.operations.context import UnknownJob, find_login, find_operator, read_database
from bot.operations.reports import render_json
from handlers.addresses import find_page_root
from handlers.holds import takeover
from handlers.holds.manual_jobs import HoldRefused, KeyHolder
from handlers.jobs.names import NAME
from handlers.text.sanitize import one_line, redact
from runner.characters import show_for_terminal
from runner.db.database import Database, open_existing_database
from runner.jobd.access.admission import read_key
from runner.jobd.files import Failure
from runner.model.job import Job, JobKind
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_hold, fetch_holds

MAX_HOURS = 168
WAIT_S = 60.0
"""How long a takeover waits at the terminal until the machine gives access, in seconds."""
LOOK_EVERY_S = 0.5


async def take_over(
    settings: Settings, job_id: str, key_file: Path, *, hours: float, by: str, wait_s: float = WAIT_S
) -> str:
    """End a job, unless it has ended, and hold its environment for a person. This can also extend a hold.

    An environment that was removed is rebuilt. Returns the SSH command, as text for a terminal. Raises `HoldRefused`,
    `UnknownJob` and `DatabaseError`.
    """
    guest = read_guest(key_file, hours=hours, by=by)
    async with open_existing_database(settings.server.database_url) as database:
        async with database.write() as connection:
            job, now = await find_job(connection, job_id), datetime.now(UTC).replace(microsecond=0)
            agent = settings.repos[job.repository].agent if job.repository in settings.repos else job.agent
            taken = await takeover.take_over(
                connection, find_operator(), job, guest, agent=agent, secret=database.secret, now=now
            )
        return await wait_for_way_in(settings, database, taken.hold, key_file, wait_s)


def read_guest(key_file: Path, *, hours: float, by: str) -> KeyHolder:
    """The person who gets access. Raises `HoldRefused` if their name, key or time is invalid."""
    name, key = by or find_login(), read_public_key(key_file)
    if not NAME.fullmatch(name):
        raise HoldRefused("a person's name has letters, digits, dots, dashes and underscores")
    if not 0 < hours <= MAX_HOURS:
        raise HoldRefused(f"a job is held for up to {MAX_HOURS} hours")
    return KeyHolder(name, key, timedelta(hours=hours))


def read_public_key(file: Path) -> str:
    """Read a public key from a file such as `id_ed25519.pub`. Raises `HoldRefused`."""
    try:
        return read_key(file.read_text())
    except (OSError, UnicodeDecodeError):
        raise HoldRefused(f"the key file {show_for_terminal(str(file))!r} cannot be read") from None
    except Failure as failure:
        raise HoldRefused(failure.message) from None


async def find_job(connection: AsyncConnection, named: str) -> Job:
    """The job with this id, or the held job with this name. Raises `UnknownJob`."""
    job = await takeover.find_job(connection, named)
    if job is None:
        raise UnknownJob(f"there is no job {show_for_terminal(named)!r}")
    return job


async def wait_for_way_in(
    settings: Settings, database: Database, hold: Hold, key_file: Path, wait_s: float = WAIT_S
) -> str:
    """Wait until the machine gives access or reports a problem, up to `wait_s` seconds.

    Returns the state and the SSH command, as text for a terminal. Raises `HoldRefused` if the hold ends meanwhile.
    """
    deadline, now = time.monotonic() + wait_s, hold
    while not now.admitted_at and not now.trouble and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_EVERY_S)
        async with database.read() as connection:
            found, job = await fetch_hold(connection, hold.job_id), await job_rows.fetch_job(connection, hold.job_id)
        if found is None:
            reason = job.failure if job and job.failure else "it was released meanwhile"
            reason = redact(one_line(reason, 2_000), settings.secret_values())
            raise HoldRefused(f"job {hold.job_id} is not held any more: {reason}")
        now = found
    async with database.read() as connection:
        job = await job_rows.fetch_job(connection, hold.job_id)
    machines = {machine.name: machine for machine in settings.machine_list()}
    return show_for_terminal(redact(_describe_success(now, job, machines, key_file), settings.secret_values()))


def _describe_success(hold: Hold, job: Job | None, machines: Mapping[str, Machine], key_file: Path) -> str:
    until = f"{hold.expires_at:%Y-%m-%d %H:%M} UTC"
    if hold.trouble:
        state = f"but you cannot log in yet: {one_line(hold.trouble, 300)}"
    elif hold.admitted_at:
        state = "and you can log in"
    elif job and job.kind is JobKind.WORKTREE:
        state = "and you can log in when its environment is ready: see ptq-bot holds"
    else:
        state = "and you can log in when the job's result is collected"
    words = [f"Job {hold.job_id} is reserved for {hold.person} until {until}, {state}."]
    if job and job.machine:
        machine = machines.get(job.machine)
        way_in = shlex.join(describe_way_in(machine, key_file)) if machine else "(its machine is gone)"
        words += ["Log in with:", "", f"    {way_in}", ""]
    name = (job and job.name) or hold.job_id
    words += [f"To collect your edits: ptq-bot release {name}. Edits that are not released in time are lost."]
    return "\n".join(words) + "\n"


def describe_way_in(machine: Machine, key_file: Path | None = None) -> list[str]:
    """The SSH command with which a person enters. It works on hosts with the same network access as the service.

    Without `key_file`, ssh offers the person's default keys.
    """
    words = ["ssh", "-t"]
    if key_file:
        private = key_file.with_suffix("") if key_file.suffix == ".pub" else key_file
        words += ["-i", str(private), "-o", "IdentitiesOnly=yes"]
    if machine.kind == "local":
        return [*words, f"{find_login()}@localhost"]
    words += ["-F", str(machine.ssh_config_file)] if machine.ssh_config_file else []
    words += ["-J", ",".join(machine.jump_hosts)] if machine.jump_hosts else []
    words += ["-p", str(machine.port)] if machine.port not in (None, 22) else []
    return [*words, f"{machine.user}@{machine.host}" if machine.user else machine.host]


async def release(settings: Settings, job_id: str, *, drop: bool = False) -> str:
    """End a hold. A new attempt collects the person's changes; with `drop`, they are discarded.

    Returns the text for the terminal. Raises `HoldRefused`, `UnknownJob` and `DatabaseError`.
    """
    async with open_existing_database(settings.server.database_url) as database, database.write() as connection:
        held, now = await find_job(connection, job_id), datetime.now(UTC)
        url = find_page_root(held, settings.server.public_url, signs_in=settings.dashboard.client_id is not None)
        job = await takeover.release(
            connection, find_operator(), held, drop=drop, secret=database.secret, public_url=url, now=now
        )
    if job is None and held.active:
        return f"Job {held.id} ends: its environment is not wanted any more.\n"
    if job is None:
        return f"Job {held.id} is released. Its edits are discarded.\n"
    page = settings.find_page(job)
    where = f": {page}" if job.thread is not None and page else f". Result: ptq-bot report {job.id}"
    return f"Job {held.id} is released. Edits are collected as job {job.id}{where}\n"


async def list_holds(settings: Settings, *, as_json: bool = False) -> str:
    """All holds with their SSH commands, for a terminal or as JSON. Raises `DatabaseError`."""
    async with read_database(settings) as connection:
        holds = await fetch_holds(connection)
        jobs = {hold.job_id: await find_job(connection, hold.job_id) for hold in holds}
    machines = {machine.name: machine for machine in settings.machine_list()}
    if as_json:
        return render_json([_describe(hold, jobs[hold.job_id], machines) for hold in holds], settings.secret_values())
    return show_for_terminal(redact(render_holds(holds, jobs, machines), settings.secret_values()))


def _describe(hold: Hold, job: Job, machines: Mapping[str, Machine]) -> dict[str, Any]:
    names = ("person", "begun_at", "expires_at", "admitted_at", "trouble", "waits_for_report")
    machine = machines.get(job.machine or "")
    return {
        **{"job": job.id, "case_key": job.case_key, "machine": job.machine},
        **{name: getattr(hold, name) for name in names},
        "ssh": describe_way_in(machine) if machine else None,
    }


def render_holds(holds: Iterable[Hold], jobs: Mapping[str, Job], machines: Mapping[str, Machine]) -> str:
    """Job, machine, issue, person and state of each hold, followed by a line with the SSH command. Pure."""
    lines = []
    for hold in holds:
        job = jobs[hold.job_id]
        until, machine = f"{hold.expires_at:%Y-%m-%d %H:%M} UTC", machines.get(job.machine or "")
        about = (hold.job_id, job.machine or "no machine yet", job.case_key, hold.person, f"until {until}")
        lines.append("  ".join((*about, _describe_state(hold))) + "\n")
        lines += [f"    {shlex.join(describe_way_in(machine))}\n"] if machine else []
    return "".join(lines) or "Nobody holds a job.\n"


def _describe_state(hold: Hold) -> str:
    if hold.trouble:
        return f"trouble: {one_line(hold.trouble, 300)}"
    waits = "not yet: it waits for the job's report" if hold.waits_for_report else "not yet"
    return "may be entered" if hold.admitted_at else waits
