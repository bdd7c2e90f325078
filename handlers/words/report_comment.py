"""The report comment of a finished job. Pure.

An agent's texts are either quoted under its name (`voice`), or in code.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from handlers.addresses import PATCH_FILE, job_url, link_job, note_url, patch_file_url
from handlers.cases.casebook import Pull
from handlers.context import Context
from handlers.rules import find_command
from handlers.text.live_transcript import read_last_lines
from handlers.text.report import ParsedReport, has_words, leave_out, parse_report
from handlers.text.sanitize import collapse, cut, fence, make_plain_line, make_safe_title, redact, show_code
from handlers.text.shown_patch import show_patch
from handlers.text.voice import NOTE_PLACEHOLDER, Headline, Label, Mark, quote, show_words
from handlers.words.costs import describe_limits, describe_meter
from handlers.words.replies import render_confidential, render_pull_exists
from handlers.words.verified import Outcome, find_outcome, name_outcome, render_checks, render_environment
from runner.agents import build_agent
from runner.changes.concerns import is_withheld
from runner.changes.patch import list_lines
from runner.changes.rebase import find_unresolved
from runner.characters import decode_exactly, show_invisible
from runner.checks.verification import Check
from runner.model.job import DIGEST_SHOWN, Job, JobKind, JobState, Posts, Report, ReportHead, split_failure
from runner.model.meter import Meter
from runner.model.telling import Telling

MAX_COMMENT = 60_000
"""The most characters of a comment. GitHub's limit is 65,536."""

MAX_MARKER = 100
"""The characters reserved for the hidden line with which the service finds its comment (`casebook.Reply.marker`)."""

MAX_TEXT = 12_000
"""The most characters of the report, and of the worklog. The job's page has the rest."""

MAX_SUMMARY = 3_000
MAX_DIFF_WITHOUT_PAGE = 30_000
"""A longer diff is not in the comment of a job without a page. A shorter one usually is (`shows_diff`)."""

MAX_TOLD = 6_000
"""The most characters of all messages to the agent together."""

MAX_DOUBTS = 6_000
MAX_DOUBT = 800
"""The most characters of one warning. It may name two paths before it says what is wrong."""

MAX_TITLE = 120
"""The most characters of a pull request's title."""

MAX_LISTED = 100
"""The most files in a list."""

MODEL_NAME = re.compile(r"[\w.:/@+\[\]-]{1,100}", re.ASCII)
"""The form of a model's name. The agent reports the name, and our sentences and metrics contain it, so it must not be
able to say anything else.
"""

MAX_SHOWN_DIFF = 4_000
MAX_SHOWN_LINES = 40
"""A diff with at most this many characters and lines is not collapsed."""

MAX_STEP = 2_000
"""The characters reserved for the next step, if it is known only when the report is stored."""

HEADLINES = {
    JobState.SUCCEEDED: Headline.DONE,
    JobState.FAILED: Headline.NOT_FINISHED,
    JobState.CANCELLED: Headline.CANCELLED,
    JobState.LOST: Headline.LOST,
}


@dataclass(frozen=True, slots=True)
class EndedJob:
    """An ended job with everything that its report is made of."""

    job: Job
    report: Report | None = None
    meter: Meter | None = None
    checks: Sequence[Check] = ()
    """The service's own checks."""
    tellings: Sequence[Telling] = ()
    """The messages that people sent to the agent after the request."""
    pull_number: int | None = None
    """The number of the issue's pull request, if there is one."""
    log: bytes | None = None
    """The compressed log of its agent. None if the report does not quote the end of the log."""
    same_pull: Pull | None = None
    """The pull request that already has the job's diff."""

    @property
    def size(self) -> int:
        """The characters of all texts of its agent."""
        # Compression shrinks logs about a hundredfold.
        return (self.report.size if self.report else 0) + 100 * len(self.log or b"")


