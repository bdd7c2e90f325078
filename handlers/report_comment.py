"""A finished job as the comment that people read. Pure.

Everything an agent wrote passes `sanitize` on its way in here: redacted first, then defused, then cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from handlers.costs import describe_meter
from handlers.note import NOTE_PLACEHOLDER
from handlers.replies import render_confidential
from handlers.report import ParsedReport, is_confidential, parse_report
from handlers.rules import find_command
from handlers.sanitize import collapse, cut, fence, make_safe, make_safe_line, redact
from handlers.shown_patch import show_patch
from handlers.status_comment import job_url
from handlers.verified import Outcome, find_outcome, name_outcome, render_checks
from runner.characters import decode_exactly, show_invisible
from runner.job import DIGEST_SHOWN, Job, JobState, Posts, Report
from runner.meter import Meter
from runner.patch import list_lines
from runner.rebase import find_unresolved
from runner.verification import Check

MAX_COMMENT = 60_000
"""Characters. GitHub refuses bodies of more than 65,536."""

MAX_MARKER = 100
"""Characters that are left free for the line by which we find our comment again (`casebook.Reply.marker`)."""

MAX_TEXT = 12_000
"""Characters of report and of worklog, each; the job's page has the rest."""

MAX_SUMMARY = 3_000
MAX_DOUBTS = 6_000
MAX_LISTED = 100
"""Files named in a list."""

MAX_MODEL = 100
"""Characters of a model's name, which the agent says."""

HEADLINES = {
    JobState.SUCCEEDED: "Done",
    JobState.FAILED: "Not finished",
    JobState.CANCELLED: "Cancelled",
    JobState.LOST: "Lost",
}


def approvable(job: Job, report: Report | None, secrets: Collection[str]) -> bool:
    """Whether a human note may turn this report into a pull request."""
    return (
        job.state is JobState.SUCCEEDED
        and report is not None
        and report.digest is not None
        and not is_confidential(report.body)
        and not find_secrets(report, secrets)
    )


def find_secrets(report: Report, secrets: Collection[str]) -> list[str]:
    """The files to which the change adds what looks like a secret, or whose names hold one.

    In a line that stays or goes it is only masked: a key that has leaked can be deleted.
    """
    masked = [line.file or "the diff" for line in show_patch(report.patch, secrets).masked if line.is_proposed]
    texts = [(change.path, change.path) for change in report.changes]
    texts += [(change.path, decode_exactly(change.content or b"")) for change in report.changes if change.binary]
    return list(dict.fromkeys([*masked, *(name for name, text in texts if redact(text, secrets) != text)]))


def render_report_comment(
    job: Job,
    report: Report | None,
    meter: Meter | None = None,
    *,
    model: str | None,
    public_url: str,
    secrets: Collection[str],
    checks: Sequence[Check] = (),
    next_step: str | None = None,
    key_on_machine: bool = False,
) -> str:
    """The report of a job that has ended: what was found, the diff, the exact next step, and what it took.

    `model` is the agent's as it is configured, `checks` are what the service itself has seen. `next_step` is given
    where it does not follow from the job alone. `key_on_machine` says whether the agent had a key of its own where it
    ran. A confidential report is a few neutral words.
    """
    if report and is_confidential(report.body):
        return render_confidential()
    parsed = parse_report(redact(report.body, secrets)) if report and report.body.strip() else None
    headline = name_outcome(job, checks) if job.only_looks else choose_headline(job, parsed)
    headline = "Needs a human" if _needs_human(job, report) else headline
    parts = [_render_head(job, headline, secrets), _render_findings(parsed, secrets)]
    parts.append(render_checks(job, checks, report, public_url, secrets))
    parts += [_render_doubts(report, secrets)] if report else []
    shown_model = name_model(job, meter, model, secrets)
    step = f"**Next step.** {next_step or _choose_next_step(job, report, checks, secrets)}"
    last = [step, _render_facts(job, meter, shown_model, public_url, key_on_machine=key_on_machine)]
    rest = [_render_texts(report, secrets)] if report else []
    room = MAX_COMMENT - MAX_MARKER - sum(len(part) + 2 for part in (*parts, *rest, *last))
    diff = [_render_diff(job, report, public_url, secrets, room)] if report else []
    return "\n\n".join(part for part in (*parts, *diff, *rest, *last) if part)


