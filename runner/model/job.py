"""What a job is: its kind and its states, the moves between them, and what comes out of it.

Pure values; read this file first. It knows neither databases nor machines nor GitHub.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from runner.model.facts import Facts

OPERATOR = "the operator"
"""Used instead of a login. The name of an operator's account on the host may be a stranger's login on GitHub."""

DIGEST_SHOWN = 12
"""Hex digits of a digest that people see and type."""


class JobState(StrEnum):
    """The state of a job. No job goes back to an earlier state; a retry is a new job."""

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
    """What a job posts in its issue's thread without being asked. Commands in the thread are always answered."""

    ALL = "all"
    """Its status and its report."""
    FINDING = "finding"
    """Only its report, and only if the service has checked whether the issue still reproduces."""
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
"""Every legal move. A state without an entry is final. The kind of a job decides which moves it makes."""

ACTIVE = frozenset(NEXT)
FINAL = frozenset(JobState) - ACTIVE


class JobKind(StrEnum):
    """What a job is for. `KINDS` says what follows from it."""

    AGENT = "agent"
    """An agent works on an issue."""
    VERIFY = "verify"
    """The service runs the scripts of an issue on its base branch, without an agent."""
    REBASE = "rebase"
    """Git applies an earlier attempt's change to another commit. An agent works only on conflicts."""
    WORKTREE = "worktree"
    """An environment for a person: a new one, or a replacement for that of an earlier job, with its collected edits. It
    is ready when the job has ended."""
    TASK = "task"
    """An agent works on a person's instructions, without an issue."""
    RELEASE = "release"
    """The service collects a person's edits from the environment that they held."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """The properties of all jobs of a kind."""

    steps: tuple[JobState, ...]
    """The states between `queued` and the end, in order. `collecting` reads the change."""
    may_skip: frozenset[JobState] = frozenset()
    """The steps that a job of this kind may not need."""
    has_thread: bool | None = True
    """Whether the job belongs to an issue. None if that depends on the job that it follows."""
    by_hand: bool = False
    """Whether a person works in the environment instead of an agent."""

    @property
    def has_agent(self) -> bool:
        """Whether an agent works in all or some of these jobs."""
        return JobState.RUNNING in self.steps


_ALL_STEPS = (JobState.PREPARING, JobState.RUNNING, JobState.COLLECTING, JobState.VERIFYING)
_NO_CHECKS = frozenset({JobState.VERIFYING})

KINDS: Mapping[JobKind, KindRow] = {
    JobKind.AGENT: KindRow(_ALL_STEPS, _NO_CHECKS),
    JobKind.VERIFY: KindRow((JobState.PREPARING, JobState.VERIFYING)),
    JobKind.REBASE: KindRow(_ALL_STEPS, _NO_CHECKS | {JobState.RUNNING}, has_thread=None),
    JobKind.WORKTREE: KindRow((JobState.PREPARING,), has_thread=False, by_hand=True),
    JobKind.TASK: KindRow(_ALL_STEPS, _NO_CHECKS, has_thread=False),
    JobKind.RELEASE: KindRow(
        (JobState.PREPARING, JobState.COLLECTING, JobState.VERIFYING), _NO_CHECKS, has_thread=None, by_hand=True
    ),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """What attempts have in common: an issue, or else a series, which is a worktree or a task."""

    repository: str
    thread: int | None
    """The number of the issue."""
    series: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """Everything about a job that is known before it begins. `create_job` in `job_rows` makes the job from it."""

    id: str
    """Derived from the trigger (`derive_job_id`)."""
    kind: JobKind
    repository: str
    private: bool
    """Whether the repository is private, or has become private since. Its jobs are then in no public list."""
    thread: int | None
    """The number of its issue. None for a job without an issue."""
    issue_title: str = ""
    """The title of its issue at the time of the request. Empty for a job without an issue."""
    series: int | None = None
    """The number of its worktree or task in the repository. All attempts at it share the number, as attempts at an
    issue share their thread."""
    name: str | None = None
    """The name of the series."""
    task: str = ""
    """What a person wrote to its agent instead of an issue. Empty for a job of an issue, and without an agent."""
    preset: str
    may_change: bool
    """Whether the agent may propose a change. If not, a diff is refused."""
    agent: str
    model: str | None = None
    """The requested model. None leaves the choice to the agent."""
    thinking: str | None = None
    """The requested level of thinking. None leaves the choice to the agent."""
    max_turns: int | None = None
    """The most turns of its agent, if the request allows fewer than the caps."""
    max_cost_usd: float | None = None
    """The highest cost of its agent, if the request allows less than the caps."""
    requested_by: str
    requested_at: datetime
    """The time of the request, by GitHub's clock. An earlier cancel does not apply to this job. A replacement of a lost
    job keeps the time of the first request."""
    clone_url: str
    base_branch: str
    base_commit: str | None = None
    """The commit that the job's change begins from. If the newest commit was requested, None until it is known."""
    prompt: str
    skills: tuple[str, ...] = ()
    """What its agent gets: names of skills, and folders with skills in the repository (`runner.agents.skills`)."""
    requires: tuple[str, ...] = ()
    """Labels that its machine needs besides those for its repository, because of the issue's labels."""
    pinned_to: str | None = None
    """The only machine that it may run on. None allows any machine."""
    posts: Posts = Posts.ALL
    confidential: bool = False
    """Whether only operators may see the job, whatever its report says. True if an earlier report on its issue was
    confidential."""
    follows: str | None = None
    """The earlier attempt that this one continues, with its edits and texts."""
    replaces: str | None = None
    """The job that this one automatically replaces, because that job was lost or left conflicts. The machine of
    that job is the last choice."""
    adopts: str | None = None
    """The job whose environment this one takes over, as a person left it."""
    conflicts: tuple[str, ...] | None = None
    """The paths with conflicts in a rebase, as its machine reports them. None until they are known."""

    def __post_init__(self) -> None:
        """Refuse a job with both a thread and a series, with neither, or with the wrong one for its kind."""
        has_thread = self.thread is not None
        if has_thread != (self.series is None) or KINDS[self.kind].has_thread not in (None, has_thread):
            raise ValueError(f"a job of kind {self.kind} with thread {self.thread} and series {self.series}")

    @property
    def topic(self) -> Topic:
        """What it has in common with other attempts."""
        return Topic(self.repository, self.thread, self.series)

    @property
    def issue_number(self) -> int:
        """The number of its issue. Only for a job that has one."""
        assert self.thread is not None
        return self.thread

    @property
    def case_key(self) -> str:
        """The issue as `owner/name#number`; for a job without an issue, `owner/name~name`."""
        return f"{self.repository}~{self.name}" if self.thread is None else f"{self.repository}#{self.thread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobRequest):
    """One attempt at a request, on one machine. All times have the time zone UTC."""

    attempt: int
    state: JobState
    created_at: datetime
    changed_at: datetime
    """When it reached its state, or when the newest stage of that state was begun for the first time."""
    stages_begun: int = 0
    """How many stages of its state the service has begun. Its machine may forget them."""
    machine: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancelled_by: str | None = None
    stopped_as: str | None = None
    """How the run will end, if the service has told the agent to stop (`runner.model.ending.Ending`)."""
    stopped_at: datetime | None = None
    stop_reason: str | None = None
    """Why the service has told the agent to stop, as a clause for the report. None while the agent may continue."""
    exit_status: int | None = None
    trouble: str | None = None
    """What the job is waiting for, as a sentence. None if nothing blocks the job."""
    failure: str | None = None
    """Why the job did not succeed, as a sentence for the report."""
    facts: Facts = ()
    """What the job runs on, such as GPUs and versions. The service reads this before the agent begins."""

    @property
    def active(self) -> bool:
        """Whether the job has not ended."""
        return self.state in ACTIVE

    @property
    def is_ending(self) -> bool:
        """Whether a person has cancelled it, or the service has told its agent to stop."""
        return self.cancel_requested_at is not None or self.stopped_at is not None

    @property
    def requester(self) -> str:
        """The person who asked for the job, as people read it: with an `@` if GitHub may notify them.

        Work by hand, tasks, and jobs that do not post everything notify nobody. An account on the host may have asked
        for them, and its name may be a stranger's login on GitHub.
        """
        is_named = self.by_hand or self.thread is None or self.posts is not Posts.ALL or self.requested_by == OPERATOR
        return self.requested_by if is_named else f"@{self.requested_by}"

    @property
    def canceller(self) -> str:
        """Who cancelled it, for people."""
        return OPERATOR if self.cancelled_by == OPERATOR else f"@{self.cancelled_by}"

    @property
    def by_hand(self) -> bool:
        """Whether a person works in its environment instead of an agent."""
        return KINDS[self.kind].by_hand

    @property
    def by_hand_alone(self) -> bool:
        """Whether no agent had a part in it: a worktree of a person, or its release."""
        return self.by_hand and self.thread is None and not self.task

    @property
    def has_agent(self) -> bool:
        """Whether an agent works in it, as far as is known: a rebase needs one only for conflicts."""
        row = KINDS[self.kind]
        return row.has_agent and (JobState.RUNNING not in row.may_skip or bool(self.conflicts))

    @property
    def after_preparing(self) -> JobState:
        """The state that follows a successful preparation."""
        steps = KINDS[self.kind].steps[1:]
        return next((step for step in steps if step is not JobState.RUNNING or self.has_agent), JobState.SUCCEEDED)

    @property
    def agent_has_run(self) -> bool:
        """Whether an agent has worked in its environment, so that its log may contain findings."""
        return self.started_at is not None or self.adopts is not None

    @property
    def agent_failed(self) -> bool:
        """Whether it failed after its agent had begun. What the agent printed last may say why."""
        return self.state is JobState.FAILED and self.has_agent and self.agent_has_run

    @property
    def logged_issue(self) -> int:
        """The number of its issue, for logs and notifications. A series is shown as a negative number."""
        return -(self.series or 0) if self.thread is None else self.thread

    def log_context(self) -> dict[str, object]:
        """The ids in every log line about this job."""
        context: dict[str, object] = {"job": self.id, "case": self.case_key, "repository": self.repository}
        return context | {"issue": self.logged_issue, "machine": self.machine}


