"""A finished job as the comment that people read. Pure.

Everything an agent wrote stands in a quote under its name (`voice`), or in code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from handlers.addresses import job_url, link_job
from handlers.rules import find_command
from handlers.text.report import ParsedReport, has_words, is_withheld, parse_report
from handlers.text.sanitize import collapse, cut, fence, make_plain_line, make_safe_title, redact, show_code
from handlers.text.shown_patch import show_patch
from handlers.text.voice import NOTE_PLACEHOLDER, Headline, Label, Mark, quote, show_words
from handlers.words.costs import describe_meter
from handlers.words.replies import render_confidential
from handlers.words.verified import Outcome, find_outcome, name_outcome, render_checks
from runner.changes.patch import list_lines
from runner.changes.rebase import find_unresolved
from runner.characters import decode_exactly, show_invisible
from runner.checks.verification import Check
from runner.model.job import DIGEST_SHOWN, Job, JobKind, JobState, Posts, Report, split_failure
from runner.model.meter import Meter

MAX_COMMENT = 60_000
"""Characters. GitHub refuses bodies of more than 65,536."""

MAX_MARKER = 100
"""Characters that are left free for the line by which we find our comment again (`casebook.Reply.marker`)."""

MAX_TEXT = 12_000
"""Characters of report and of worklog, each; the job's page has the rest."""

MAX_SUMMARY = 3_000
MAX_DIFF_WITHOUT_PAGE = 30_000
"""Characters of a diff for which the comment of a job without a page has room in any case."""

MAX_DOUBTS = 6_000
MAX_DOUBT = 800
"""Characters of one of them: it may name two paths, and says what is wrong behind them."""

MAX_TITLE = 120
"""Characters of a pull request's title."""

MAX_LISTED = 100
"""Files named in a list."""

_MODEL = re.compile(r"[\w.:/@+\[\]-]{1,100}", re.ASCII)
"""What a model's name looks like. The agent says it, and it is in a sentence of ours, so it has no room for words."""

MAX_SHOWN_DIFF = 4_000
MAX_SHOWN_LINES = 40
"""Characters and lines of a diff that people see without unfolding it."""

MAX_STEP = 2_000
"""Characters that are left free for a next step that is not known before the report is stored."""

HEADLINES = {
    JobState.SUCCEEDED: Headline.DONE,
    JobState.FAILED: Headline.NOT_FINISHED,
    JobState.CANCELLED: Headline.CANCELLED,
    JobState.LOST: Headline.LOST,
}


@dataclass(frozen=True, slots=True)
class Draft:
    """The report of a job but for its next step, which may depend on what can be started at the time it is stored."""

    above: str
    next_step: str = ""
    """What follows from the job alone; empty in a report that has no next step at all."""
    below: str = ""

    def finish(self, next_step: str | None = None) -> str:
        """The whole comment, with another next step than its own where one is given."""
        if not self.next_step:
            return self.above
        whole = self._join(next_step or self.next_step)
        return whole if len(whole) <= MAX_COMMENT - MAX_MARKER else self._join(self.next_step)

    def _join(self, next_step: str) -> str:
        return f"{self.above}\n\n{Label.NEXT_STEP.bold} {next_step}\n\n{self.below}"


def approvable(job: Job, report: Report | None, secrets: Collection[str], *, has_page: bool = True) -> bool:
    """Whether a human note may turn this report into a pull request: the whole diff can be read somewhere."""
    return (
        job.state is JobState.SUCCEEDED
        and report is not None
        and report.digest is not None
        and not is_withheld(report)
        and not find_secrets(report, secrets)
        and (has_page or len(show_patch(report.patch, secrets).text) <= MAX_DIFF_WITHOUT_PAGE)
    )


def find_secrets(report: Report, secrets: Collection[str]) -> list[str]:
    """The files to which the change adds what looks like a secret, or whose names hold one.

    In a line that stays or goes it is only masked: a key that has leaked can be deleted.
    """
    masked = [line.file or "the diff" for line in show_patch(report.patch, secrets).masked if line.is_proposed]
    texts = [(change.path, change.path) for change in report.changes]
    texts += [(change.path, decode_exactly(change.content or b"")) for change in report.changes if change.binary]
    return list(dict.fromkeys([*masked, *(name for name, text in texts if redact(text, secrets) != text)]))


