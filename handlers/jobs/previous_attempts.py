"""The attempt that a retry carries on from, as far as the next agent should know of it. Pure.

Its texts were written by an agent, or quote what a machine said: secrets are taken out, the rest stays data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from handlers.text.sanitize import redact
from runner.agents.configuration import configures_agents
from runner.characters import show_invisible
from runner.model.job import Job, Report

MAX_FAILURE = 1_000
"""Characters, as are the other bounds. Together they make a brief longer by no more than 52,000."""

MAX_REPORT = 20_000
MAX_WORKLOG = 30_000


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """A job that has ended, and what it left."""

    job: Job
    failure: str
    """Why it did not succeed; empty when it did."""
    report: str
    worklog: str
    """Its newest end, where it was too long."""
    edited: bool
    """Whether it left edits that are in the worktree again."""
    configured: bool
    """Whether it wrote configuration of coding agents, which is held back from the worktree."""


def recall(job: Job, report: Report | None, secrets: Collection[str]) -> EarlierAttempt:
    """What is worth knowing about a job that has ended; `report` is None when nothing was collected."""
    changes = report.changes if report else ()
    return EarlierAttempt(
        job=job,
        failure=_keep_start(redact(job.failure or "", secrets), MAX_FAILURE),
        report=_keep_start(redact(report.body, secrets), MAX_REPORT) if report else "",
        worklog=_keep_end(redact(report.worklog, secrets), MAX_WORKLOG) if report else "",
        edited=any(not configures_agents(change.path) for change in changes),
        configured=any(configures_agents(change.path) for change in changes),
    )


def _keep_start(text: str, limit: int) -> str:
    """The text as a reader sees it, and cut to `limit` characters with a notice."""
    shown = show_invisible(text)
    if len(shown) <= limit:
        return shown
    notice = f"\n[cut here: the original has {len(text)} characters]"
    return shown[: limit - len(notice)] + notice


def _keep_end(text: str, limit: int) -> str:
    shown = show_invisible(text)
    if len(shown) <= limit:
        return shown
    notice = f"[the beginning is cut off: the original has {len(text)} characters]\n"
    return notice + shown[len(notice) - limit :]
