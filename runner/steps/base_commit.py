"""Chooses the commit that a job begins from. The host's answer decides, and the machine must confirm the same commit.

What a pull request brings in beside the approved diff is what its base commit comes from. So a job of an issue begins
from a commit of its base branch. A worktree or a task of its own may begin anywhere: no pull request is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runner.model.job import Job
from runner.model.jobd_answers import JobdError
from runner.steps.runtime import Runtime, update_job

WRONG_COMMIT = "wrong_commit"
"""The error code for a machine that checked out another commit. It counts as a failure of the machine."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class NoBaseCommit(Exception):  # noqa: N818 - a fact about a job
    """There is no commit that the job can begin from. The message is a sentence for its report."""


async def choose_base_commit(runtime: Runtime, job: Job, earlier: str) -> Job:
    """Store the commit that the machine will be told to check out, and return the job.

    `earlier` is the base commit of the attempt that the job continues, or empty. The job stays without a commit if
    only its machine knows the newest one: a `clone_url` of the operator may lag behind, and a worktree may begin at
    any ref. GitHub is not asked again if the machine has been told before. Raises `NoBaseCommit` and `HistoryError`.
    """
    if job.stages_begun:
        return job
    commit = job.base_commit or earlier
    if job.thread is not None and (commit or runtime.profiles[job.repository].by_gateway):
        commit = await _find_on_branch(runtime, job, commit)
    if not commit or commit == job.base_commit:
        return job
    return await update_job(runtime, job, base_commit=commit)


async def _find_on_branch(runtime: Runtime, job: Job, commit: str) -> str:
    """The commit, if it is on the base branch; without one, the branch's newest commit."""
    newest = await runtime.history.fetch_newest(job.repository, job.base_branch)
    if newest is None:
        raise NoBaseCommit(f"the repository has no branch {job.base_branch}")
    if commit and not await runtime.history.leads_to(job.repository, commit, newest):
        raise NoBaseCommit(
            f"the base commit `{commit[:10]}` is not on `{job.base_branch}`: `/ptq rebase` moves an earlier diff to "
            "the newest commit, and `/ptq fix` begins from there"
        )
    return commit or newest


async def _is_on_branch(runtime: Runtime, job: Job, commit: str) -> bool:
    newest = await runtime.history.fetch_newest(job.repository, job.base_branch)
    return newest is not None and await runtime.history.leads_to(job.repository, commit, newest)


async def read_base_commit(runtime: Runtime, job: Job, result: Mapping[str, Any]) -> str:
    """The commit that a machine checked out. It must be the chosen one, or without one, on the base branch.

    Raises `JobdError` for any other commit, and `HistoryError`.
    """
    said = result.get("base_commit")
    if not isinstance(said, str) or not _COMMIT.fullmatch(said):
        raise JobdError("internal", "the machine did not say which commit it checked out")
    if job.base_commit and said != job.base_commit:
        reason = f"the machine checked out commit {said[:10]}, but was told to check out {job.base_commit[:10]}"
        raise JobdError(WRONG_COMMIT, reason)
    if not job.base_commit and job.thread is not None and not await _is_on_branch(runtime, job, said):
        reason = f"the machine checked out commit {said[:10]}, which is not on {job.base_branch}"
        raise JobdError(WRONG_COMMIT, reason)
    return said
