"""What is made of GitHub's silence and of its refusals: how long to stay away, when to give up, and what to call it.

Pure. The words are ours, one short list for every page and count, for GitHub's own name repositories and may be long.
"""

from __future__ import annotations

from dataclasses import dataclass

from handlers.ports import GitHubError, GitHubUnavailable, NotFound, NotInstalled, OverBudget
from runner.model.back_off import BackOff

GONE = 410
INVALID = 422

MAX_REFUSALS = 16
"""Most refusals (a suspended installation, a locked thread, "submitted too quickly") may end: hours of tries."""

MAX_ABSENCES = 5
"""GitHub may not know for a moment what it has just made: minutes of tries, and then a 404 is believed."""

MAX_COUNTED = 100
"""Attempts and refusals are counted no further: the waits no longer grow by then."""

MAX_WAIT_S = 3600.0
"""The longest wait of all. GitHub's own limits are over by then."""

OUTAGE_WAITS = BackOff(2.0, 300.0)
"""While GitHub gives no usable answer. It may ask for more itself."""

REFUSAL_WAITS = BackOff(10.0, MAX_WAIT_S)
"""While GitHub refuses."""

_REASONS = (
    ("locked", "the issue is locked"),
    ("archived", "the repository is archived"),
    ("suspended", "the installation is suspended"),
    ("too quickly", "GitHub wants fewer comments for a while"),
)
"""What GitHub's refusals contain, and what that means."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of something that GitHub did not take; `wait_s` is None where it is never tried again."""

    trouble: str
    wait_s: float | None
    refusals: int


def judge(error: Exception, *, attempts: int, refusals: int, editing: bool) -> Verdict:
    """Judge a failed attempt to bring a comment to GitHub, the `attempts`-th in a row (from 1).

    `refusals` is how many of those before GitHub refused. An exception of our own counts as an outage.
    """
    trouble = describe_trouble(error, editing=editing)
    if not isinstance(error, GitHubError):
        asked_s = error.retry_after_s if isinstance(error, GitHubUnavailable) else 0.0
        return Verdict(trouble, choose_outage_wait_s(attempts, asked_s), refusals)
    refusals = min(refusals + 1, MAX_COUNTED)
    wait_s = None if refusals >= _count_patience(error) else REFUSAL_WAITS.after(refusals)
    return Verdict(trouble, wait_s, refusals)


def choose_outage_wait_s(attempts: int, asked_s: float) -> float:
    """How long to wait after so many attempts without an answer; `asked_s` is what GitHub asked for."""
    return min(OUTAGE_WAITS.after(attempts, asked_s=asked_s), MAX_WAIT_S)


def _count_patience(error: GitHubError) -> int:
    """How many refusals of this kind are believed."""
    if error.status == GONE:
        return 1
    return MAX_ABSENCES if isinstance(error, NotFound) else MAX_REFUSALS


def is_about_the_text(error: GitHubError) -> bool:
    """Whether another text might be taken."""
    is_invalid = error.status == INVALID and not isinstance(error, NotInstalled)
    return is_invalid and "too quickly" not in error.message.lower()


def describe_trouble(error: Exception, *, editing: bool = False) -> str:
    """In a few words of ours, why GitHub did not take something; `editing` says that it was an edit of a comment."""
    match error:
        case OverBudget():
            return "we have written as much as GitHub allows for a while"
        case GitHubUnavailable(retry_after_s=asked_s):
            return "GitHub asks us to wait" if asked_s else "GitHub gives no usable answer"
        case NotInstalled():
            return "the App is not installed there, or not with all its permissions"
        case GitHubError():
            return _describe_refusal(error, editing=editing)
    return "an accident of our own, which the log tells of"


def _describe_refusal(error: GitHubError, *, editing: bool) -> str:
    said = error.message.lower()
    for words, reason in _REASONS:
        if words in said:
            return reason
    if isinstance(error, NotFound):
        gone = "was deleted, moved, or made a discussion"
        return f"our comment is not there any more, or its issue {gone}" if editing else f"the issue {gone}"
    if 300 <= error.status < 400:
        return "the repository or the issue has moved to where we may not follow"
    return (
        "GitHub finds the text invalid" if error.status == INVALID else f"GitHub refuses it with status {error.status}"
    )
