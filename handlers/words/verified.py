"""The results of the service's own checks as text, separate from an agent's claims. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum

from handlers.addresses import link_job
from handlers.text.earlier_blocks import drop_earlier
from handlers.text.repros import THE_ISSUE
from handlers.text.sanitize import redact
from handlers.text.voice import Headline, Label, Mark, show_words
from runner.checks.environment_faults import FaultKind
from runner.checks.new_names import find_new_names
from runner.checks.verification import Check, CheckFinding, CheckKind, CheckVerdict, Side, judge
from runner.model.facts import SHORT, is_companion
from runner.model.job import Job, JobState, Report

MAX_ORIGIN = 120
MAX_FAILURE = 200
"""The most characters of a machine's text that are quoted."""
MAX_FACT = 120


class Outcome(StrEnum):
    """The outcome of a job without an agent."""

    REPRODUCES = "still reproduces"
    GONE = "does not reproduce"
    UNSETTLED = "not settled"
    """The scripts had different results, could not run, or settle nothing."""
    NOT_VERIFIED = "not verified"
    """The job did not finish."""

    @property
    def is_definite(self) -> bool:
        """Whether the outcome says if the issue still reproduces."""
        return self in (Outcome.REPRODUCES, Outcome.GONE)


_HEADLINES = {
    Outcome.REPRODUCES: Headline.STILL_REPRODUCES,
    Outcome.GONE: Headline.GONE,
    Outcome.UNSETTLED: Headline.UNSETTLED,
    Outcome.NOT_VERIFIED: Headline.NOT_VERIFIED,
}

GOOD = frozenset({CheckVerdict.VERIFIED, CheckVerdict.REPRODUCED})
_OPEN = frozenset({CheckVerdict.NAMES_PATCH, CheckVerdict.UNTRIED, CheckVerdict.NOT_RUNNABLE, CheckVerdict.GONE})
"""Verdicts that speak neither for a change nor against it.

The script may look for the patch, could not run, or no longer shows the bug.
"""

_OPEN_IF_KEPT = frozenset({CheckVerdict.NOT_RUN, CheckVerdict.NOT_ALWAYS})
"""Further such verdicts on a script that was written for another base. For it, they say nothing about the change."""

SHOWS_BUG = GOOD | {CheckVerdict.UNTRIED, CheckVerdict.STILL_FAILS, CheckVerdict.FAILS_OTHERWISE}
"""Verdicts on a script that fails on the base commit, if nothing shows that it fails because it looks for a patch."""

MAX_NAMES = 3
"""How many of the names that only the change has are quoted."""

_DOUBTS = {
    CheckVerdict.SHOWS_NOTHING: "it does not fail before the change, so it shows nothing",
    CheckVerdict.GONE: "it passes on this base commit, also without the change",
    CheckVerdict.BREAKS: "it passes before the change, and fails after it",
    CheckVerdict.NOT_ALWAYS: "before the change, it does not fail in the same way each time",
    CheckVerdict.STILL_FAILS: "after the change, it still fails",
    CheckVerdict.FAILS_OTHERWISE: "after the change, it fails in another way",
    CheckVerdict.LOOKS_FOR_PATCH: (
        "it passes with patched files while the unpatched code still runs: "
        "it checks that the patch is present, not that the bug is gone (or reads the source for another reason)"
    ),
    CheckVerdict.LOOKS_AT_PATCH: ("it fails in another way with patched files while the unpatched code still runs"),
    CheckVerdict.NAMES_PATCH: "it uses names that only the change has, and that the request does not mention",
    CheckVerdict.UNTRIED: "it could not be tested whether it looks for the patch",
    CheckVerdict.NOT_ALL_FAIL: "before the change, not all of them fail",
    CheckVerdict.SKIPPED: "after the change, some are skipped",
    CheckVerdict.NOT_RUNNABLE: "it could not run in this environment, so it does not count",
    CheckVerdict.NOT_RUN: "it was not run",
}

