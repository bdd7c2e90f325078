"""Chooses the commit that a job begins from. The host's answer decides, and the machine must confirm the same commit.

Besides the approved diff, a pull request brings in all commits that its base commit comes from. So a job on an issue
begins from a commit on its base branch. A worktree, or a task without an issue, may begin anywhere. GitHub is asked
about its base commit before a pull request is opened for it.

With an `environment_branch`, a job for which no commit is chosen begins from the newest commit of that branch. The base
branch must contain it, because the pull request goes there. A rebase moves a change to the base branch itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.model.environment import NEWEST, Profile
from runner.model.history import COMMIT
from runner.model.job import Job, JobKind
from runner.model.jobd_answers import JobdError
from runner.steps.runtime import Runtime, update_job

WRONG_COMMIT = "wrong_commit"
"""The error code for a machine that checked out another commit. It counts as a failure of the machine."""


class NoBaseCommit(Exception):  # noqa: N818 - a fact about a job
    """There is no commit that the job can begin from. The message is a sentence for its report."""


def find_branch(profile: Profile, job: Job) -> str:
    """The branch whose newest commit a job begins from, if no commit is chosen for it. Pure."""
    # After a rebase, attempts continue on the branch that the rebase went to.
    is_configured = profile.base_branch in (NEWEST, job.base_branch)
    if profile.environment_branch and job.thread is not None and job.kind is not JobKind.REBASE and is_configured:
        return profile.environment_branch
    return job.base_branch


def explain_refusal(job: Job, branch: str, commit: str, *, on_base_branch: bool) -> str | None:
    """Why a job cannot begin from a commit, as a sentence for its report. None if it can. Pure.

    `branch` is the branch that the job takes its commit from.
    """
    if on_base_branch:
        return None
    if branch != job.base_branch:
        return (
            f"the newest commit of `{branch}`, `{commit[:10]}`, is not on `{job.base_branch}`, where the pull request "
            f"would go: change `environment_branch`, or wait until `{job.base_branch}` has it"
        )
    how = "`/ptq rebase` moves an earlier diff to the newest commit, and `/ptq fix` begins from there"
    if job.thread is None:
        how = "a rebase on the job's page moves the diff to the newest commit of a branch"
    return f"the base commit `{commit[:10]}` is not on `{job.base_branch}`: {how}"


def _begins_on_branch(job: Job) -> bool:
    """Whether a job's base commit has to be on its base branch: for every job on an issue, and for every rebase."""
    return job.thread is not None or job.kind is JobKind.REBASE


async def choose_base_commit(runtime: Runtime, job: Job, earlier: str) -> Job:
    """Store the commit that the machine will be told to check out, and return the job.

    `earlier` is the base commit of the attempt that the job continues, or empty. The job stays without a commit if
    only its machine knows the newest one: a `clone_url` of the operator may lag behind, and a worktree may begin at
    any ref. GitHub is not asked again if the machine has been told before. Raises `NoBaseCommit` and `HistoryError`.
    """
    if job.stages_begun:
        return job
    commit, profile = job.base_commit or earlier, runtime.profiles[job.repository]
    if _begins_on_branch(job) and (commit or profile.by_gateway):
        commit = await _find_on_branch(runtime, job, commit, find_branch(profile, job))
    if not commit or commit == job.base_commit:
        return job
    return await update_job(runtime, job, base_commit=commit)


async def _find_on_branch(runtime: Runtime, job: Job, commit: str, branch: str) -> str:
    """`commit`, or the newest commit of `branch` if `commit` is empty.

    Raises `NoBaseCommit` if the result is not on the base branch, and `HistoryError`.
    """
    if commit:
        branch = job.base_branch
    elif branch != job.base_branch:
        # Read before the base branch. In the other order, a commit that reaches both in between would be refused.
        commit = await _fetch_newest(runtime, job, branch)
    newest = await _fetch_newest(runtime, job, job.base_branch)
    commit = commit or newest
    on_base_branch = await runtime.history.leads_to(job.repository, commit, newest)
    if reason := explain_refusal(job, branch, commit, on_base_branch=on_base_branch):
        raise NoBaseCommit(reason)
    return commit


async def _fetch_newest(runtime: Runtime, job: Job, branch: str) -> str:
    newest = await runtime.history.fetch_newest(job.repository, branch)
    if newest is None:
        raise NoBaseCommit(f"the repository has no branch {branch}")
    return newest


async def _is_on_branch(runtime: Runtime, job: Job, branch: str, commit: str) -> bool:
    newest = await runtime.history.fetch_newest(job.repository, branch)
    return newest is not None and await runtime.history.leads_to(job.repository, commit, newest)


async def read_base_commit(runtime: Runtime, job: Job, result: Mapping[str, Any]) -> str:
    """The commit that a machine checked out. It must be the chosen commit. If none was chosen, it must be on
    the base branch, unless the job may begin anywhere.

    Raises `JobdError` for any other commit, `NoBaseCommit` if the job cannot begin there, and `HistoryError`.
    """
    said = result.get("base_commit")
    if not isinstance(said, str) or not COMMIT.fullmatch(said):
        raise JobdError("internal", "the machine did not say which commit it checked out")
    if job.base_commit and said != job.base_commit:
        reason = f"the machine checked out commit {said[:10]}, but was told to check out {job.base_commit[:10]}"
        raise JobdError(WRONG_COMMIT, reason)
    if job.base_commit or not _begins_on_branch(job) or await _is_on_branch(runtime, job, job.base_branch, said):
        return said
    branch = find_branch(runtime.profiles[job.repository], job)
    # If the commit is on the other branch, the machine did as it was told.
    if branch != job.base_branch and await _is_on_branch(runtime, job, branch, said):
        raise NoBaseCommit(explain_refusal(job, branch, said, on_base_branch=False))
    raise JobdError(WRONG_COMMIT, f"the machine checked out commit {said[:10]}, which is not on {job.base_branch}")
