"""What GitHub's refusals and its silence mean for an effect: one table for every kind. Pure.

The words are ours, one short list for every page and count, because GitHub's own name repositories and may be long.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from handlers.ports import GitHubError, GitHubUnavailable, NotFound, NotInstalled, OverBudget, Worth
from runner.model.back_off import BackOff

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

TURN_WAIT_S = 60.0
"""How soon at the latest a turn to write is asked for again."""


class Abandoned(Exception):  # noqa: N818 - a fact about an effect
    """This effect can never come to be. The message says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an effect that could not be carried out. It is tried again after `wait_s` seconds; None: never.

    `refusals` is how many GitHub has given by now, and `trouble` says in a few words why the effect waits.
    """

    trouble: str | None
    wait_s: float | None
    refusals: int
    was_sent: bool = True
    """If not, this was no attempt."""
    wants_other_text: bool = False
    """Whether it would be taken with another text."""
    is_ours: bool = False
    """Whether the fault is in this program."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of the table: an answer of GitHub's, and what it means."""

    means: str
    """`{status}` is GitHub's, and `{issue}` what we wrote to."""
    statuses: Container[int] = range(1000)
    kind: type[GitHubError] = GitHubError
    says: str = ""
    """Part of the message, in lower case."""
    patience: int = MAX_REFUSALS
    """The effect is given up at so many refusals."""
    is_about_the_text: bool = False
    """A comment goes again with a link in place of its text, or is given up."""

    def fits(self, error: GitHubError) -> bool:
        """Whether this row is about that answer."""
        return isinstance(error, self.kind) and error.status in self.statuses and self.says in error.message.lower()


_GONE = "{issue} was deleted, moved, or made a discussion"

REFUSALS = (
    Refusal("the App is not installed there, or not with all its permissions", kind=NotInstalled),
    Refusal(_GONE, statuses={410}, patience=1),
    Refusal(_GONE, kind=NotFound, patience=MAX_ABSENCES),
    Refusal("GitHub wants fewer comments for a while", says="too quickly"),
    Refusal("GitHub finds the text invalid", statuses={422}, is_about_the_text=True),
    Refusal("the issue is locked", says=" locked"),
    Refusal("the repository is archived", says="archived"),
    Refusal("the installation is suspended", says="suspended"),
    Refusal("the repository or the issue has moved to where we may not follow", statuses=range(300, 400)),
    Refusal("GitHub refuses it with status {status}"),
)
"""The first row that fits counts."""


def judge(
    error: Exception,
    *,
    attempts: int,
    refusals: int,
    patience: int = MAX_REFUSALS,
    turn_wait_s: float = TURN_WAIT_S,
    worth: Worth = Worth.REPORT,
    has_text: bool = False,
    is_edit: bool = False,
) -> Verdict:
    """Judge a failed attempt, the `attempts`-th in a row (from 1); `refusals` is how many GitHub had given before.

    The rest is about the effect's kind: how many refusals it bears at most, how long it waits for a turn to write,
    what it is worth, whether it has a text that can be replaced, and whether it edits a comment.
    An exception of our own counts as an outage.
    """
    match error:
        case Abandoned():
            return Verdict(str(error), None, refusals)
        case OverBudget(retry_after_s=asked_s):
            # A live edit waits without a word: what is said in a minute will be newer.
            trouble = None if worth is Worth.LIVE else "we have written as much as GitHub allows for a while"
            return Verdict(trouble, min(asked_s, turn_wait_s), refusals, was_sent=False)
        case GitHubUnavailable(retry_after_s=asked_s):
            trouble = "GitHub asks us to wait" if asked_s else "GitHub gives no usable answer"
            return Verdict(trouble, min(OUTAGE_WAITS.after(attempts, asked_s=asked_s), MAX_WAIT_S), refusals)
        case GitHubError():
            row = next(row for row in REFUSALS if row.fits(error))
            issue = "our comment is not there any more, or its issue" if is_edit else "the issue"
            trouble = row.means.format(status=error.status, issue=issue)
            refusals = min(refusals + 1, MAX_COUNTED)
            if row.is_about_the_text and has_text:
                return Verdict(trouble, None, refusals, wants_other_text=True)
            wait_s = None if refusals >= min(row.patience, patience) else REFUSAL_WAITS.after(refusals)
            return Verdict(trouble, wait_s, refusals)
    trouble = "an accident of our own, which the log tells of"
    return Verdict(trouble, OUTAGE_WAITS.after(attempts), refusals, is_ours=True)
