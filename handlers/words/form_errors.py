"""The errors in a form that keep a job from starting, for pages and terminals. Pure.

They contain no commands of threads and no Markdown. A page shows an error next to the field that it is about. If an
error says the same as a reply in a thread, `strip_marks` makes it from the reply.
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
    """The name of the wrong field. Empty if the error is about no field, or about several."""
    in_terminal: str = ""
    """The words in a terminal. Empty if a terminal shows the reply for the thread instead."""


def _say_both(words: str, field: str) -> FormError:
    """An error with the same words on a page and in a terminal."""
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
    """Somebody may be working on the issue. `reasons` are clauses that we wrote."""
    why = strip_marks(" and ".join(reasons))
    why = f"{why[:1].upper()}{why[1:]}."
    return FormError(f"{why} Tick this box to start anyway.", "anyway", f"{why} Use --anyway to start anyway.")


def say_unknown_preset(presets: Iterable[Preset]) -> FormError:
    """This repository does not offer the preset."""
    return FormError(f"Choose a preset of this repository: {', '.join(preset.name for preset in presets)}.", "preset")


def say_option_refused(why: str, option: str) -> FormError:
    """The option is not available, the agent does not have it, or a limit of the run does not fit."""
    clause = strip_marks(why)
    return FormError(f"{clause[:1].upper()}{clause[1:]}.", option)


def say_onto_refused(base_branch: str) -> FormError:
    """The target of a rebase does not exist."""
    return FormError(f"Enter an existing branch, or the full SHA of a commit on {base_branch}.", "onto")


def say_busy(job_id: str) -> FormError:
    """Another job of the issue is active."""
    why = "on this issue is still running"
    how = f"Cancel it with ptq-bot jobs cancel {job_id}, or wait for it."
    return FormError(f"Another job {why}. Cancel it first, or wait for it.", "issue", f"Job {job_id} {why}. {how}")


def say_onto_missing(branch: str) -> FormError:
    """A rebase has no target, and GitHub does not have the base branch of the diff."""
    why = f"GitHub has no branch {branch}, the base of this diff."
    return FormError(f"{why} Enter a branch.", "onto", f"{why} Name a branch with --onto BRANCH.")


def strip_marks(reply: str) -> str:
    """One of our replies as plain text: without backticks, and with only the words of links."""
    return re.sub(r"\[([^\[\]]+)\]\([^)\s]+\)", r"\1", reply).replace("`", "")