_REMEDIES = {
    FaultKind.MISSING_MODULE: "{name} is not installed on the machine, so this does not count as the bug. "
    "The operator adds it to `setup` in this repository's table of `ptq.toml`",
    FaultKind.BROKEN_LIBRARY: "{name} cannot be loaded on the machine, so this does not count as the bug. "
    "The operator installs it there, or rebuilds what uses it in `setup`",
    FaultKind.SYNTAX: "the script is not valid, so this does not count as the bug. "
    "Correct it in the issue, and start the job again",
    FaultKind.MISSING_DEVICE: "the machine has no device that the script needs, so this does not count as the bug. "
    "Choose a machine that has one with `--machine`, or the operator sets `requires` of this repository",
}
"""Why a script could not run, and what to do about it."""


def render_checks(
    job: Job, checks: Sequence[Check], report: Report | None, public_url: str, secrets: Collection[str]
) -> str:
    """A list with a line for each check that was run, or that says why it was not. Empty if there is none."""
    lines = [
        _render(job, check, judge_for(job, check, report), public_url, secrets)
        for check in checks
        if check.runs or check.trouble
    ]
    if not lines:
        return ""
    return "\n".join([f"{Label.SEEN.bold}, in clean environments:\n", *lines])


def render_environment(job: Job, secrets: Collection[str]) -> str:
    """A line with the versions and devices that the job had. Empty if they are unknown."""
    facts = {name: value[:10] if is_companion(name) else value for name, value in job.facts}
    names = [*(name for name in SHORT if name in facts), *filter(is_companion, facts)]
    shown = [f"{name} {show_words(facts[name], secrets, MAX_FACT)}" for name in names]
    return f"{Label.SEEN.bold}, in the environment: {', '.join(shown)}" if shown else ""


def find_outcome(state: JobState, checks: Sequence[Check]) -> Outcome:
    """The outcome of a job without an agent that ended in this state."""
    if state is not JobState.SUCCEEDED:
        return Outcome.NOT_VERIFIED
    found = {judge(check, has_change=False).verdict for check in checks}
    if CheckVerdict.REPRODUCED in found:
        return Outcome.REPRODUCES
    # Anybody can post a script that does not fail as a comment, so such a script settles nothing about an issue.
    is_known = any(check.kind is CheckKind.KEPT or check.origin == THE_ISSUE for check in checks)
    is_gone = is_known and found <= {CheckVerdict.SHOWS_NOTHING, CheckVerdict.GONE}
    return Outcome.GONE if is_gone else Outcome.UNSETTLED


def name_outcome(job: Job, checks: Sequence[Check]) -> str:
    """The outcome as a headline."""
    outcome = find_outcome(job.state, checks)
    more = f": {job.state}" if outcome is Outcome.NOT_VERIFIED else f" at `{(job.base_commit or '')[:10]}`"
    return f"{_HEADLINES[outcome]}{more}"


def mark_confidential(outcome: str | None, *, is_confidential: bool) -> str:
    """An outcome in a list for operators, with a mark if only they may know it. Empty without an outcome and a mark."""
    return ", ".join([*([outcome] if outcome else []), *(["confidential"] if is_confidential else [])])


def explain_outcome(job: Job, checks: Sequence[Check], secrets: Collection[str]) -> str:
    """Why it is unknown whether an issue still reproduces, as a clause. Empty if it is known."""
    outcome = find_outcome(job.state, checks)
    if outcome is Outcome.NOT_VERIFIED:
        return redact(job.failure or str(job.state), secrets)
    if outcome is not Outcome.UNSETTLED:
        return ""
    doubts = ((check, judge(check, has_change=False)) for check in checks)
    said = (
        redact(check.trouble or explain_doubt(check, it, secrets), secrets)
        for check, it in doubts
        if it.verdict not in GOOD
    )
    return "; ".join(dict.fromkeys(said))


def judge_for(job: Job, check: Check, report: Report | None) -> CheckFinding:
    """Judge a check, and consider the change of its job."""
    if report is None or report.digest is None:
        return judge(check, has_change=False)
    if check.kind not in (CheckKind.AGENT, CheckKind.KEPT):
        return judge(check, has_change=True)
    # The prompt contains the whole issue. It also has texts of an earlier attempt, which may mention names that the
    # attempt wanted to add, so these texts are dropped.
    names = find_new_names(check.script, report.changes, report.patch, drop_earlier(job.prompt))
    return judge(check, has_change=True, new_names=names)


_HEADS = {CheckVerdict.GONE: "no longer reproduces", CheckVerdict.BREAKS: "the change breaks it"}
"""The first words about a verdict, if "not verified" says too little about it."""