@dataclass(frozen=True, slots=True)
class Draft:
    """The report without its next step, which may depend on what can be started when the report is stored."""

    above: str
    next_step: str = ""
    """The default next step. Empty if the report has no next step."""
    below: str = ""

    def finish(self, next_step: str | None = None) -> str:
        """The whole comment, with the given next step or the default."""
        if not self.next_step:
            return self.above
        whole = self._join(next_step or self.next_step)
        return whole if len(whole) <= MAX_COMMENT - MAX_MARKER else self._join(self.next_step)

    def _join(self, next_step: str) -> str:
        return f"{self.above}\n\n{Label.NEXT_STEP.bold} {next_step}\n\n{self.below}"


def approvable(job: Job, report: Report | None, secrets: Collection[str], *, has_page: bool = True) -> bool:
    """Whether a human note may turn this report into a pull request: people must be able to read the whole diff."""
    return (
        job.state is JobState.SUCCEEDED
        and report is not None
        and report.digest is not None
        and not is_withheld(job, report)
        and not find_secrets(report, secrets)
        and (has_page or len(show_patch(report.patch, secrets).text) <= MAX_DIFF_WITHOUT_PAGE)
    )


def shows_diff(comment: str, report: Report, secrets: Collection[str]) -> bool:
    """Whether one of our comments contains the whole diff."""
    return fence(show_patch(report.patch, secrets).text, "diff") in comment


def find_secrets(report: Report, secrets: Collection[str]) -> list[str]:
    """The files to which the change adds a possible secret, or whose names contain one.

    In unchanged and removed lines, secrets are only masked, so that a leaked key can be deleted.
    """
    masked = [line.file or "the diff" for line in show_patch(report.patch, secrets).masked if line.is_proposed]
    texts = [(change.path, change.path) for change in report.changes]
    texts += [(change.path, decode_exactly(change.content or b"")) for change in report.changes if change.binary]
    return list(dict.fromkeys([*masked, *(name for name, text in texts if redact(text, secrets) != text)]))


def draft_report(context: Context, ended: EndedJob) -> Draft:
    """The report of an ended job: findings, diff, next step, and costs.

    A withheld run gets a neutral text. More people read a thread than a log. So unless everybody may read the log, the
    comment contains no line that was logged after the agent started, and no results of a run without a report.
    """
    job, report, secrets = ended.job, ended.report, context.secrets
    if is_withheld(job, report):
        return Draft(render_confidential())
    page_root = context.find_page_root(job)
    left = report if has_words(report) or context.opens_log(job) else None
    parsed = parse_report(redact(report.body, secrets)) if report and report.body.strip() else None
    findings = _render_findings(job, parsed, secrets)
    above = [
        _render_head(context, ended, parsed),
        findings,
        render_checks(job, ended.checks, report, page_root, secrets),
        render_environment(job, secrets),
        _render_told(job, ended.tellings, secrets),
    ]
    if left:
        above.append(_render_doubts(left, secrets))
    elif report and (report.patch or report.worklog):
        above.append(_point_to_page(job, page_root))
    is_approvable = approvable(job, report, secrets, has_page=bool(page_root))
    if report and is_approvable and not ended.same_pull:
        above.append(_render_pull(job, report, ended.pull_number, secrets))
    step = _choose_next_step(context, ended, is_approvable=is_approvable)
    below = _render_facts(context, job, ended.meter)
    spare = MAX_STEP if job.state is not JobState.SUCCEEDED else len(f"{Label.NEXT_STEP.bold} \n\n")
    room = MAX_COMMENT - MAX_MARKER - spare - sum(len(part) + 2 for part in (*above, step, below))
    texts = _render_texts(job, left, secrets, is_told=_REST_BELOW not in findings) if left else ""
    beside_texts = room - len(texts) - 2
    # The job's page has everything. Without a page, the diff has priority.
    diff = _render_diff(context, job, left, beside_texts if page_root else room) if left else ""
    if left and diff and not page_root:
        texts = texts if len(diff) <= beside_texts else ""
        if is_approvable and not shows_diff(diff, left, secrets):
            step = _render_usual_step(job, report, secrets)
    return Draft("\n\n".join(part for part in (*above, diff, texts) if part), step, below)


