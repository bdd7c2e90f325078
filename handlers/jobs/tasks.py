"""Creates the jobs of tasks that belong to no issue: an operator's own words are all that an agent is told.

Nobody reads of them on GitHub: what comes of one is on its page.
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
    """What an operator asks for."""

    words: str
    preset: Preset
    choice: Choice
    branch: str
    """Whatever git fetches by this name."""
    commit: str | None
    """None means the newest of it."""
    requested_by: str
    occasion: str = ""
    """What names this task among all, where it may be given twice by mistake; empty where it cannot."""


def choose_preset(name: str, rules: RepositoryRules, presets: Mapping[str, Preset]) -> Preset:
    """The preset of that name. Raises `NotStarted` for one that may not be asked for, or lives by an issue. Pure."""
    offered = {
        known.name: known
        for known in presets.values()
        if known.has_agent and not known.carries_on and (rules.presets is None or known.name in rules.presets)
    }
    if name in offered:
        return offered[name]
    there_are = f"there are: {', '.join(offered) or 'none'}"
    known = presets.get(name)
    if name == RETRY or (known and (known.carries_on or not known.has_agent)):
        raise NotStarted(f"{name} goes by an issue and what was done on it, and a task has none; {there_are}")
    if known:
        raise NotStarted(f"the .github/ptq.toml of {rules.name} does not allow {name}; {there_are}")
    raise NotStarted(f"there is no preset {name[:50]!r}; {there_are}")


async def start_off_thread(
    connection: AsyncConnection, context: Context, rules: RepositoryRules, repository: Repository, task: Task
) -> Job:
    """Create the job in which an agent works by somebody's words. Raises `NotStarted` while something forbids it."""
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
        raise NotStarted("somebody else is giving a task just now: try again")
    return job