def queue_job(request: JobRequest, attempt: int, now: datetime) -> Job:
    """The queued job of a request. Every job begins as this value; `create_job` stores it."""
    return Job(**_list_asked(request), attempt=attempt, state=JobState.QUEUED, created_at=now, changed_at=now)


def ask_again(job: Job, **changes: Any) -> JobRequest:
    """The request of a job, with `changes`."""
    return JobRequest(**{**_list_asked(job), **changes})


def _list_asked(request: JobRequest) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in fields(JobRequest)}


class IllegalMove(Exception):  # noqa: N818 - a fact about a job, not a fault of the program
    """A job cannot move from its state to the wanted one. Nothing was changed."""

    def __init__(self, job_id: str, state: JobState, to: JobState) -> None:
        super().__init__(f"job {job_id} cannot move from {state} to {to}")


def move(job: Job, to: JobState, now: datetime, failure: str | None = None) -> Job:
    """Return the job in its next state. Raises `IllegalMove`."""
    if to not in NEXT.get(job.state, frozenset()):
        raise IllegalMove(job.id, job.state, to)
    ended_at = now if to in FINAL else None
    return replace(job, state=to, changed_at=now, stages_begun=0, ended_at=ended_at, failure=failure, trouble=None)


def derive_job_id(trigger: str, secret: bytes) -> str:
    """The id of the job that `trigger` (repository, issue and event) starts.

    It is derived, so that a trigger that arrives twice yields the same job. The secret keeps people who know the
    trigger from guessing the address of the job's page.
    """
    return hmac.new(secret, trigger.encode(), "sha256").hexdigest()[:10]