def draft_report(
    job: Job,
    report: Report | None,
    meter: Meter | None,
    *,
    model: str | None,
    public_url: str,
    secrets: Collection[str],
    checks: Sequence[Check] = (),
    key_on_machine: bool = False,
    quotes_log: bool = False,
) -> Draft:
    """The report of a job that has ended: what was found, the diff, the exact next step, and what it took.

    `model` is the agent's as it is configured, `checks` are what the service itself has seen. `key_on_machine` says
    whether the agent had a key of its own where it ran. Of a run that is withheld there are a few neutral words.

    A thread has more readers than a log. Unless everyone may read the log (`quotes_log`), the comment has no line that
    was logged after the agent began, and nothing that the run left behind without a report.
    """
    if is_withheld(report):
        return Draft(render_confidential())
    left = report if has_words(report) or quotes_log else None
    parsed = parse_report(redact(report.body, secrets)) if report and report.body.strip() else None
    headline = name_outcome(job, checks) if job.kind is JobKind.VERIFY else choose_headline(job, parsed)
    headline = Headline.NEEDS_HUMAN if _needs_human(job, report) else headline
    above = [_render_head(job, headline, secrets, quotes_log=quotes_log), _render_findings(job, parsed, secrets)]
    above.append(render_checks(job, checks, report, public_url, secrets))
    above += [_render_doubts(left, secrets)] if left else []
    above += [_point_to_page(job, public_url)] if report and not left and (report.patch or report.worklog) else []
    if report and approvable(job, report, secrets, has_page=bool(public_url)):
        above.append(_render_title(report, secrets))
    step = _choose_next_step(job, report, checks, secrets, has_page=bool(public_url))
    shown_model = name_model(job, meter, model, secrets)
    below = _render_facts(job, meter, shown_model, public_url, key_on_machine=key_on_machine)
    # The job's page has both; where there is none, the diff comes first.
    is_long = left is not None and len(show_patch(left.patch, secrets).text) > MAX_DIFF_WITHOUT_PAGE // 2
    texts = [_render_texts(job, left, secrets)] if left and (public_url or not is_long) else []
    spare = MAX_STEP if job.state is not JobState.SUCCEEDED else len(f"{Label.NEXT_STEP.bold} \n\n")
    room = MAX_COMMENT - MAX_MARKER - spare - sum(len(part) + 2 for part in (*above, *texts, step, below))
    diff = [_render_diff(job, left, public_url, secrets, room)] if left else []
    return Draft("\n\n".join(part for part in (*above, *diff, *texts) if part), step, below)


def choose_headline(job: Job, parsed: ParsedReport | None) -> str:
    """A job's end in a word or two: its outcome, or how far it came."""
    if job.state is JobState.SUCCEEDED and parsed and parsed.outcome:
        return parsed.outcome[:1].upper() + parsed.outcome[1:]
    headline = Headline.PARTIAL if job.state is JobState.FAILED and parsed else HEADLINES[job.state]
    return f"{headline}: {parsed.outcome}" if parsed and parsed.outcome else headline


def _render_head(job: Job, headline: str, secrets: Collection[str], *, quotes_log: bool) -> str:
    # Who sweeps a backlog has a login on the operator's machine, which may be a stranger's on GitHub.
    asker = f"@{job.requested_by}" if job.posts is Posts.ALL else "the operator of this App"
    head = f"### {headline}\n\n`{job.preset}` attempt {job.attempt}, requested by {asker}."
    if not job.failure:
        return head
    sentence, details = split_failure(redact(job.failure, secrets))
    shown = f"{head}\n\n{Label.WHY.bold} {make_plain_line(sentence, secrets, 500)}"
    if not details:
        return shown
    if job.agent_has_run and not quotes_log:
        return f"{shown}. The log says more."
    return f"{shown}\n\n{cut(fence(show_invisible(details[-MAX_SUMMARY:])), 2 * MAX_SUMMARY, '…')}"


def _point_to_page(job: Job, public_url: str) -> str:
    """Where to find what a run left that ended without a report."""
    where = "The operator of this App has them."
    if public_url:
        where = f"People who can read the log find them on {link_job(public_url, job.id, 'the page of the job')}."
    return f"It left no report, so its diff and its worklog are not shown here. {where}"