def _render(job: Job, check: Check, finding: CheckFinding, public_url: str, secrets: Collection[str]) -> str:
    words = "tests" if check.kind is CheckKind.TESTS else "script"
    link = f" ({link_job(public_url, job.id, words, f'#check-{check.number}')})" if public_url else ""
    said = "; ".join(_say(check, finding, secrets))
    return f"- {_mark(check, finding.verdict)} {_name(check, secrets)}: {said}{link}"


def _mark(check: Check, verdict: CheckVerdict) -> Mark:
    if verdict is CheckVerdict.REPRODUCED:
        return Mark.FAILS
    return Mark.GOOD if verdict in GOOD else Mark.OPEN if is_open(check, verdict) else Mark.DOUBT


def is_open(check: Check, verdict: CheckVerdict) -> bool:
    """Whether a verdict on this check speaks neither for a change nor against it."""
    return verdict in _OPEN or (check.kind is CheckKind.KEPT and verdict in _OPEN_IF_KEPT)


def _name(check: Check, secrets: Collection[str]) -> str:
    if check.kind is CheckKind.ISSUE:
        where = "" if check.origin == THE_ISSUE else f", {show_words(check.origin, secrets, MAX_ORIGIN)}"
        return f"**the issue's repro**{where}"
    if check.kind is CheckKind.AGENT:
        return "**the agent's repro**"
    if check.kind is CheckKind.KEPT:
        return f"**the repro of {check.origin}**"
    names = check.script.split("\n")
    where = show_words(check.origin, secrets, MAX_ORIGIN)
    return f"**{len(names)} regression test{'s' * (len(names) != 1)}** in {where}"


def _say(check: Check, finding: CheckFinding, secrets: Collection[str]) -> Iterator[str]:
    """The counts, then the objections."""
    if total := finding.total.get(Side.BASE):
        how = f" ({show_words(finding.failure, secrets, MAX_FAILURE)})" if finding.failure else ""
        before = "before: " * (Side.CHANGED in finding.total)
        is_run = finding.verdict is not CheckVerdict.NOT_RUNNABLE
        yield f"{before}{f'fails {finding.failed[Side.BASE]}/{total}' if is_run else 'could not run'}{how}"
    if total := finding.total.get(Side.CHANGED):
        how = f" (fails: {show_words(finding.other_failure, secrets, MAX_FAILURE)})" if finding.other_failure else ""
        yield f"after: passes {total - finding.failed[Side.CHANGED]}/{total}{how}"
    if finding.verdict not in GOOD:
        reason = f": {show_words(check.trouble, secrets, MAX_FAILURE)}" if check.trouble else ""
        if finding.verdict is CheckVerdict.NAMES_PATCH:
            names = (show_words(name, secrets, MAX_FAILURE) for name in finding.new_names[:MAX_NAMES])
            reason = f": {', '.join(names)}"
        is_part = finding.verdict is CheckVerdict.NOT_RUN and any(finding.total.values())
        head = _HEADS.get(finding.verdict, "not verified")
        yield f"**{head}**: {'some runs are missing' if is_part else explain_doubt(check, finding, secrets)}{reason}"


def explain_doubt(check: Check, finding: CheckFinding, secrets: Collection[str]) -> str:
    """Why a check does not count, as a clause in Markdown. If it could not run, the clause also says what to do."""
    return name_doubt(check, finding, lambda name: show_words(name, secrets, MAX_FAILURE))


def name_doubt(check: Check, finding: CheckFinding, show: Callable[[str], str] = str) -> str:
    """Why a check does not count, as text. `show` converts a name, which is untrusted."""
    if finding.verdict is CheckVerdict.NOT_RUNNABLE and finding.fault:
        if finding.fault.kind is FaultKind.SYNTAX and check.kind is not CheckKind.ISSUE:
            return "the agent's script is not valid, so this does not count as the bug"
        return _REMEDIES[finding.fault.kind].format(name=show(finding.fault.name))
    if finding.verdict is CheckVerdict.SHOWS_NOTHING and Side.CHANGED not in finding.total:
        return "it does not fail, so the bug does not show"
    if finding.verdict is CheckVerdict.GONE and Side.CHANGED not in finding.total:
        return "it does not fail on this base commit"
    return _DOUBTS[finding.verdict]