LINK, SUBMODULE = "120000", "160000"
"""Git's modes of links and submodules. Files have `100644` or `100755`."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One changed path of a diff."""

    path: str
    mode: str | None
    """Git's mode, or None if the path is deleted."""
    content: bytes | None
    """The new content, or the target of a link. None if the path is deleted."""
    old_mode: str | None = None
    """Git's mode before the change, or None if the path is new."""

    @property
    def status(self) -> str:
        """`added`, `modified` or `deleted`."""
        if self.mode is None:
            return "deleted"
        return "modified" if self.old_mode else "added"

    @property
    def binary(self) -> bool:
        """Whether the content is not UTF-8, or has NUL bytes."""
        if self.content is None:
            return False
        try:
            return "\0" in self.content.decode()
        except UnicodeDecodeError:
            return True


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a job. Every text in it is untrusted, because an agent wrote it."""

    job_id: str
    body: str
    worklog: str
    pr_title: str
    repro: str
    patch: str
    changes: tuple[FileChange, ...]
    digest: str | None
    """Identifies this change on this base commit. None if there is nothing to approve."""
    refusals: tuple[str, ...] = ()
    """The reasons why the diff cannot become a pull request, as sentences."""
    warnings: tuple[str, ...] = ()
    """Warnings for readers, as sentences."""

    def texts(self) -> tuple[tuple[str, str], ...]:
        """The texts with their titles, in display order."""
        return (("Report", self.body), ("Diff", self.patch), ("Repro", self.repro), ("Worklog", self.worklog))

    @property
    def size(self) -> int:
        """The characters of all texts together."""
        return sum(len(text) for _, text in self.texts())


@dataclass(frozen=True, slots=True)
class ReportHead:
    """A stored report without its long texts."""

    withheld: bool
    digest: str | None
    pr_title: str
    has_words: bool


def split_failure(failure: str) -> tuple[str, str]:
    """Split a failure into its first line and the log lines that follow.

    After an agent has run, only people who may read the log see the log lines. Everybody sees the log lines of a
    preparation, because they say what to fix.
    """
    sentence, _, quoted = failure.partition("\n")
    return (sentence.rstrip().removesuffix(":"), quoted.strip("\n")) if quoted.strip() else (sentence, "")


def digest_of(base_commit: str, changes: Iterable[FileChange], secret: bytes) -> str:
    """The HMAC-SHA-256 over the base commit and every path, mode and content, in hex.

    People compare only its first `DIGEST_SHOWN` digits. The secret keeps an agent from searching for two changes with
    the same digits, one to be approved and one for the pull request.
    """
    digest = hmac.new(secret, f"digest\0{base_commit}\0".encode(), "sha256")
    for change in sorted(changes, key=lambda change: change.path):
        content = hashlib.sha256(change.content or b"").hexdigest()
        digest.update(f"{change.path}\0{change.mode or 'deleted'}\0{content}\0".encode())
    return digest.hexdigest()
