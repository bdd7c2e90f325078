"""What a job is: its kind and its states, the moves between them, and what comes out of it.

Pure values; read this file first. It refuses to know databases, machines and GitHub.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

OPERATOR = "the operator"
"""In place of a login: who sits at the service's terminal has a name there that may be a stranger's on GitHub."""

DIGEST_SHOWN = 12
"""Hex digits of a digest that people see and type."""


class JobState(StrEnum):
    """Where a job stands. A retry is a new job; no job ever travels backwards."""

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    COLLECTING = "collecting"
    VERIFYING = "verifying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


class Posts(StrEnum):
    """What the thread of its issue gets of a job by itself. Whoever asks there is answered in any case."""

    ALL = "all"
    """Where it stands, and its report."""
    FINDING = "finding"
    """Its report alone, and that only where the service has seen whether the issue still reproduces."""
    NOTHING = "nothing"


_ENDS = {JobState.FAILED, JobState.CANCELLED, JobState.LOST}

NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.PREPARING, JobState.FAILED, JobState.CANCELLED}),
    JobState.PREPARING: frozenset(
        {JobState.RUNNING, JobState.COLLECTING, JobState.VERIFYING, JobState.SUCCEEDED, *_ENDS}
    ),
    JobState.RUNNING: frozenset({JobState.COLLECTING, *_ENDS}),
    JobState.COLLECTING: frozenset({JobState.VERIFYING, JobState.SUCCEEDED, *_ENDS}),
    JobState.VERIFYING: frozenset({JobState.SUCCEEDED, *_ENDS}),
}
"""Every legal move. States that are no key here are final. Which of the moves a job makes follows from its kind."""

ACTIVE = frozenset(NEXT)
FINAL = frozenset(JobState) - ACTIVE


class JobKind(StrEnum):
    """What a job is for. `KINDS` says what follows from it."""

    AGENT = "agent"
    """An agent works on an issue."""
    VERIFY = "verify"
    """The service runs the scripts of an issue on its base branch. No agent works."""
    REBASE = "rebase"
    """git carries an earlier attempt's change over to another commit. An agent works only on conflicts."""
    WORKTREE = "worktree"
    """An environment for a person to work in: a new one, or one that replaces the environment of an earlier job, with
    the edits that were collected from it. It is ready when the job has ended."""
    TASK = "task"
    """An agent works on what somebody wrote to it, without an issue."""
    RELEASE = "release"
    """The service collects what a person edited in the environment that they held."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """What all jobs of a kind have in common."""

    steps: tuple[JobState, ...]
    """The states between `queued` and the end, in order. `running` is the agent's, `collecting` reads the change."""
    may_skip: frozenset[JobState] = frozenset()
    """The steps that not every job of the kind needs."""
    has_thread: bool | None = True
    """Whether the job belongs to an issue; None where that depends on the job that was held."""
    by_hand: bool = False
    """Whether a person works in the environment, and no agent."""

    @property
    def has_agent(self) -> bool:
        """Whether an agent works in all of these jobs, or in some."""
        return JobState.RUNNING in self.steps


_ALL_STEPS = (JobState.PREPARING, JobState.RUNNING, JobState.COLLECTING, JobState.VERIFYING)
_NO_CHECKS = frozenset({JobState.VERIFYING})