def choose_headline(job: Job, parsed: ParsedReport | None) -> str:
    """A job's end in a word or two: its outcome, or how far it came."""
    if job.state is JobState.SUCCEEDED and parsed and parsed.outcome:
        return parsed.outcome[:1].upper() + parsed.outcome[1:]
    headline = "Partial" if job.state is JobState.FAILED and parsed else HEADLINES[job.state]
    return f"{headline}: {parsed.outcome}" if parsed and parsed.outcome else headline


def _render_head(job: Job, headline: str, secrets: Collection[str]) -> str:
    # Who sweeps a backlog has a login on the operator's machine, which may be a stranger's on GitHub.
    asker = f"@{job.requested_by}" if job.posts is Posts.ALL else "the operator of this App"
    head = f"### {headline}\n\n`{job.preset}` attempt {job.attempt}, asked for by {asker}."
    if not job.failure:
        return head
    sentence, _, details = redact(job.failure, secrets).partition("\n")
    shown = f"{head}\n\n**Why:** {make_safe_line(sentence, secrets, 500)}"
    if not details.strip():
        return shown
    return f"{shown}\n\n{cut(fence(show_invisible(details[-MAX_SUMMARY:])), 2 * MAX_SUMMARY, '…')}"


def _render_findings(parsed: ParsedReport | None, secrets: Collection[str]) -> str:
    if parsed is None:
        return ""
    notice = "… (the full report is below)"
    found = [make_safe(parsed.summary, secrets, MAX_SUMMARY, notice)] if parsed.summary else []
    if parsed.root_cause:
        found.append(f"**Root cause**\n\n{make_safe(parsed.root_cause, secrets, MAX_SUMMARY, notice)}")
    return "\n\n".join(found)


def _render_doubts(report: Report, secrets: Collection[str]) -> str:
    """What stands above the diff: why it cannot be proposed, and what a reader's eye would miss in it."""
    refusals = [f"- ⛔ {_safe_line(refusal, secrets)}" for refusal in report.refusals[:MAX_LISTED]]
    refusals += [
        f"- ⛔ What looks like a secret is added in `{_safe_line(name, secrets)}`: it cannot become a pull request."
        for name in find_secrets(report, secrets)[:MAX_LISTED]
    ]
    remarks = [*show_patch(report.patch, secrets).remarks(), *report.warnings]
    warnings = [f"- ⚠️ {_safe_line(remark, secrets)}" for remark in remarks[:MAX_LISTED]]
    return cut("\n".join(refusals + warnings), MAX_DOUBTS, "… (the job's page has the rest)")


def _safe_line(text: str, secrets: Collection[str]) -> str:
    return make_safe_line(text, secrets, 300)


def _render_diff(job: Job, report: Report, public_url: str, secrets: Collection[str], room: int) -> str:
    if not report.patch.strip():
        return ""
    shown = show_patch(report.patch, secrets)
    added, removed = count_lines(report.patch)
    summary = f"Diff: {len(report.changes)} file{'s' * (len(report.changes) != 1)}, +{added} −{removed}"
    apply = fence(f"curl -fsSL {job_url(public_url, job.id)}/patch | git apply", "sh")
    apply = f"Onto a local checkout:\n\n{apply}" if shown.is_exact else ""
    whole = collapse(summary, f"{fence(shown.text, 'diff')}\n\n{apply}".rstrip())
    if len(whole) <= room:
        return whole
    names = [
        f"{change.status}  {show_invisible(redact(change.path, secrets))}" for change in report.changes[:MAX_LISTED]
    ]
    more = [f"and {len(report.changes) - MAX_LISTED} more"] if len(report.changes) > MAX_LISTED else []
    listed = cut(fence("\n".join([*names, *more])), max(room - 600, 200), "…")
    page = f"The diff is too long for a comment: [read it on the job's page]({job_url(public_url, job.id)})."
    return "\n\n".join(part for part in (f"**{summary}**", page, apply, listed) if part)


def count_lines(patch: str) -> tuple[int, int]:
    """How many lines a patch adds and removes."""
    counts = Counter(line.kind for line in list_lines(patch))
    return counts["added"], counts["removed"]


def _render_texts(report: Report, secrets: Collection[str]) -> str:
    notice = "… (cut: the job's page has the rest)"
    texts = (("Full report", report.body), ("Worklog", report.worklog))
    shown = [collapse(title, make_safe(text, secrets, MAX_TEXT, notice)) for title, text in texts if text.strip()]
    return "\n\n".join(shown)