def choose_headline(job: Job, parsed: ParsedReport | None) -> str:
    """The outcome of a job in a word or two."""
    if job.state is JobState.SUCCEEDED and parsed and parsed.outcome:
        return parsed.outcome[:1].upper() + parsed.outcome[1:]
    headline = Headline.PARTIAL if job.state is JobState.FAILED and parsed else HEADLINES[job.state]
    return f"{headline}: {parsed.outcome}" if parsed and parsed.outcome else headline


def _find_headline(ended: EndedJob, parsed: ParsedReport | None) -> str:
    if ended.job.kind is JobKind.VERIFY:
        return name_outcome(ended.job, ended.checks)
    return Headline.NEEDS_HUMAN if _needs_human(ended.job, ended.report) else choose_headline(ended.job, parsed)


def _render_head(context: Context, ended: EndedJob, parsed: ParsedReport | None) -> str:
    job, secrets = ended.job, context.secrets
    # A sweep's requester has an account name on the host, which may be a stranger's login on GitHub.
    asker = job.requester if job.posts is Posts.ALL else "the operator of this App"
    head = f"### {_find_headline(ended, parsed)}\n\n`{job.preset}` attempt {job.attempt}, requested by {asker}."
    if not job.failure:
        return head
    sentence, details = split_failure(redact(job.failure, secrets))
    shown = f"{head}\n\n{Label.WHY.bold} {make_plain_line(sentence, secrets, 500)}"
    quotes_log = context.opens_log(job)
    last_lines = _read_last_lines(context, job, ended.log) if ended.log and quotes_log else ""
    is_open = quotes_log or not job.agent_has_run
    quoted = [details] if details and is_open and details not in last_lines else []
    if text := "\n".join([*quoted, last_lines]).strip("\n"):
        return f"{shown}\n\n{cut(fence(show_invisible(text[-MAX_SUMMARY:])), 2 * MAX_SUMMARY, '…')}"
    if details or job.agent_failed:
        return f"{shown}. See {link_job(context.find_page_root(job), job.id, 'the log', '#log')} for details."
    return shown


def _read_last_lines(context: Context, job: Job, compressed: bytes) -> str:
    spec = context.agents.get(job.agent)
    return read_last_lines(zlib.decompress(compressed), build_agent(spec) if spec else None, context.secrets)


def _point_to_page(job: Job, public_url: str) -> str:
    """Where to find the results of a run without a report."""
    where = "The operator of this App can see them."
    if public_url:
        where = f"People who can read the log can see them on {link_job(public_url, job.id, 'the job page')}."
    return f"There is no report, so diff and worklog are not shown here. {where}"


def _render_findings(job: Job, parsed: ParsedReport | None, secrets: Collection[str]) -> str:
    """The agent's findings, quoted under its name."""
    if parsed is None:
        return ""
    found = [quote(parsed.summary, secrets, MAX_SUMMARY, _REST_BELOW)] if parsed.summary else []
    if parsed.root_cause:
        cause = f"**Root cause**\n\n{parsed.root_cause}"
        found.append(quote(cause, secrets, MAX_SUMMARY, _REST_BELOW))
    if not found:
        return ""
    return "\n\n".join([say_whose(job), *found])


def _render_told(job: Job, tellings: Sequence[Telling], secrets: Collection[str]) -> str:
    """The messages of people to the agent, collapsed. A warning comes first if the agent did not receive all."""
    if not tellings:
        return ""
    room = MAX_TOLD // len(tellings)
    told = [f"{say_who_told(telling)}\n\n{_quote_telling(telling, secrets, room)}" for telling in tellings]
    shown = collapse(Label.TOLD, "\n\n".join(told))
    # If the job was lost, the job that replaces it gets all messages.
    if all(telling.given_at for telling in tellings) or job.state is JobState.LOST:
        return shown
    return f"{Label.NOTE.bold} {_MISSED}\n\n{shown}"


