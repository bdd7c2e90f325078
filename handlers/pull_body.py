"""The texts of a draft pull request: the human's note first and verbatim, then what an agent wrote, marked as such."""

from __future__ import annotations

from collections.abc import Collection

from handlers.casebook import Pull
from handlers.replies import job_url
from handlers.report_comment import MAX_COMMENT
from handlers.sanitize import collapse, cut, defuse, fence, one_line, redact
from runner.job import DIGEST_SHOWN, Job, Report

MAX_TITLE = 120
"""Characters."""


def render_pull_title(report: Report, issue_title: str, secrets: Collection[str]) -> str:
    """The agent's title for the change, or else the issue's."""
    proposed = one_line(redact(report.pr_title, secrets), MAX_TITLE)
    return proposed or one_line(redact(f"Fix: {issue_title}", secrets), MAX_TITLE)


def render_commit_message(title: str, job: Job, pull: Pull) -> str:
    """The commit's message: what, for which issue, on whose approval."""
    approval = f"Approved by {pull.approver} for digest {pull.digest[:DIGEST_SHOWN]}."
    return f"{title}\n\nFor issue #{job.issue_number}. Written by a coding agent ({job.agent}).\n{approval}\n"


def render_pull_body(
    pull: Pull, job: Job, report: Report, *, model: str | None, public_url: str, secrets: Collection[str]
) -> str:
    """The body of the pull request. `Fixes #N` is ours; whatever an agent wrote cannot close anything."""
    head = [
        redact(pull.note, secrets),
        f"Fixes #{job.issue_number}",
        "---",
        _render_disclosure(pull, job, model, public_url),
    ]
    rest = [
        collapse("The agent's report", defuse(redact(report.body, secrets))),
        collapse("Repro", fence(redact(report.repro, secrets), "python")) if report.repro.strip() else "",
        collapse("Worklog", defuse(redact(report.worklog, secrets))) if report.worklog.strip() else "",
    ]
    return _fit("\n\n".join(head), [part for part in rest if part], job_url(public_url, job.id))


def _render_disclosure(pull: Pull, job: Job, model: str | None, public_url: str) -> str:
    agent = f"`{job.agent}`" + (f" ({model})" if model else "")
    return (
        f"The change was written by a coding agent, {agent}, on base `{(job.base_commit or '')[:10]}` "
        f"([log]({job_url(public_url, job.id)})). @{pull.approver} read it and approved digest "
        f"`{pull.digest[:DIGEST_SHOWN]}` with [the note above]({pull.note_url})."
    )


def _fit(head: str, rest: list[str], url: str) -> str:
    """As many of the collapsed parts as fit, whole; what does not is linked."""
    body = head
    for part in rest:
        fits = len(body) + len(part) + 2 <= MAX_COMMENT - 200
        body += f"\n\n{part}" if fits else f"\n\n(A part that is too long for this text [is here]({url}).)"
    return cut(body, MAX_COMMENT, "…")
