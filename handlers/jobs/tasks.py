"""Creates the jobs of tasks without an issue: the agent only gets a person's instructions.

They post nothing on GitHub. The result is on the job's page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex

from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.commands.options import Choice
from handlers.context import Context
from handlers.events import Repository
from handlers.jobs.brief import render_off_thread
from handlers.jobs.preconditions import NotStarted, check_caps, check_not_paused
from handlers.jobs.start import RETRY
from handlers.rules import Preset, RepositoryRules
from runner.model.job import Job, JobKind, JobRequest, derive_job_id
from runner.rows import job_rows


@dataclass(frozen=True, slots=True)
class Task:
    """A request for a task."""

    words: str
    preset: Preset
    choice: Choice
    branch: str
    """Any ref that git can fetch."""
    commit: str | None
    """None means the newest commit."""
    requested_by: str
    occasion: str = ""
    """A unique key, if the task may be sent twice by mistake; otherwise empty."""


def choose_preset(name: str, rules: RepositoryRules, presets: Mapping[str, Preset]) -> Preset:
    """The preset of that name. Raises `NotStarted` if it is not allowed, or needs an issue. Pure."""
    offered = {
        known.name: known
        for known in presets.values()
        if known.has_agent and not known.carries_on and (rules.presets is None or known.name in rules.presets)
    }
    if name in offered:
        return offered[name]
    there_are = f"available: {', '.join(offered) or 'none'}"
    known = presets.get(name)
    if name == RETRY or (known and (known.carries_on or not known.has_agent)):
        raise NotStarted(f"{name} needs an issue; {there_are}")
    if known:
        raise NotStarted(f"the .github/ptq.toml of {rules.name} does not allow {name}; {there_are}")
    raise NotStarted(f"unknown preset {name[:50]!r}; {there_are}")


async def start_off_thread(
    connection: AsyncConnection, context: Context, rules: RepositoryRules, repository: Repository, task: Task
) -> Job:
    """Create the job of a task. Raises `NotStarted`."""
    series, now = await job_rows.find_unused_series(connection, rules.name), context.now()
    named = task.occasion or f"~{series} task"
    job_id = derive_job_id(f"{rules.name}{named}", context.db.secret)
    if task.occasion and (given := await job_rows.fetch_job(connection, job_id)):
        return given
    await check_not_paused(connection, rules.name)
    await check_caps(connection, context, rules, None, task.requested_by)
    wanted = JobRequest(
        id=job_id,
        kind=JobKind.TASK,
        repository=rules.name,
        private=repository.private,
        thread=None,
        series=series,
        name=f"task{series}",
        preset=task.preset.name,
        may_change=task.preset.may_change,
        agent=task.choice.agent,
        model=task.choice.model,
        requested_by=task.requested_by,
        requested_at=now,
        clone_url=rules.clone_url or repository.clone_url,
        base_branch=task.branch,
        base_commit=task.commit,
        prompt=render_off_thread(task.preset, rules, task.words, token_hex(8)),
        pinned_to=task.choice.machine,
    )
    job = await job_rows.create_job(connection, wanted, now)
    if job is None:
        raise NotStarted("somebody else is starting a task at the moment: try again")
    return job
