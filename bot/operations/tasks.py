"""`ptq-bot run`: gives an agent a task without an issue, and follows the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bot.config.settings import Settings
from bot.operations.context import ask_about, find_operator, open_context
from bot.operations.holds import LOOK_EVERY_S, NAME
from bot.operations.reports import read_report
from handlers.jobs.tasks import Refused, TaskRequest, start_off_thread
from handlers.text.sanitize import redact
from runner.characters import show_for_terminal
from runner.db.database import open_existing_database
from runner.model.job import Job, JobState
from runner.rows import job_rows


async def start_task(settings: Settings, repository: str, order: TaskRequest, by: str = "") -> Job:
    """Create the job of a task. Raises `Refused`, `NotStarted`, `UnknownRepository`, `GitHubError`,
    `GitHubUnavailable` and `DatabaseError`.
    """
    person = find_operator(by)
    if not NAME.fullmatch(person.name):
        raise Refused("a person's name has letters, digits, dots, dashes and underscores: see --by")
    async with open_context(settings) as context:
        person, asked = await ask_about(context, settings, person, repository)
        return await start_off_thread(context, person, asked, order)


def describe_task(settings: Settings, job: Job) -> str:
    """The text for a terminal after the start: the agent, the job's page, and the command that shows the result."""
    page = settings.find_page(job)
    where = f": {page}" if page else ""
    return f"Job {job.id} is given to {job.agent}{where}\nSee what came of it by: ptq-bot report {job.id}\n"


async def follow(settings: Settings, job: Job, show: Callable[[str], None]) -> tuple[str, bool]:
    """Wait until a job has ended, and `show` each change of its state. Returns its report, and whether it succeeded.

    Raises `DatabaseError`.
    """
    said = ""
    async with open_existing_database(settings.server.database_url) as database:
        while job.active:
            line = f"{job.state}{f': {job.trouble}' if job.trouble else ''}\n"
            if line != said:
                show(show_for_terminal(redact(line, settings.secret_values())))
                said = line
            await asyncio.sleep(LOOK_EVERY_S)
            with database.explaining():
                async with database.read() as connection:
                    job = await job_rows.fetch_job(connection, job.id) or job
    return await read_report(settings, job.id), job.state is JobState.SUCCEEDED
