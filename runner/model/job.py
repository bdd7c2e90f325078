"""What a job is: its states, the moves between them, and what comes out of it.

Pure values; read this file first. It refuses to know databases, machines and GitHub.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

VERIFY = "verify"
"""The preset of a job in which no agent works: the service runs an issue's scripts itself."""

REBASE = "rebase"
"""The preset of a job that brings an earlier change onto another commit. An agent works only where git cannot."""

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
"""Every legal move. States that are no key here are final. Where a person works by hand, no agent runs:
such a job ends once its environment is there, or only collects what is in the one that it adopts. Nor does one where
the service only looks itself, or where a change is rebased without conflicts."""

ACTIVE = frozenset(NEXT)
FINAL = frozenset(JobState) - ACTIVE


class IllegalMove(Exception):  # noqa: N818 - a fact about a job, not a fault of the program
    """A job cannot go from its state to that one; nothing was changed."""

    def __init__(self, job_id: str, state: JobState, to: JobState) -> None:
        super().__init__(f"job {job_id} cannot move from {state} to {to}")


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt by one agent on one machine. Times are aware and in UTC."""

    id: str
    repository: str
    private: bool
    """Whether the repository is; its jobs are then in no public list."""
    issue_number: int
    """Below 0 for a worktree or a task of its own, which belong to no issue."""
    attempt: int
    preset: str
    may_change: bool
    """Whether the preset lets the agent propose a change; where not, a diff is refused."""
    agent: str
    requested_by: str
    clone_url: str
    base_branch: str
    prompt: str
    state: JobState
    created_at: datetime
    changed_at: datetime
    requested_at: datetime
    """When somebody asked for it, by GitHub's clock: a cancel that was written before is not about this job. One made
    in the place of another keeps the time of the first request."""
    machine: str | None = None
    base_commit: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancelled_by: str | None = None
    model: str | None = None
    """The model that was asked for; None leaves it to the agent."""
    skills: tuple[str, ...] = ()
    """Names of the skills that the issue's labels bring."""
    follows: str | None = None
    """The earlier attempt that this one carries on from: its edits and its texts."""
    replaces: str | None = None
    """The job in whose place this one was made, by itself: it was lost, or left conflicts. Its machine is the last
    resort."""
    conflicts: tuple[str, ...] | None = None
    """The paths in which a rebase met conflicts, as its machine says them; None until that is known."""
    adopts: str | None = None
    """The job whose environment this one takes over as a person left it."""
    by_hand: bool = False
    """Whether a person works in its environment, and no agent."""
    name: str | None = None
    """What a worktree, or a task of its own, is called."""
    pinned_to: str | None = None
    """The one machine that it may run on; None leaves the choice."""
    posts: Posts = Posts.ALL
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
    def only_looks(self) -> bool:
        """Whether the service itself runs what is known of the issue, and nobody works in it."""
        return self.preset == VERIFY and not self.by_hand

    @property
    def rebases(self) -> bool:
        """Whether it brings the change of the attempt that it follows onto another commit."""
        return self.preset == REBASE and not self.by_hand

    @property
    def has_agent(self) -> bool:
        """Whether an agent works in it, as far as that is known."""
        return not self.by_hand and not self.only_looks and not (self.rebases and not self.conflicts)

    @property
    def agent_has_run(self) -> bool:
        """Whether an agent has worked in its environment, so that its log may tell what that found."""
        return self.started_at is not None or self.adopts is not None

    @property
    def has_thread(self) -> bool:
        """Whether it belongs to an issue, where people read of it."""
        return self.issue_number > 0

    @property
    def case_key(self) -> str:
        """The issue that the job belongs to, as `owner/name#number`; or a job without one, as `owner/name~name`."""
        return f"{self.repository}#{self.issue_number}" if self.has_thread else f"{self.repository}~{self.name}"

    def log_context(self) -> dict[str, object]:
        """The ids that every log line about this job carries."""
        context: dict[str, object] = {"job": self.id, "case": self.case_key, "repository": self.repository}
        return context | {"issue": self.issue_number, "machine": self.machine}


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
