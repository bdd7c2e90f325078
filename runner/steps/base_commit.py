"""Which commit a job begins from: the service chooses it by the host's word, and the machine's answer must be that one.

What a pull request brings in beside the approved diff is what its base commit comes from. So a job of an issue begins
from a commit of its base branch. A worktree or a task of its own may begin anywhere: no pull request is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runner.model.job import Job
from runner.model.jobd_answers import JobdError
from runner.steps.runtime import Bench, update_job

WRONG_COMMIT = "wrong_commit"
"""Our name for a machine that began from another commit than it should have; it counts as the machine's fault."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class NoBaseCommit(Exception):  # noqa: N818 - a fact about a job
    """A job has no commit to begin from. The message is a sentence for its report."""


async def choose_base_commit(bench: Bench, job: Job, earlier: str) -> Job:
    """The job with the commit that its machine is told to check out, written down before the machine is asked.

    `earlier` is where the attempt that it carries on from began; empty for none. The job stays without a commit where
    only its machine knows the newest one: the operator's own `clone_url` may lag behind, and a worktree may begin at
    any ref. Raises `NoBaseCommit` and `HistoryError`.
    """
    commit = job.base_commit or earlier
    if job.thread is not None and (commit or bench.profiles[job.repository].by_gateway):
        commit = await _find_on_branch(bench, job, commit)
    if not commit or commit == job.base_commit:
        return job
    return await update_job(bench, job, base_commit=commit)


async def _find_on_branch(bench: Bench, job: Job, commit: str) -> str:
    """The same commit, which must be on the base branch; without one, the newest there."""
    newest = await bench.history.fetch_newest(job.repository, job.base_branch)
    if newest is None:
        raise NoBaseCommit(f"the repository has no branch {job.base_branch}")
    if commit and not await bench.history.leads_to(job.repository, commit, newest):
        raise NoBaseCommit(
            f"commit `{commit[:10]}`, which this would begin from, is not on `{job.base_branch}`: `/ptq rebase` brings "
            "an earlier diff onto the newest commit, and `/ptq fix` begins from that"
        )
    return commit or newest


async def _is_on_branch(bench: Bench, job: Job, commit: str) -> bool:
    newest = await bench.history.fetch_newest(job.repository, job.base_branch)
    return newest is not None and await bench.history.leads_to(job.repository, commit, newest)


async def read_base_commit(bench: Bench, job: Job, result: Mapping[str, Any]) -> str:
    """The commit that a machine says it checked out, which must be the chosen one, or else one of the base branch.

    Raises `JobdError` for any other, and `HistoryError`.
    """
    said = result.get("base_commit")
    if not isinstance(said, str) or not _COMMIT.fullmatch(said):
        raise JobdError("internal", "the machine did not say which commit it checked out")
    if job.base_commit and said != job.base_commit:
        reason = f"the machine checked out commit {said[:10]}, but was told to check out {job.base_commit[:10]}"
        raise JobdError(WRONG_COMMIT, reason)
    if not job.base_commit and job.thread is not None and not await _is_on_branch(bench, job, said):
        reason = f"the machine checked out commit {said[:10]}, which is not on {job.base_branch}"
        raise JobdError(WRONG_COMMIT, reason)
    return said