_MISSED = "The agent ended before it received all messages. To pass them on, write them after `/ptq retry`."


def _quote_telling(telling: Telling, secrets: Collection[str], room: int) -> str:
    """A person's words in a fence, so that they contain no Markdown."""
    words = show_invisible(redact(telling.words, secrets))
    return fence(words if len(words) <= room else f"{words[:room]}\n{_REST_ON_PAGE}")


def say_who_told(telling: Telling) -> str:
    """The line above a person's words for an agent."""
    missed = "" if telling.given_at else " (not delivered)"
    return f"**{telling.teller} told the agent** on {telling.told_at:%Y-%m-%d at %H:%M} UTC{missed}:"


def say_whose(job: Job) -> str:
    """The line above the words of a job's agent, or of a report that no agent wrote."""
    return f"{Label.AGENT_SAYS.bold} (`{job.agent}`)" if job.has_agent else Label.REPORT_SAYS.bold


_REST_BELOW = "… (the full report is below)"
_REST_ON_PAGE = "… (the job's page has the rest)"


def _render_doubts(report: Report, secrets: Collection[str]) -> str:
    """The list above the diff: why it cannot become a pull request, and what readers could overlook in it."""
    refusals = [f"- {Mark.REFUSED} {_plain_line(refusal, secrets)}" for refusal in report.refusals[:MAX_LISTED]]
    refusals += [
        f"- {Mark.REFUSED} A possible secret is added in {show_code(name, secrets)}: "
        "this diff cannot become a pull request."
        for name in find_secrets(report, secrets)[:MAX_LISTED]
    ]
    remarks = [*report.warnings, *show_patch(report.patch, secrets).remarks()]
    warnings = [f"- {Mark.DOUBT} {_plain_line(remark, secrets)}" for remark in remarks[:MAX_LISTED]]
    if not refusals and not warnings:
        return ""
    listed = cut("\n".join(refusals + warnings), MAX_DOUBTS, "… (the job's page has the rest)")
    return f"{Label.NOTE.bold}\n\n{listed}"


def propose_title(job: Job, report: Report | ReportHead, secrets: Collection[str]) -> str:
    """The title of the pull request and the commit, unless the note has another one.

    It is the agent's title, or else it names the issue, or the task if there is no issue. The issue's title is the one
    from when the job was requested, because the author of the issue may change it later.
    """
    usual = f"Changes from {job.name}" if job.thread is None else f"Fix: {job.issue_title}"
    proposed = (report.pr_title, usual)
    return next(filter(None, (make_safe_title(title, secrets, MAX_TITLE) for title in proposed)), "")


def _render_pull(job: Job, report: Report, pull_number: int | None, secrets: Collection[str]) -> str:
    """The title that the pull request will have, and the branch into which it can be merged."""
    title = propose_title(job, report, secrets)
    kept = f" (while it is open, pull request #{pull_number} keeps its title)" if pull_number else ""
    branch = show_code(job.base_branch, secrets)
    return f"{Label.PULL.bold} {show_words(title, secrets, MAX_TITLE)} → {branch}{kept}"


def _plain_line(text: str, secrets: Collection[str]) -> str:
    return make_plain_line(text, secrets, MAX_DOUBT)


def _render_diff(context: Context, job: Job, report: Report, room: int) -> str:
    if not report.patch.strip():
        return ""
    page_root, secrets = context.find_page_root(job), context.secrets
    shown = show_patch(report.patch, secrets)
    added, removed = count_lines(report.patch)
    summary = f"{Label.DIFF} {len(report.changes)} file{'s' * (len(report.changes) != 1)}, +{added} −{removed}"
    apply = _explain_apply(job, page_root, opens_page=context.opens_page(job)) if shown.is_exact and page_root else ""
    whole = _fold_diff(summary, shown.text, apply)
    if len(whole) <= room:
        return whole
    names = [
        f"{change.status}  {show_invisible(redact(change.path, secrets))}" for change in report.changes[:MAX_LISTED]
    ]
    more = [f"and {len(report.changes) - MAX_LISTED} more"] if len(report.changes) > MAX_LISTED else []
    listed = cut(fence("\n".join([*names, *more])), max(room - 600, 200), "…")
    where = link_job(page_root, job.id, "read it on the job's page") if page_root else _NO_PAGE
    page = f"{Label.TOO_LONG}: {where}."
    return "\n\n".join(part for part in (f"**{summary}**", page, apply, listed) if part)


