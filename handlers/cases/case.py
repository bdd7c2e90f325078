"""The conversation about one issue as a state machine. Pure.

`awaiting_note` means that there is a report with a diff, and a human note would open its pull request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class CaseState(StrEnum):
    """The state of a conversation."""

    IDLE = "idle"
    ACTIVE = "active"
    AWAITING_NOTE = "awaiting_note"
    PULL_OPEN = "pull_open"


LABELS: Mapping[CaseState, str] = {
    CaseState.ACTIVE: "ptq: running",
    CaseState.AWAITING_NOTE: "ptq: awaiting note",
    CaseState.PULL_OPEN: "ptq: pull open",
}
"""State -> the optional label of the issue. An idle case has none."""

NEXT: dict[CaseState, frozenset[CaseState]] = {
    CaseState.IDLE: frozenset({CaseState.ACTIVE}),
    CaseState.ACTIVE: frozenset({CaseState.IDLE, CaseState.AWAITING_NOTE, CaseState.PULL_OPEN}),
    CaseState.AWAITING_NOTE: frozenset({CaseState.ACTIVE, CaseState.PULL_OPEN}),
    CaseState.PULL_OPEN: frozenset({CaseState.ACTIVE, CaseState.IDLE}),
}
"""Every legal move."""


class IllegalCaseMove(Exception):  # noqa: N818 - a fact about a case, not a fault of the program
    """A case cannot move from its state to the requested one. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Case:
    """The conversation about one issue, with its current job and pull request."""

    key: str
    repository: str
    issue_number: int
    title: str
    state: CaseState
    created_at: datetime
    changed_at: datetime
    active_job_id: str | None = None
    standing_job_id: str | None = None
    """The job with the current diff, which a note would approve."""
    pull_number: int | None = None
    confidential: bool = False
    """Whether only operators see the results of further attempts, because a report named a security concern, and no
    operator has lifted that."""


def _move(case: Case, to: CaseState, now: datetime) -> Case:
    if to not in NEXT[case.state]:
        raise IllegalCaseMove(f"case {case.key} cannot move from {case.state} to {to}")
    return replace(case, state=to, changed_at=now)


def begin_job(case: Case, job_id: str, now: datetime) -> Case:
    """The case after a job was created for its issue. Raises `IllegalCaseMove` if another job is active."""
    return replace(_move(case, CaseState.ACTIVE, now), active_job_id=job_id)


def end_job(case: Case, job_id: str, now: datetime, *, approvable: bool) -> Case:
    """The case after its job ended. An approvable diff becomes the current one. Otherwise the earlier diff stays."""
    if case.active_job_id != job_id:
        return case
    standing = job_id if approvable else case.standing_job_id
    rest = CaseState.PULL_OPEN if case.pull_number else CaseState.IDLE
    to = CaseState.AWAITING_NOTE if standing else rest
    return replace(_move(case, to, now), active_job_id=None, standing_job_id=standing)


def open_pull(case: Case, job_id: str, number: int, now: datetime) -> Case:
    """The case after the pull request for a job's report was opened.

    If a newer job is active, it continues. If there is a newer report, it stays the current one.
    """
    case = replace(case, pull_number=number)
    if case.standing_job_id != job_id:
        return case
    case = replace(case, standing_job_id=None)
    return _move(case, CaseState.PULL_OPEN, now) if case.state is CaseState.AWAITING_NOTE else case


def close_issue(case: Case, now: datetime) -> Case:
    """The case after its issue was closed, for example by a merge.

    If it has an open pull request, it becomes idle, because the pull request need not be watched any more.
    """
    return _move(case, CaseState.IDLE, now) if case.state is CaseState.PULL_OPEN else case
