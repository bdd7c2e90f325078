"""The status comment of a job, which is edited while the job runs, and finally links to the report.

Pure, and without live commands (`handlers.words.replies`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from handlers.addresses import link_job
from handlers.rules import PRESETS
from handlers.text.log_redactor import LogRedactor
from handlers.text.markdown import find_headings
from handlers.text.sanitize import make_plain_line
from handlers.text.voice import Label, show_words
from handlers.words.costs import describe_limits, describe_meter
from runner.changes.concerns import is_concern
from runner.model.job import Job, JobState
from runner.model.meter import Meter

MAX_SHOWN_PLACE = 5

MAX_HEADINGS = 3
"""How many headings at the end of a worklog are shown."""

MAX_HEADING = 200
"""The most characters of a shown heading."""

MAX_HEADINGS_READ = 30
"""How many headings at the end of a worklog are searched for a security concern."""

MAX_HEADING_READ = 2_000
"""The most characters of a heading that are searched for concerns and secrets."""

MAX_WORKLOGS = 64
"""The number of worklogs whose headings are cached, because status comments are rendered again all the time."""

_PROGRESS = f"\n\n{Label.SO_FAR.bold} "
"""Separates the changing numbers, and the text after them, from the rest of a status comment."""

_WORKLOG = f"\n\n{Label.WORKLOG.bold}\n\n"
"""Separates an agent's headings from the rest of a status comment."""

_LAST_STEPS = {
    "ran a command": ("bash", "bashoutput", "killshell", "shell", "command_execution"),
    "read a file": ("read", "notebookread"),
    "edited a file": ("edit", "multiedit", "write", "notebookedit", "delete", "file_change"),
    "searched the files": ("grep", "glob", "ls", "find", "semsearch"),
    "made a plan": ("todowrite", "updatetodos", "todo_list", "createplan", "exitplanmode"),
    "searched the web": ("webfetch", "websearch", "web_search"),
    "asked another agent": ("agent", "task"),
}
LAST_STEPS = {tool: words for words, tools in _LAST_STEPS.items() for tool in tools}
"""The name of an agent's tool, in lower case -> what the tool did.

An agent can choose any name for a tool of its own, and everybody reads status comments. So status comments do not show
the names of tools.
"""

PHASES = {
    JobState.PREPARING: "preparing the environment",
    JobState.RUNNING: "the agent is working",
    JobState.COLLECTING: "collecting the result",
    JobState.VERIFYING: "verifying the result",
}


def _join_page(text: str, public_url: str, job_id: str, words: str) -> str:
    return f"{text} · {link_job(public_url, job_id, words)}" if public_url else text


def render_status(
    job: Job,
    public_url: str,
    queued_before: int,
    meter: Meter | None = None,
    secrets: Collection[str] = (),
    worklog: str = "",
) -> str:
    """The status comment of an active job.

    While the agent works, it also shows the usage and the last step from `meter`, and the last headings of `worklog`.
    Until there is a report, the worklog is part of the log. So callers pass it only if everybody may read the log.
    """
    head = f"{Label.PTQ.bold} · `{job.preset}` for {job.requester} · attempt {job.attempt}"
    wishes = [*([f"thinking `{job.thinking}`"] if job.thinking else []), describe_limits(job)]
    head = " · ".join([head, *filter(None, wishes)])
    if job.cancel_requested_at:
        phase = f"cancelling (requested by {job.canceller})"
    elif job.state is JobState.QUEUED:
        # The number of a place far behind would change whenever a job ends, and each change needs an edit on GitHub.
        place = f"number {queued_before + 1} in line" if queued_before < MAX_SHOWN_PLACE else "far behind in line"
        phase = f"queued, {place}"
    else:
        phase = f"{PHASES.get(job.state, str(job.state))} on `{job.machine}`"
    lines = [head, _join_page(f"{Label.NOW.bold} {phase}", public_url, job.id, "live log")]
    if job.trouble:
        lines.append(f"{Label.WAITING.bold} {make_plain_line(job.trouble, secrets, 300)}")
    if job.state is JobState.QUEUED and not job.by_hand:
        preset = PRESETS.get(job.preset)
        other = f"The agent will follow the preset `{job.preset}`."
        promise = preset.promise if preset and not preset.needs_advice else other
        lines.append(f"{promise} Stop it with `/ptq cancel`.")
    status = "\n\n".join(lines)
    if job.state is not JobState.RUNNING:
        return status
    progress = _render_progress(meter) if meter else ""
    headings = _render_headings(worklog, secrets)
    return status + (f"{_PROGRESS}{progress}" if progress else "") + (f"{_WORKLOG}{headings}" if headings else "")


def _render_progress(meter: Meter) -> str:
    """The usage of a run, and its last step."""
    counts = [describe_meter(meter)] if meter.usage.turns or meter.usage.tokens else []
    step = LAST_STEPS.get(meter.last_tool.lower(), "used a tool")
    return " · ".join([*counts, *([f"last step: {step}"] if meter.last_tool else [])])


def _render_headings(worklog: str, secrets: Collection[str]) -> str:
    """The last headings of an agent's worklog, as a quoted list. Each heading is shown as code."""
    headings = _choose_headings(worklog, frozenset(secrets))
    return "\n".join(f"> - {show_words(heading, secrets, MAX_HEADING)}" for heading in headings)


@lru_cache(MAX_WORKLOGS)
def _choose_headings(worklog: str, secrets: frozenset[str]) -> Sequence[str]:
    """The last headings of a worklog. Empty if one of the last `MAX_HEADINGS_READ` names a security concern.

    Nothing can be removed from the edit history of a comment. So, as in a live log, text is also held back if it may be
    the beginning of a secret.
    """
    clean = "".join(one.text for one in LogRedactor(secrets).feed(worklog.encode(errors="replace")))
    headings = [heading[:MAX_HEADING_READ] for heading in find_headings(clean)[-MAX_HEADINGS_READ:]]
    return () if any(map(is_concern, headings)) else headings[-MAX_HEADINGS:]


def drop_progress(status: str) -> str:
    """A status comment without the changing numbers and headings, to see whether anything else has changed."""
    return status.partition(_PROGRESS)[0].partition(_WORKLOG)[0]


def render_reporting(job: Job, public_url: str) -> str:
    """The status comment of an ended job whose report is not posted yet."""
    head = f"{Label.PTQ.bold} · `{job.preset}` attempt {job.attempt}: writing the report"
    return _join_page(head, public_url, job.id, "job")


def render_tried_again(job: Job, again: Job, public_url: str) -> str:
    """The status comment of a rebase that left conflicts. The job `again` tries again, and will post the report."""
    attempt = link_job(public_url, again.id, f"attempt {again.attempt}")
    head = f"{Label.PTQ.bold} · `{job.preset}` attempt {job.attempt}"
    return _join_page(f"{head}: unresolved conflicts; {attempt} tries again", public_url, job.id, "job")


def render_finished_status(job: Job, public_url: str, report_url: str | None, *, confidential: bool = False) -> str:
    """The final status comment: one line with a link to the report.

    If the report is `confidential`, the line does not say how the job ended, and has no link to the job's page.
    """
    report = f"[report]({report_url})" if report_url else "its report could not be posted"
    head = f"{Label.PTQ.bold} · `{job.preset}` attempt {job.attempt}"
    if confidential:
        return f"{head}: ended · {report}"
    return _join_page(f"{head}: {job.state} · {report}", public_url, job.id, "job")
