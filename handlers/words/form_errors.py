"""Why a form starts no job, for pages: next to the field that is wrong, and without commands or Markdown. Pure.

Where a page can say the same as a reply in the thread, `strip_marks` makes it from that reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from handlers.rules import Preset


@dataclass(frozen=True, slots=True)
class FormError:
    """What is wrong with a form."""

    words: str
    field: str = ""
    """The name of the field; empty if it is about none, or about several."""
    in_terminal: str = ""
    """What a terminal says; empty if that is the reply in the thread."""


def _say_both(words: str, field: str) -> FormError:
    """The same words for a page and for a terminal."""
    return FormError(words, field, words)


NO_ADVICE = _say_both("This preset needs instructions.", "advice")
NOTHING_TO_RETRY = _say_both("No attempt has run on this issue yet. Choose another preset.", "preset")
NOTHING_TO_CARRY_ON = _say_both("The last attempt has no change, and this preset needs one.", "preset")
NOT_FRESH = FormError(
    "This continues an earlier attempt, so it cannot start without it.",
    "fresh",
    "--fresh does not work with a preset that continues an earlier attempt.",
)
NOT_A_RETRY = _say_both("This preset continues no attempt. Start it by itself.", "preset")
NOTHING_TO_REBASE = _say_both(
    "There is no diff to rebase: none waits for a note, and none is in a pull request of ptq-bot.", "preset"
)
NOTHING_TO_VERIFY = _say_both(
    "There is no script to run, neither in the issue nor from an attempt. Choose another preset.", "preset"
)


def say_opposed(reasons: Sequence[str]) -> FormError:
    """Somebody may be working on the issue; `reasons` are our own clauses."""
    why = strip_marks(" and ".join(reasons))
    why = f"{why[:1].upper()}{why[1:]}."
    return FormError(f"{why} Tick this box to start anyway.", "anyway", f"{why} Use --anyway to start anyway.")


def say_unknown_preset(presets: Iterable[Preset]) -> FormError:
    """A preset that this repository does not offer."""
    return FormError(f"Choose a preset of this repository: {', '.join(preset.name for preset in presets)}.", "preset")


def say_option_refused(why: str, option: str) -> FormError:
    """An option that is not available, that this agent does not have, or a limit of the run that does not fit."""
    clause = strip_marks(why)
    return FormError(f"{clause[:1].upper()}{clause[1:]}.", option)


def say_onto_refused(base_branch: str) -> FormError:
    """A target of a rebase that does not exist."""
    return FormError(f"Enter an existing branch, or the full SHA of a commit on {base_branch}.", "onto")


def say_busy(job_id: str) -> FormError:
    """Another job of the issue is active."""
    why = "on this issue is still running"
    how = f"Cancel it with ptq-bot jobs cancel {job_id}, or wait for it."
    return FormError(f"Another job {why}. Cancel it first, or wait for it.", "issue", f"Job {job_id} {why}. {how}")


def say_onto_missing(branch: str) -> FormError:
    """A rebase without a target, of a diff whose base branch GitHub does not have."""
    why = f"GitHub has no branch {branch}, the base of this diff."
    return FormError(f"{why} Enter a branch.", "onto", f"{why} Name a branch with --onto BRANCH.")


def strip_marks(reply: str) -> str:
    """A reply of ours as plain text: without code marks, and with links as their words."""
    return re.sub(r"\[([^\[\]]+)\]\([^)\s]+\)", r"\1", reply).replace("`", "")
