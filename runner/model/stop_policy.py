"""Decides whether a running agent continues, is warned, or is stopped. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from runner.model.caps import WARN_FROM, Caps, CapUse, Scope, explain_raise, find_tightest, lower, say_who_raises
from runner.model.ending import Ending, RunVerdict
from runner.model.environment import Limits
from runner.model.job import Job, JobRequest, JobState
from runner.model.meter import Meter
from runner.model.usage import Usage

KILL_PATIENCE = timedelta(minutes=10)
"""How long a machine may take to kill a job's processes before the job ends anyway. A process that hangs in a driver
cannot be killed."""

LEEWAY = timedelta(minutes=30)
"""Extra time for the work that a machine does not limit itself: copying files, removing files and waiting for locks."""

MAX_STALE_S = 30.0
"""How many seconds the stored running time may lag behind. Each write is a commit, so there are not more of them."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the decision about a run depends on."""

    job: Job
    meter: Meter
    idle_s: float
    spent: Mapping[Scope, Usage]
    """The usage in each scope, including this run."""


def bound(caps: Mapping[Scope, Caps], limits: Limits, request: JobRequest) -> dict[Scope, Caps]:
    """A repository's caps, lowered to this request's options, and to the limits on a run's time and output."""
    job = lower(caps.get(Scope.JOB, Caps()), request)
    run_s = min(limits.timeout_s, job.run_s or limits.timeout_s)
    output_bytes = min(limits.max_log_bytes, job.output_bytes or limits.max_log_bytes)
    return {**caps, Scope.JOB: replace(job, run_s=run_s, output_bytes=output_bytes)}


def find_use(watched: Watched, caps: Mapping[Scope, Caps]) -> CapUse | None:
    """The cap with the largest used share."""
    return find_tightest(caps, {**watched.spent, Scope.JOB: watched.meter.usage})


def is_worth_writing(stored: Meter | None, meter: Meter) -> bool:
    """Whether to store a meter. If only the time has changed, the meter is stored every `MAX_STALE_S` seconds."""
    if stored is None or meter.usage.run_s - stored.usage.run_s >= MAX_STALE_S:
        return True
    return replace(meter, usage=meter.usage.with_run_s(stored.usage.run_s)) != stored


def find_end(watched: Watched, caps: Mapping[Scope, Caps], limits: Limits) -> RunVerdict | None:
    """Why the agent has to stop now. None if it may continue."""
    job = watched.job
    if job.cancel_requested_at:
        return RunVerdict(Ending.CANCELLED, f"cancelled by {job.canceller}")
    if watched.idle_s > limits.stuck_after_s:
        return RunVerdict(Ending.STUCK, f"the agent was stopped after {limits.stuck_after_s} seconds without output")
    use = find_use(watched, caps)
    if use and use.share >= 1:
        return RunVerdict(Ending.CAPPED, explain_stop(use.describe(job.requested_by), _explain_raise(use, job, limits)))
    return None


def explain_stop(cap: str, raising: str) -> str:
    """Say that an agent was stopped at this cap, and who can raise the cap."""
    return f"the agent was stopped at {cap} ({raising})"


def explain_own_cap(job: Job, usage: Usage, caps: Mapping[Scope, Caps]) -> str:
    """Who can raise the cap at which an agent has ended itself, as a clause.

    An agent knows only its caps on turns and money, so it is one of these.
    """
    known = Caps(turns=caps[Scope.JOB].turns, cost_usd=caps[Scope.JOB].cost_usd)
    use = find_tightest({Scope.JOB: known}, {Scope.JOB: usage})
    return explain_raise(use, job) if use else say_who_raises("caps.job")


def _explain_raise(use: CapUse, job: Job, limits: Limits) -> str:
    """Who can raise a cap, as a clause. A run's cap may come from `[limits]`, unless the operator's cap is lower."""
    of_limits = {"run_s": ("timeout_s", limits.timeout_s), "output_bytes": ("max_log_bytes", limits.max_log_bytes)}
    name, limit = of_limits.get(use.kind, ("", None))
    if use.scope is Scope.JOB and use.limit == limit:
        return say_who_raises(f"limits.{name}")
    return explain_raise(use, job)


def find_overdue(job: Job, limits: Limits, now: datetime) -> str | None:
    """Why the service stops waiting for a machine, as a clause. None if it keeps waiting.

    The machine itself enforces these limits. `find_end` checks the limits of the agent.
    """
    making = 2 * limits.prepare_timeout_s + limits.base_timeout_s  # Twice, because earlier edits are applied, too.
    limit_s, what = {
        JobState.PREPARING: (making, "preparing this job"),
        JobState.COLLECTING: (3 * limits.collect_timeout_s, "collecting this job's result"),  # Lint, edits, diff.
        JobState.VERIFYING: (making + 2 * limits.verify_timeout_s, "verifying this job's result"),
    }[job.state]
    if now - job.changed_at <= timedelta(seconds=limit_s) + LEEWAY:
        return None
    return f"machine {job.machine} has not finished {what}, long after the limit of {limit_s:,} seconds"


def find_warning(watched: Watched, caps: Mapping[Scope, Caps]) -> str | None:
    """A warning for the agent that a cap is near. None if none is near.

    It contains only characters that need no quoting in a shell or in JSON.
    """
    use = find_use(watched, caps)
    if use is None or use.share < WARN_FROM:
        return None
    told = use.describe(watched.job.requested_by, whose="your")
    return (
        f"Notice from the service that runs you: {use.share:.0%} of {told} is used. "
        "Finish now: write report.md with what you know, update worklog.md, and stop."
    )
