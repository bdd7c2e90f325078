"""What is to be done about an agent that is at work: nothing, a word to it, or to end it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from runner.model.caps import WARN_FROM, Caps, CapUse, Scope, find_tightest
from runner.model.ending import Ending, RunVerdict
from runner.model.environment import Limits
from runner.model.job import Job, JobState
from runner.model.meter import Meter
from runner.model.usage import Usage

KILL_PATIENCE = timedelta(minutes=10)
"""How long a machine may take to end a job's processes before the job ends without that. A process that hangs in a
driver cannot be killed."""

LEEWAY = timedelta(minutes=30)
"""For what a machine does between the commands that it limits itself: copies, locks, and the removal of files."""

MAX_STALE_S = 30.0
"""How far the stored running time may lag behind: each write of it is a commit."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known about a run."""

    job: Job
    meter: Meter
    idle_s: float
    spent: Mapping[Scope, Usage]
    """What all that belongs together has taken, this run among it."""


def bound(caps: Mapping[Scope, Caps], limits: Limits) -> dict[Scope, Caps]:
    """A repository's caps with the limits that hold for every run: time, and what can be read of its output."""
    job = caps.get(Scope.JOB, Caps())
    run_s = min(limits.timeout_s, job.run_s or limits.timeout_s)
    output_bytes = min(limits.max_log_bytes, job.output_bytes or limits.max_log_bytes)
    return {**caps, Scope.JOB: replace(job, run_s=run_s, output_bytes=output_bytes)}


def find_use(watched: Watched, caps: Mapping[Scope, Caps]) -> CapUse | None:
    """The cap that is nearest to its end."""
    return find_tightest(caps, {**watched.spent, Scope.JOB: watched.meter.usage})


def is_worth_writing(stored: Meter | None, meter: Meter) -> bool:
    """Whether a reading says more than what is stored: time alone does so only after a while."""
    if stored is None or meter.usage.run_s - stored.usage.run_s >= MAX_STALE_S:
        return True
    return replace(meter, usage=replace(meter.usage, run_s=stored.usage.run_s)) != stored


def find_end(watched: Watched, caps: Mapping[Scope, Caps], limits: Limits) -> RunVerdict | None:
    """Why the agent has to end now; None while it may go on."""
    job = watched.job
    if job.cancel_requested_at:
        return RunVerdict(Ending.CANCELLED, f"cancelled by {job.canceller}")
    if watched.idle_s > limits.stuck_after_s:
        silence = f"nothing had been heard of it for {limits.stuck_after_s} seconds"
        return RunVerdict(Ending.STUCK, f"the agent was ended, for {silence}")
    use = find_use(watched, caps)
    if use and use.share >= 1:
        return RunVerdict(Ending.CAPPED, f"the agent was ended at {use.describe(job.requested_by)}")
    return None


def find_overdue(job: Job, limits: Limits, now: datetime) -> str | None:
    """Why a machine that says "still running" is not believed any more, as a clause; None while it may be so.

    The machine keeps these limits itself. The agent has others, which `find_end` knows.
    """
    making = 2 * limits.prepare_timeout_s + limits.base_timeout_s  # The edits of an earlier attempt get the time again.
    limit_s, what = {
        JobState.PREPARING: (making, "preparing this job"),
        JobState.COLLECTING: (3 * limits.collect_timeout_s, "collecting this job's result"),  # Lint, edits, diff.
        JobState.VERIFYING: (making + 2 * limits.verify_timeout_s, "verifying this job's result"),
    }[job.state]
    if now - job.changed_at <= timedelta(seconds=limit_s) + LEEWAY:
        return None
    return f"machine {job.machine} still says that it is {what}, long after its limit of {limit_s:,} seconds"


def find_warning(watched: Watched, caps: Mapping[Scope, Caps]) -> str | None:
    """What the agent should hear while there is time, in letters that every shell and JSON take as they are."""
    use = find_use(watched, caps)
    if use is None or use.share < WARN_FROM:
        return None
    told = use.describe(watched.job.requested_by, whose="your")
    return (
        f"Notice from the service that runs you: {use.share:.0%} of {told} is used. "
        "Come to an end now: write report.md with what you know, bring worklog.md up to date, and stop."
    )
