"""What the next agent is told about an earlier attempt, whether it continues that one or not. Pure.

The texts come from an agent or a machine: secrets are removed, and the rest stays untrusted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from handlers.text.sanitize import redact
from runner.agents.configuration import configures_agents
from runner.characters import show_invisible
from runner.model.job import Job, Report

MAX_FAILURE = 1_000
"""The most characters of a failure. This and the three limits below add at most 49,000 characters to a brief."""

READ, UNSURE = 60_000, 10_000
"""How many characters of a text are read, and how many of them, next to the cut, are then left out.

No usual secret is longer than the second number.
"""

MAX_REPORT = 20_000
MAX_WORKLOG = 20_000
MAX_REPRO = 8_000


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """An ended job, and its results."""

    job: Job
    failure: str
    """Why the job did not succeed. Empty if it did."""
    report: str
    worklog: str
    """The worklog, or only its end if it is too long."""
    repro: str
    edited: bool
    """Whether the job left edits. They are in the worktree again if the new attempt continues the job."""
    configured: bool
    """Whether the job changed the configuration of coding agents. Such changes are not applied to the worktree."""
    continued: bool = True
    """Whether the new attempt begins where this one ended, with its edits. If not, it gets only the texts."""


def recall(job: Job, report: Report | None, secrets: Collection[str], *, continued: bool = True) -> EarlierAttempt:
    """Summarize an ended job. `report` is None if nothing was collected."""
    changes = report.changes if report else ()
    return EarlierAttempt(
        job=job,
        failure=_keep_start(job.failure or "", secrets, MAX_FAILURE),
        report=_keep_start(report.body, secrets, MAX_REPORT) if report else "",
        worklog=_keep_end(report.worklog, secrets, MAX_WORKLOG) if report else "",
        repro=_keep_start(report.repro, secrets, MAX_REPRO) if report else "",
        edited=any(not configures_agents(change.path) for change in changes),
        configured=any(configures_agents(change.path) for change in changes),
        continued=continued,
    )


def _keep_start(text: str, secrets: Collection[str], limit: int) -> str:
    """The revealed text without secrets, cut to `limit` characters with a notice.

    Only the beginning of a long text is read, because a transaction may wait for this. A secret that the cut splits is
    not found, so the last `UNSURE` characters before the cut are left out.
    """
    shown = show_invisible(redact(text[:READ], secrets))
    if len(text) <= READ and len(shown) <= limit:
        return shown
    shown = shown if len(text) <= READ else shown[:-UNSURE]
    notice = f"\n[cut here: the original has {len(text)} characters]"
    return shown[: limit - len(notice)] + notice


def _keep_end(text: str, secrets: Collection[str], limit: int) -> str:
    shown = show_invisible(redact(text[-READ:], secrets))
    if len(text) <= READ and len(shown) <= limit:
        return shown
    shown = shown if len(text) <= READ else shown[UNSURE:]
    notice = f"[the beginning is cut off: the original has {len(text)} characters]\n"
    return notice + shown[len(notice) - limit :]