KINDS: Mapping[JobKind, KindRow] = {
    JobKind.AGENT: KindRow(_ALL_STEPS, _NO_CHECKS),
    JobKind.VERIFY: KindRow((JobState.PREPARING, JobState.VERIFYING)),
    JobKind.REBASE: KindRow(_ALL_STEPS, _NO_CHECKS | {JobState.RUNNING}),
    JobKind.WORKTREE: KindRow((JobState.PREPARING,), has_thread=False, by_hand=True),
    JobKind.TASK: KindRow(_ALL_STEPS, _NO_CHECKS, has_thread=False),
    JobKind.RELEASE: KindRow(
        (JobState.PREPARING, JobState.COLLECTING, JobState.VERIFYING), _NO_CHECKS, has_thread=None, by_hand=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What was asked for: everything about a job that is known before it begins. `queue_job` makes the job."""

    id: str
    """Derived from what asked for it (`derive_job_id`)."""
    kind: JobKind
    repository: str
    private: bool
    """Whether the repository is; its jobs are then in no public list."""
    thread: int | None
    """The number of the issue that it belongs to, where people read about it; None for a job without an issue."""
    series: int | None = None
    """Numbers the worktrees and tasks of a repository. The attempts at one of them share the number, as those at an
    issue share their thread."""
    name: str | None = None
    """What a series is called."""
    preset: str
    may_change: bool
    """Whether the preset lets the agent propose a change; where not, a diff is refused."""
    agent: str
    model: str | None = None
    """The model that was asked for; None leaves it to the agent."""
    requested_by: str
    requested_at: datetime
    """When somebody asked for it, by GitHub's clock: a cancel that was written before is not about this job. One made
    in the place of another keeps the time of the first request."""
    clone_url: str
    base_branch: str
    base_commit: str | None = None
    """None until it is known, where the newest one was asked for."""
    prompt: str
    skills: tuple[str, ...] = ()
    """Names of the skills that the issue's labels bring."""
    pinned_to: str | None = None
    """The one machine that it may run on; None leaves the choice."""
    posts: Posts = Posts.ALL
    follows: str | None = None
    """The earlier attempt that this one carries on from: its edits and its texts."""
    replaces: str | None = None
    """The job in whose place this one was made, by itself: it was lost, or left conflicts. Its machine is the last
    resort."""
    adopts: str | None = None
    """The job whose environment this one takes over as a person left it."""
    conflicts: tuple[str, ...] | None = None
    """The paths in which a rebase met conflicts, as its machine says them; None until that is known."""

    def __post_init__(self) -> None:
        """Refuse a job that has a thread and a series, or neither, or not the one that its kind has."""
        has_thread = self.thread is not None
        if has_thread != (self.series is None) or KINDS[self.kind].has_thread not in (None, has_thread):
            raise ValueError(f"a job of kind {self.kind} with thread {self.thread} and series {self.series}")

    @property
    def issue_number(self) -> int:
        """The number of its issue, where it is known to have one."""
        assert self.thread is not None
        return self.thread

    @property
    def case_key(self) -> str:
        """The issue that the job belongs to, as `owner/name#number`; or a job without one, as `owner/name~name`."""
        return f"{self.repository}~{self.name}" if self.thread is None else f"{self.repository}#{self.thread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobRequest):
    """One attempt at what was asked for, on one machine. Times are aware and in UTC."""

    attempt: int
    state: JobState
    created_at: datetime
    changed_at: datetime
    machine: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancelled_by: str | None = None
    stopped_as: str | None = None
    """How the run will have ended, if the service has told the agent to end (`runner.model.ending.Ending`)."""
    stopped_at: datetime | None = None
    stop_reason: str | None = None
    """Why the service has told the agent to end, as a clause for the report; None while it may go on."""
    exit_status: int | None = None
    trouble: str | None = None
    """What holds the job up just now, as a sentence; None when nothing does."""
    failure: str | None = None
    """Why it did not succeed, as a sentence for the report."""

    @property
    def active(self) -> bool:
        """Whether the job may still move."""
        return self.state in ACTIVE

    @property
    def canceller(self) -> str:
        """Who asked for its end, in words."""
        return OPERATOR if self.cancelled_by == OPERATOR else f"@{self.cancelled_by}"

    @property
    def by_hand(self) -> bool:
        """Whether a person works in its environment, and no agent."""
        return KINDS[self.kind].by_hand

    @property
    def has_agent(self) -> bool:
        """Whether an agent works in it, as far as that is known: a rebase needs one only for conflicts."""
        row = KINDS[self.kind]
        return row.has_agent and (JobState.RUNNING not in row.may_skip or bool(self.conflicts))

    @property
    def after_preparing(self) -> JobState:
        """The state of the job once its environment is there, if nothing goes wrong."""
        steps = KINDS[self.kind].steps[1:]
        return next((step for step in steps if step is not JobState.RUNNING or self.has_agent), JobState.SUCCEEDED)

    @property
    def agent_has_run(self) -> bool:
        """Whether an agent has worked in its environment, so that its log may tell what that found."""
        return self.started_at is not None or self.adopts is not None

    @property
    def logged_issue(self) -> int:
        """The number by which logs and notifications know it: below 0 for a series."""
        return -(self.series or 0) if self.thread is None else self.thread

    def log_context(self) -> dict[str, object]:
        """The ids that every log line about this job carries."""
        context: dict[str, object] = {"job": self.id, "case": self.case_key, "repository": self.repository}
        return context | {"issue": self.logged_issue, "machine": self.machine}


def queue_job(request: JobRequest, attempt: int, now: datetime) -> Job:
    """The job of a request. Every job is made here."""
    return Job(**_list_asked(request), attempt=attempt, state=JobState.QUEUED, created_at=now, changed_at=now)


def ask_again(job: Job, **changes: Any) -> JobRequest:
    """What was asked for when the job was made, but for `changes`."""
    return JobRequest(**{**_list_asked(job), **changes})


def _list_asked(request: JobRequest) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in fields(JobRequest)}


class IllegalMove(Exception):  # noqa: N818 - a fact about a job, not a fault of the program
    """A job cannot go from its state to that one; nothing was changed."""

    def __init__(self, job_id: str, state: JobState, to: JobState) -> None:
        super().__init__(f"job {job_id} cannot move from {state} to {to}")


def move(job: Job, to: JobState, now: datetime, failure: str | None = None) -> Job:
    """Return the job in its next state, or raise `IllegalMove` and change nothing."""
    if to not in NEXT.get(job.state, frozenset()):
        raise IllegalMove(job.id, job.state, to)
    ended_at = now if to in FINAL else None
    return replace(job, state=to, changed_at=now, ended_at=ended_at, failure=failure, trouble=None)


def derive_job_id(trigger: str, secret: bytes) -> str:
    """The id of the job that `trigger` (repository, issue and what asked for it) starts.

    Derived, not drawn, so that a trigger that arrives twice names the same job; with a secret, so that nobody who
    knows the trigger can guess the address of the job's page.
    """
    return hmac.new(secret, trigger.encode(), "sha256").hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path of a diff, as it is after the change."""

    path: str
    mode: str | None
    """Git's mode (`100644`, `100755`, `120000`, `160000`), or None when the path is deleted."""
    content: bytes | None
    """The new content; for a link its target; None when the path is deleted."""
    old_mode: str | None = None
    """Git's mode before, or None when the path is new."""

    @property
    def status(self) -> str:
        """`added`, `modified` or `deleted`."""
        if self.mode is None:
            return "deleted"
        return "modified" if self.old_mode else "added"

    @property
    def binary(self) -> bool:
        """Whether the content is no UTF-8 text without NUL bytes."""
        if self.content is None:
            return False
        try:
            return "\0" in self.content.decode()
        except UnicodeDecodeError:
            return True


@dataclass(frozen=True, slots=True)
class Report:
    """What came out of a job. Every text in it was written by an agent: it is data, never trusted."""

    job_id: str
    body: str
    worklog: str
    pr_title: str
    repro: str
    patch: str
    changes: tuple[FileChange, ...]
    digest: str | None
    """Names exactly this change on exactly this base commit; None when there is nothing to approve."""
    refusals: tuple[str, ...] = ()
    """Why the diff cannot become a pull request, a sentence each."""
    warnings: tuple[str, ...] = ()
    """What a reader should know about the result, a sentence each."""

    def texts(self) -> tuple[tuple[str, str], ...]:
        """Every text with its title, in the order in which people want them."""
        return (("Report", self.body), ("Diff", self.patch), ("Repro", self.repro), ("Worklog", self.worklog))

    @property
    def size(self) -> int:
        """Characters of all its texts together: what reads them takes as long."""
        return sum(len(text) for _, text in self.texts())


def split_failure(failure: str) -> tuple[str, str]:
    """Why a job failed, in one line, and the lines of its log that follow.

    Once an agent has run, no more people see those lines than the log. Those of a preparation are for all: they say
    what to fix.
    """
    sentence, _, quoted = failure.partition("\n")
    return (sentence.rstrip().removesuffix(":"), quoted.strip("\n")) if quoted.strip() else (sentence, "")


def digest_of(base_commit: str, changes: Iterable[FileChange], secret: bytes) -> str:
    """The HMAC-SHA-256 over the base commit and every path, mode and content, in hex.

    People compare its first `DIGEST_SHOWN` digits alone. The secret keeps an agent from searching for two changes that
    share those digits: one to be approved, and one to open as the pull request.
    """
    digest = hmac.new(secret, f"digest\0{base_commit}\0".encode(), "sha256")
    for change in sorted(changes, key=lambda change: change.path):
        content = hashlib.sha256(change.content or b"").hexdigest()
        digest.update(f"{change.path}\0{change.mode or 'deleted'}\0{content}\0".encode())
    return digest.hexdigest()
