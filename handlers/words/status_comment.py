"""The one comment of a job that is edited while it goes on: where it stands, and in the end where its report is.

Pure. Like every text of ours it holds no live command (`handlers.words.replies`).
"""

from __future__ import annotations

from collections.abc import Collection

from handlers.addresses import link_job
from handlers.rules import PRESETS
from handlers.text.sanitize import REDACTED, make_plain_line, redact
from handlers.text.voice import Label, show_words
from handlers.words.costs import describe_meter
from runner.model.job import Job, JobState
from runner.model.meter import Meter

MAX_SHOWN_PLACE = 5

MAX_LAST_STEP = 80
"""Characters of what an agent did last."""

MAX_HEADING = 200
"""Characters of a worklog's heading."""

_SECRET_HEAD = 100
"""Characters of a secret that are looked for by themselves: what an agent did last reaches us cut, and so may hold
no more of one than its beginning."""

_PROGRESS = f"\n\n{Label.SO_FAR.bold} "
"""What parts the numbers, which change all the time, from the rest of a status comment."""

PHASES = {
    JobState.PREPARING: "preparing the environment",
    JobState.RUNNING: "the agent is at work",
    JobState.COLLECTING: "collecting the result",
    JobState.VERIFYING: "trying the repro",
}


def _join_page(text: str, public_url: str, job_id: str, words: str) -> str:
    return f"{text} · {link_job(public_url, job_id, words)}" if public_url else text


def render_status(
    job: Job, public_url: str, queued_before: int, meter: Meter | None = None, secrets: Collection[str] = ()
) -> str:
    """The status comment of a job that is under way; with a `meter` it says what the agent has taken and done last."""
    head = f"{Label.PTQ.bold} · `{job.preset}` for @{job.requested_by} · attempt {job.attempt}"
    if job.cancel_requested_at:
        phase = f"cancelling, as {job.canceller} asked"
    elif job.state is JobState.QUEUED:
        # A place far behind would change, and so cost an edit of every such comment, with each job that ends.
        place = f"number {queued_before + 1} in line" if queued_before < MAX_SHOWN_PLACE else "far behind in line"
        phase = f"queued, {place}"
    else:
        phase = f"{PHASES.get(job.state, str(job.state))} on `{job.machine}`"
    lines = [head, _join_page(f"{Label.NOW.bold} {phase}", public_url, job.id, "live log")]
    if job.trouble:
        lines.append(f"{Label.HELD_UP.bold} {make_plain_line(job.trouble, secrets, 300)}")
    if job.state is JobState.QUEUED and not job.by_hand:
        preset = PRESETS.get(job.preset)
        other = f"The agent will follow the preset `{job.preset}`."
        promise = preset.promise if preset and not preset.needs_advice else other
        lines.append(f"{promise} Stop it with `/ptq cancel`.")
    status = "\n\n".join(lines)
    progress = _render_progress(meter, secrets) if meter and job.state is JobState.RUNNING else ""
    return f"{status}{_PROGRESS}{progress}" if progress else status


def _render_progress(meter: Meter, secrets: Collection[str]) -> str:
    """What a run has taken, and what it did last as code: nothing in that can end the code, or work inside of it."""
    words = redact(meter.last_tool, secrets)
    for secret in secrets:
        before, head, _ = words.partition(secret[:_SECRET_HEAD]) if len(secret) > _SECRET_HEAD else (words, "", "")
        words = before + REDACTED * bool(head)
    counts = [describe_meter(meter)] if meter.usage.turns or meter.usage.tokens else []
    return " · ".join([*counts, *([show_words(words, (), MAX_LAST_STEP)] if words.strip() else [])])


def render_heading(meter: Meter, secrets: Collection[str]) -> str:
    """What the agent says in its worklog that it tries, as the last line of a status; or nothing.

    Until the report is there, the worklog belongs to the log: only a thread whose readers may all read that has this.
    """
    if not meter.heading:
        return ""
    return f"\n\n{Label.WORKLOG.bold} {show_words(meter.heading, secrets, MAX_HEADING)}"


def drop_progress(status: str) -> str:
    """A status comment without the numbers in it: where two differ in no more, nothing new has happened."""
    return status.partition(_PROGRESS)[0]


def render_reporting(job: Job, public_url: str) -> str:
    """The status comment of a job that has ended and whose report is not posted yet."""
    head = f"{Label.PTQ.bold} · `{job.preset}` attempt {job.attempt}: writing the report"
    return _join_page(head, public_url, job.id, "job")


def render_tried_again(job: Job, again: Job, public_url: str) -> str:
    """The status comment of a rebase that left conflicts, and in whose place another one tries: the report is its."""
    attempt = link_job(public_url, again.id, f"attempt {again.attempt}")
    head = f"{Label.PTQ.bold} · `{job.preset}` attempt {job.attempt}"
    return _join_page(f"{head}: conflicts are left, so {attempt} tries again", public_url, job.id, "job")


def render_finished_status(job: Job, public_url: str, report_url: str | None, *, confidential: bool = False) -> str:
    """The status comment of a job that has ended: one line that links its report, and where that is `confidential`
    says no more."""
    report = f"[report]({report_url})" if report_url else "its report could not be posted"
    head = f"{Label.PTQ.bold} · `{job.preset}` attempt {job.attempt}"
    if confidential:
        return f"{head}: ended · {report}"
    return _join_page(f"{head}: {job.state} · {report}", public_url, job.id, "job")