def _explain_apply(job: Job, public_url: str, *, opens_page: bool) -> str:
    """How to apply the diff to a checkout. If the page needs a sign-in, `curl` cannot read it, so there is a link."""
    if opens_page:
        return f"{Label.CHECKOUT}\n\n{fence(f'curl -fsSL {job_url(public_url, job.id)}/patch | git apply', 'sh')}"
    link = f"[download the diff]({patch_file_url(public_url, job.id)})"
    return f"{Label.CHECKOUT} {link}, then\n\n{fence(f'git apply {PATCH_FILE}', 'sh')}"


_NO_PAGE = (
    "jobs of private repositories have a page only if sign-in is configured, so nobody could read the whole diff, and "
    "it cannot become a pull request. Ask for a smaller change, or ask the operator of this App to set up sign-in"
)


def _fold_diff(summary: str, patch: str, more: str) -> str:
    """The diff, collapsed if it is long."""
    shown = f"{fence(patch, 'diff')}\n\n{more}".rstrip()
    if len(patch) <= MAX_SHOWN_DIFF and patch.count("\n") <= MAX_SHOWN_LINES:
        return f"**{summary}**\n\n{shown}"
    return collapse(summary, shown)


def count_lines(patch: str) -> tuple[int, int]:
    """The numbers of added and removed lines."""
    counts = Counter(line.kind for line in list_lines(patch))
    return counts["added"], counts["removed"]


def _render_texts(job: Job, report: Report, secrets: Collection[str], *, is_told: bool) -> str:
    """The report and the worklog, collapsed and quoted under the agent's name.

    `is_told` says that the findings are complete above. The report is then shown without them.
    """
    notice = "… (cut: the job's page has the rest)"
    whole = (Label.AGENTS_REPORT, Label.AGENTS_WORKLOG) if job.has_agent else (Label.FULL_REPORT, Label.FULL_WORKLOG)
    rest = Label.AGENTS_REST if job.has_agent else Label.REST_OF_REPORT
    titles = (rest, whole[1]) if is_told else whole
    body = redact(report.body, secrets)
    body = leave_out(body, ("summary", "root cause")) if is_told else body
    quotes = (quote(text, secrets, MAX_TEXT, notice) for text in (body, report.worklog))
    return "\n\n".join(collapse(title, shown) for title, shown in zip(titles, quotes, strict=True) if shown)


_AFTER_A_LOOK: Mapping[Outcome, str] = {
    Outcome.REPRODUCES: "`/ptq diagnose` asks an agent for the cause; `/ptq fix` asks for a change.",
    Outcome.GONE: "You can close the issue if this settles it; `/ptq repro` asks an agent to look further.",
    Outcome.UNSETTLED: "`/ptq repro` asks an agent for a script that settles it.",
}
"""The next steps after a verification without an agent."""


