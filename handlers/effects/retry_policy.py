"""What GitHub's refusals and outages mean for an effect: one table for every kind. Pure.

The texts are our own, because GitHub's messages may be long and may name repositories.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from handlers.ports import GitHubError, GitHubUnavailable, NotFound, NotInstalled, OverBudget, WritePriority
from runner.model.back_off import BackOff
from runner.rows.effect_rows import EffectRow

MAX_REFUSALS = 16
"""The most refusals of an effect. They are retried for hours, because most reasons for a refusal may end: a suspended
installation, a locked thread, "submitted too quickly"."""

MAX_ABSENCES = 5
"""The most answers 404 of an effect, in a row. They are retried for minutes, because GitHub may answer 404 shortly
after it has created an object."""

MAX_COUNTED = 100
"""Attempts and refusals are not counted further, because the waits no longer grow."""

MAX_WAIT_S = 3600.0
"""The longest wait. GitHub's own limits are shorter."""

OUTAGE_WAITS = BackOff(2.0, 300.0)
"""The waits during an outage. GitHub may ask for longer ones."""

REFUSAL_WAITS = BackOff(10.0, MAX_WAIT_S)
"""The waits after refusals."""

TURN_WAIT_S = 60.0
"""The longest wait for another turn to write."""


class Abandoned(Exception):  # noqa: N818 - a fact about an effect
    """This effect is impossible. The message says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequence of a failed attempt: the effect is tried again after `wait_s` seconds, or never if that is None.

    `refusals` is the number of refusals so far. `trouble` says in a few words why the effect waits.
    """

    trouble: str | None
    wait_s: float | None
    refusals: int
    absences: int = 0
    """How many of the newest refusals, in a row, said that something does not exist."""
    was_sent: bool = True
    """Whether the write was sent to GitHub. If not, this does not count as an attempt."""
    wants_other_text: bool = False
    """Whether GitHub may accept the effect with another text."""
    is_ours: bool = False
    """Whether the failure is an internal error."""

    @property
    def columns(self) -> Mapping[str, object]:
        """What the effect's row stores of it."""
        return {"trouble": self.trouble, "refusals": self.refusals, "absences": self.absences}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of the table: an answer of GitHub, and its meaning."""

    means: str
    """`{status}` is GitHub's status, and `{issue}` the target of the write."""
    statuses: Container[int] = range(1000)
    kind: type[GitHubError] = GitHubError
    says: str = ""
    """A part of GitHub's message, in lower case."""
    patience: int = MAX_REFUSALS
    """The effect is given up after this many refusals."""
    is_absence: bool = False
    """Whether the answer says that something does not exist.

    `patience` then counts such answers in a row. Any other refusal begins a new row.
    """
    is_about_the_text: bool = False
    """Whether a comment is sent again with a link instead of its text."""

    def fits(self, error: GitHubError) -> bool:
        """Whether this row matches an answer."""
        return isinstance(error, self.kind) and error.status in self.statuses and self.says in error.said.lower()


_GONE = "{issue} was deleted, moved, or converted to a discussion"

REFUSALS = (
    Refusal("the App is not installed there, or not with all its permissions", kind=NotInstalled),
    Refusal(_GONE, statuses={410}, patience=1),
    Refusal(_GONE, kind=NotFound, patience=MAX_ABSENCES, is_absence=True),
    Refusal("GitHub asks for fewer comments for a while", says="too quickly"),
    Refusal("GitHub rejected the text", statuses={422}, is_about_the_text=True),
    Refusal("the issue is locked", says=" locked"),
    Refusal("the repository is archived", says="archived"),
    Refusal("the installation is suspended", says="suspended"),
    Refusal("the repository or the issue has moved to a place that the App cannot access", statuses=range(300, 400)),
    Refusal("GitHub answered with status {status}"),
)
"""The table of refusals. The first row that matches counts."""


def judge(
    error: Exception,
    row: EffectRow,
    *,
    patience: int = MAX_REFUSALS,
    turn_wait_s: float = TURN_WAIT_S,
    priority: WritePriority = WritePriority.REPORT,
    has_text: bool = False,
    is_edit: bool = False,
) -> Verdict:
    """Judge a failed attempt. `row` is as it was before this attempt was counted.

    Only an answer changes the counts of refusals and absences.

    The other arguments describe the kind of effect: its most refusals, its wait for a turn to write, its priority,
    whether its text can be replaced, and whether it edits a comment. An internal error counts as an outage.
    """
    attempts, refusals, absences = row.attempts + 1, row.refusals, row.absences
    match error:
        case Abandoned():
            return Verdict(str(error), None, refusals, absences)
        case OverBudget(retry_after_s=asked_s):
            # A live edit is not reported as waiting, because the next one will be newer.
            trouble = None if priority is WritePriority.LIVE else "GitHub's write limit is reached"
            return Verdict(trouble, min(asked_s, turn_wait_s), refusals, absences, was_sent=False)
        case GitHubUnavailable(retry_after_s=asked_s):
            trouble = "GitHub asks us to wait" if asked_s else "GitHub does not answer properly"
            wait_s = min(OUTAGE_WAITS.after(attempts, asked_s=asked_s), MAX_WAIT_S)
            return Verdict(trouble, wait_s, refusals, absences)
        case GitHubError():
            refusal = next(one for one in REFUSALS if one.fits(error))
            issue = "our comment or its issue" if is_edit else "the issue"
            trouble = refusal.means.format(status=error.status, issue=issue)
            refusals = min(refusals + 1, MAX_COUNTED)
            absences = min(absences + 1, MAX_COUNTED) if refusal.is_absence else 0
            if refusal.is_about_the_text and has_text:
                return Verdict(trouble, None, refusals, absences, wants_other_text=True)
            is_believed = (absences if refusal.is_absence else refusals) >= refusal.patience
            is_over = is_believed or refusals >= min(patience, MAX_REFUSALS)
            return Verdict(trouble, None if is_over else REFUSAL_WAITS.after(refusals), refusals, absences)
    trouble = "an internal error (see the service log)"
    return Verdict(trouble, OUTAGE_WAITS.after(attempts), refusals, absences, is_ours=True)