def _render_findings(job: Job, parsed: ParsedReport | None, secrets: Collection[str]) -> str:
    """What was found, in the agent's words and under its name."""
    if parsed is None:
        return ""
    found = [quote(parsed.summary, secrets, MAX_SUMMARY, _REST_BELOW)] if parsed.summary else []
    if parsed.root_cause:
        cause = f"**Root cause**\n\n{parsed.root_cause}"
        found.append(quote(cause, secrets, MAX_SUMMARY, _REST_BELOW))
    if not found:
        return ""
    says = f"{Label.AGENT_SAYS.bold} (`{job.agent}`)" if job.has_agent else Label.REPORT_SAYS.bold
    return "\n\n".join([says, *found])


_REST_BELOW = "… (the full report is below)"


def _render_doubts(report: Report, secrets: Collection[str]) -> str:
    """What stands above the diff: why it cannot be proposed, and what a reader's eye would miss in it."""
    refusals = [f"- {Mark.REFUSED} {_plain_line(refusal, secrets)}" for refusal in report.refusals[:MAX_LISTED]]
    refusals += [
        f"- {Mark.REFUSED} What looks like a secret is added in {show_code(name, secrets)}: "
        "it cannot become a pull request."
        for name in find_secrets(report, secrets)[:MAX_LISTED]
    ]
    remarks = [*report.warnings, *show_patch(report.patch, secrets).remarks()]
    warnings = [f"- {Mark.DOUBT} {_plain_line(remark, secrets)}" for remark in remarks[:MAX_LISTED]]
    if not refusals and not warnings:
        return ""
    listed = cut("\n".join(refusals + warnings), MAX_DOUBTS, "… (the job's page has the rest)")
    return f"{Label.NOTE.bold}\n\n{listed}"


def _render_title(report: Report, secrets: Collection[str]) -> str:
    """What the pull request and its commit will be called, unless the note has a title of its own."""
    title = make_safe_title(report.pr_title, secrets, MAX_TITLE)
    return f"{Label.TITLE.bold} {show_words(title, secrets, MAX_TITLE)}" if title else ""


def _plain_line(text: str, secrets: Collection[str]) -> str:
    return make_plain_line(text, secrets, MAX_DOUBT)


def _render_diff(job: Job, report: Report, public_url: str, secrets: Collection[str], room: int) -> str:
    if not report.patch.strip():
        return ""
    shown = show_patch(report.patch, secrets)
    added, removed = count_lines(report.patch)
    summary = f"{Label.DIFF} {len(report.changes)} file{'s' * (len(report.changes) != 1)}, +{added} −{removed}"
    apply = fence(f"curl -fsSL {job_url(public_url, job.id)}/patch | git apply", "sh")
    apply = f"{Label.CHECKOUT}\n\n{apply}" if shown.is_exact and public_url else ""
    whole = _fold_diff(summary, shown.text, apply)
    if len(whole) <= room:
        return whole
    names = [
        f"{change.status}  {show_invisible(redact(change.path, secrets))}" for change in report.changes[:MAX_LISTED]
    ]
    more = [f"and {len(report.changes) - MAX_LISTED} more"] if len(report.changes) > MAX_LISTED else []
    listed = cut(fence("\n".join([*names, *more])), max(room - 600, 200), "…")
    where = link_job(public_url, job.id, "read it on the job's page") if public_url else _NO_PAGE
    page = f"{Label.TOO_LONG}: {where}."
    return "\n\n".join(part for part in (f"**{summary}**", page, apply, listed) if part)


_NO_PAGE = (
    "a job of a private repository has a page only where people can sign in, so nobody could read this diff whole, and "
    "it cannot become a pull request. The operator of this App can set sign-in up, or ask for a smaller change"
)


def _fold_diff(summary: str, patch: str, more: str) -> str:
    """The diff as people see it: a short one at once, a longer one once they unfold it."""
    shown = f"{fence(patch, 'diff')}\n\n{more}".rstrip()
    if len(patch) <= MAX_SHOWN_DIFF and patch.count("\n") <= MAX_SHOWN_LINES:
        return f"**{summary}**\n\n{shown}"
    return collapse(summary, shown)


def count_lines(patch: str) -> tuple[int, int]:
    """How many lines a patch adds and removes."""
    counts = Counter(line.kind for line in list_lines(patch))
    return counts["added"], counts["removed"]


