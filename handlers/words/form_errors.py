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


NO_ADVICE = FormError("This preset needs instructions.", "advice")
NOTHING_TO_RETRY = FormError(
    "No attempt on this issue has finished, so there is nothing to continue. Choose another preset.", "preset"
)
NOTHING_TO_CARRY_ON = FormError("The last attempt has no change, and this preset needs one.", "preset")
ONTO_MISSING = FormError("This job did not begin on a branch. Enter the one that the pull request goes to.", "onto")
NOT_FRESH = FormError("This continues an earlier attempt, so it cannot start without it.", "fresh")
NOT_A_RETRY = FormError("This preset continues no attempt. Start it by itself.", "preset")
NOTHING_TO_REBASE = FormError(
    "There is no diff to rebase: none waits for a note, and none is in a pull request of ptq-bot.", "preset"
)
NOTHING_TO_VERIFY = FormError(
    "There is no script to run, neither in the issue nor from an attempt. Choose another preset.", "preset"
)
BUSY = FormError("Another job on this issue is still running. Cancel it first, or wait for it.", "issue")


def say_opposed(reasons: Sequence[str]) -> FormError:
    """Somebody may be working on the issue; `reasons` are our own clauses."""
    why = strip_marks(" and ".join(reasons))
    return FormError(f"{why[:1].upper()}{why[1:]}. Tick this box to start anyway.", "anyway")


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


def strip_marks(reply: str) -> str:
    """A reply of ours as plain text: without code marks, and with links as their words."""
    return re.sub(r"\[([^\[\]]+)\]\([^)\s]+\)", r"\1", reply).replace("`", "")