_AFTER_A_LOOK: Mapping[Outcome, str] = {
    Outcome.REPRODUCES: "`/ptq diagnose` has an agent look into it, `/ptq fix` asks for a change.",
    Outcome.GONE: "If that settles it, the issue can be closed; `/ptq repro` has an agent look for another way.",
    Outcome.UNSETTLED: "`/ptq repro` has an agent look for a script that settles it.",
}
"""What people can do once the service has looked itself."""


def _choose_next_step(job: Job, report: Report | None, checks: Sequence[Check], secrets: Collection[str]) -> str:
    if report and approvable(job, report, secrets):
        command = f"/ptq pr {(report.digest or '')[:DIGEST_SHOWN]}"
        return (
            f"If you agree with this diff, reply with the line below and, under it, {NOTE_PLACEHOLDER}. "
            "A draft pull request opens with your note first.\n\n"
            f"{fence(command, 'text')}"
        )
    if job.state is JobState.SUCCEEDED and job.only_looks:
        return _AFTER_A_LOOK[find_outcome(job, checks)]
    if job.state is JobState.SUCCEEDED and not job.may_change:
        return "`/ptq fix` asks an agent for a change, with any advice you add behind it."
    if job.rebases and job.state is JobState.SUCCEEDED and report and not report.changes:
        return "Nothing is left to propose: a pull request that still has this change, and the issue, can be closed."
    return render_usual_step(job, report, secrets)


def _needs_human(job: Job, report: Report | None) -> bool:
    """Whether a rebase has ended with conflicts that no agent has resolved."""
    ended = job.rebases and job.state is JobState.FAILED
    return ended and report is not None and bool(find_unresolved(job, report.changes))


def _render_hand_over(job: Job, report: Report, secrets: Collection[str]) -> str:
    """Which files people have to look at, and how they get at them."""
    left = [f"- {_safe_line(path, secrets)}" for path in find_unresolved(job, report.changes)]
    more = [f"- and {len(left) - MAX_LISTED} more"] if len(left) > MAX_LISTED else []
    files = "\n".join([*left[:MAX_LISTED], *more])
    return (
        f"In these files a human has to resolve what is in conflict:\n\n{cut(files, MAX_DOUBTS, '…')}\n\n"
        "`/ptq takeover` lets you into the environment, and with `/ptq release` the result comes as the next attempt. "
        "Or merge the base branch into the pull request's branch by hand, and push. What stood before stands as it "
        f"did, and `{find_command(job.preset)}` lets agents try again."
    )


def render_usual_step(job: Job, report: Report | None, secrets: Collection[str]) -> str:
    """What people can do after a job that came to nothing."""
    if report and _needs_human(job, report):
        return _render_hand_over(job, report, secrets)
    if job.rebases:
        return f"`{find_command(job.preset)}` tries again; `/ptq fix` makes a new change from the newest commit."
    return (
        "`/ptq retry` carries on where it stopped, with any advice you add behind it; "
        f"`{find_command(job.preset)}` starts afresh."
    )


def name_model(job: Job, meter: Meter | None, configured: str | None, secrets: Collection[str]) -> str | None:
    """The model that did the work, safe to show: as the agent said it, as it was asked for, or as it is configured."""
    model = (meter and meter.model) or job.model or configured
    return make_safe_line(model, secrets, MAX_MODEL) if model else None


def _render_facts(job: Job, meter: Meter | None, model: str | None, public_url: str, *, key_on_machine: bool) -> str:
    url = job_url(public_url, job.id)
    facts = [f"machine `{job.machine}`"] if job.machine else []
    agent = f"agent `{job.agent}`" + (f" ({model})" if model else "")
    facts.append(agent if job.has_agent else "by hand" if job.by_hand else "no agent")
    if job.started_at and job.ended_at:
        facts.append(render_duration(job.ended_at - job.started_at))
    if meter:
        facts.append(describe_meter(meter))
    if key_on_machine:
        facts.append("its model's key was on the machine")
    if job.base_commit:
        facts.append(f"base `{job.base_commit[:10]}`")
    facts.append(f"[log and diff]({url})")
    return f"<sub>{' · '.join(facts)}</sub>"


def render_duration(duration: timedelta) -> str:
    """A duration as people say it: `48 s`, `3 min 20 s`, `1 h 5 min`."""
    seconds = int(duration.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