def _render_texts(job: Job, report: Report, secrets: Collection[str]) -> str:
    """The report and the worklog, each folded away and in a quote under the agent's name."""
    notice = "… (cut: the job's page has the rest)"
    titles = (Label.AGENTS_REPORT, Label.AGENTS_WORKLOG) if job.has_agent else (Label.FULL_REPORT, Label.FULL_WORKLOG)
    quotes = (quote(text, secrets, MAX_TEXT, notice) for text in (report.body, report.worklog))
    return "\n\n".join(collapse(title, shown) for title, shown in zip(titles, quotes, strict=True) if shown)


_AFTER_A_LOOK: Mapping[Outcome, str] = {
    Outcome.REPRODUCES: "`/ptq diagnose` has an agent look into it, `/ptq fix` asks for a change.",
    Outcome.GONE: "If that settles it, the issue can be closed; `/ptq repro` has an agent look for another way.",
    Outcome.UNSETTLED: "`/ptq repro` has an agent look for a script that settles it.",
}
"""What people can do once the service has looked itself."""


def _choose_next_step(
    job: Job,
    report: Report | None,
    checks: Sequence[Check],
    secrets: Collection[str],
    *,
    has_page: bool,
) -> str:
    if report and approvable(job, report, secrets, has_page=has_page):
        command = f"/ptq pr {(report.digest or '')[:DIGEST_SHOWN]}"
        return (
            f"If you agree with this diff, reply with the line below and, under it, {NOTE_PLACEHOLDER}. "
            "A draft pull request opens with your note first.\n\n"
            f"{fence(command, 'text')}"
        )
    if job.state is JobState.SUCCEEDED and job.kind is JobKind.VERIFY:
        return _AFTER_A_LOOK[find_outcome(job, checks)]
    if job.state is JobState.SUCCEEDED and not job.may_change:
        return "`/ptq fix` asks an agent for a change, with any advice you add behind it."
    if job.kind is JobKind.REBASE and job.state is JobState.SUCCEEDED and report and not report.changes:
        return "Nothing is left to propose: a pull request that still has this change, and the issue, can be closed."
    return _render_usual_step(job, report, secrets)


def _needs_human(job: Job, report: Report | None) -> bool:
    """Whether a rebase has ended with conflicts that no agent has resolved."""
    ended = job.kind is JobKind.REBASE and job.state is JobState.FAILED
    return ended and report is not None and bool(find_unresolved(job, report.changes))


def _render_hand_over(job: Job, report: Report, secrets: Collection[str]) -> str:
    """Which files people have to look at, and how they get at them."""
    left = [f"- {show_code(path, secrets)}" for path in find_unresolved(job, report.changes)]
    more = [f"- and {len(left) - MAX_LISTED} more"] if len(left) > MAX_LISTED else []
    files = "\n".join([*left[:MAX_LISTED], *more])
    return (
        f"In these files a human has to resolve what is in conflict:\n\n{cut(files, MAX_DOUBTS, '…')}\n\n"
        "`/ptq takeover` lets you into the environment, and with `/ptq release` the result comes as the next attempt. "
        "Or merge the base branch into the pull request's branch by hand, and push. What stood before stands as it "
        f"did, and `{find_command(job.preset)}` lets agents try again."
    )


def _render_usual_step(job: Job, report: Report | None, secrets: Collection[str]) -> str:
    """What people can do after a job that came to nothing."""
    if report and _needs_human(job, report):
        return _render_hand_over(job, report, secrets)
    if job.kind is JobKind.REBASE:
        return f"`{find_command(job.preset)}` tries again; `/ptq fix` makes a new change from the newest commit."
    return (
        "`/ptq retry` carries on where it stopped, with any advice you add behind it; "
        f"`{find_command(job.preset)}` starts afresh."
    )


def name_model(job: Job, meter: Meter | None, configured: str | None, secrets: Collection[str]) -> str | None:
    """The model that did the work, safe to show: as the agent said it, as it was asked for, or as it is configured."""
    model = (meter and meter.model) or job.model or configured
    if not model:
        return None
    return show_code(model, secrets) if _MODEL.fullmatch(model) else "a model without a readable name"


def _render_facts(job: Job, meter: Meter | None, model: str | None, public_url: str, *, key_on_machine: bool) -> str:
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
    facts += [link_job(public_url, job.id, "log and diff")] if public_url else []
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