def _choose_next_step(context: Context, ended: EndedJob, *, is_approvable: bool) -> str:
    job, report = ended.job, ended.report
    if ended.same_pull and is_approvable:
        return render_pull_exists(ended.same_pull.number)
    if report and is_approvable:
        command = f"/ptq pr {(report.digest or '')[:DIGEST_SHOWN]}"
        how = "To open a draft pull request, reply"
        if context.signs_in and (page_root := context.find_page_root(job)):
            page = note_url(page_root, job.id)
            how = f"[Write your note]({page}), and a draft pull request opens with it. Or reply"
        return f"{how} with this line, followed by a note: {NOTE_PLACEHOLDER}.\n\n{fence(command, 'text')}"
    if job.state is JobState.SUCCEEDED and job.kind is JobKind.VERIFY:
        return _AFTER_A_LOOK[find_outcome(job.state, ended.checks)]
    if job.state is JobState.SUCCEEDED and not job.may_change:
        return "`/ptq fix` asks an agent for a change. You can add advice after it."
    if job.kind is JobKind.REBASE and job.state is JobState.SUCCEEDED and report and not report.changes:
        return "The base branch already contains this change. You can close the issue and any pull request for it."
    return _render_usual_step(job, report, context.secrets)


def _needs_human(job: Job, report: Report | None) -> bool:
    """Whether a rebase ended with unresolved conflicts."""
    ended = job.kind is JobKind.REBASE and job.state is JobState.FAILED
    return ended and report is not None and bool(find_unresolved(job, report.changes))


def _render_hand_over(job: Job, report: Report, secrets: Collection[str]) -> str:
    """The files with conflicts, and how people can resolve them."""
    left = [f"- {show_code(path, secrets)}" for path in find_unresolved(job, report.changes)]
    more = [f"- and {len(left) - MAX_LISTED} more"] if len(left) > MAX_LISTED else []
    files = "\n".join([*left[:MAX_LISTED], *more])
    return (
        f"Resolve conflicts in these files:\n\n{cut(files, MAX_DOUBTS, '…')}\n\n"
        "Run `/ptq takeover`, resolve them, and collect your edits with `/ptq release`. If there is a pull request, "
        "you can instead merge the base branch into its branch and push. "
        f"`{find_command(job.preset)}` starts agents on this again. The earlier diff is unchanged."
    )


def _render_usual_step(job: Job, report: Report | None, secrets: Collection[str]) -> str:
    """The next step if no other next step applies."""
    if report and _needs_human(job, report):
        return _render_hand_over(job, report, secrets)
    if job.kind is JobKind.REBASE:
        return f"`{find_command(job.preset)}` tries again; `/ptq fix` makes a new change on the newest commit."
    return (
        "`/ptq retry` continues where it stopped (you can add advice after it); "
        f"`{find_command(job.preset)}` starts over."
    )


def name_model(job: Job, meter: Meter | None, configured: str | None, secrets: Collection[str]) -> str | None:
    """The name of the model, safe to show. It is the reported model, or else the requested or configured one."""
    model = (meter and meter.model) or job.model or configured
    if not model:
        return None
    return show_code(model, secrets) if MODEL_NAME.fullmatch(model) else "a model without a readable name"


def _render_facts(context: Context, job: Job, meter: Meter | None) -> str:
    facts = [f"machine `{job.machine}`"] if job.machine else []
    model = name_model(job, meter, context.model_of(job), context.secrets)
    how = [*([model] if model else []), *([f"thinking `{job.thinking}`"] if job.thinking else [])]
    agent = f"agent `{job.agent}`" + (f" ({', '.join(how)})" if how else "")
    facts.append(agent if job.has_agent else "by hand" if job.by_hand else "no agent")
    if job.started_at and job.ended_at:
        facts.append(render_duration(job.ended_at - job.started_at))
    if meter:
        facts.append(describe_meter(meter))
    if limits := describe_limits(job):
        facts.append(f"{limits}, as requested")
    if meter and meter.usage.cost_usd is None and context.caps_unpriced(job):
        facts.append("turns and time capped instead")
    if context.leaves_key(job):
        facts.append("its API key was on the machine")
    if job.base_commit:
        facts.append(f"base `{job.base_commit[:10]}`")
    if page_root := context.find_page_root(job):
        facts.append(link_job(page_root, job.id, "log and diff"))
    return f"<sub>{' · '.join(facts)}</sub>"


def render_duration(duration: timedelta) -> str:
    """A duration for people: `48 s`, `3 min 20 s`, `1 h 5 min`."""
    seconds = int(duration.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
