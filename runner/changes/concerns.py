"""Decides whether a report names a security concern. Pure.

Published text stays public, and withheld text still reaches the operator. So every form that we can think of counts,
and text is compared by its appearance, whatever dashes, spaces and entities it uses.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from runner.characters import drop_invisible, unify

OUTCOMES: Mapping[str, str] = {
    "reproduced": "you saw the reported behaviour happen here",
    "fix staged": "the bug is fixed in the worktree, and a test that failed before passes now",
    "unable to fix": "you saw it happen, but have no change that you would defend",
    "does not reproduce": "you ran what is described, and the reported behaviour did not appear",
    "needs a repro": "what is known is not enough to run it here: say which information, hardware or set-up is missing",
    "intended behaviour": "it happens, and the documentation, a test or the code's own words say that it should",
    "not a bug": "it happens, but its cause lies outside of the project: in how it is used or in something else",
    "security concern": "a stranger could abuse it: see the limits",
}
"""The outcomes that a report may begin with, and when each is right, as the brief tells the agent."""

SECURITY_CONCERN = "security concern"

ALIASES: Mapping[str, str] = {
    "security issue": SECURITY_CONCERN,
    "security concerns": SECURITY_CONCERN,
    "reproduces": "reproduced",
    "fixed": "fix staged",
    "staged": "fix staged",
    "did not reproduce": "does not reproduce",
    "does not repro": "does not reproduce",
    "not reproduced": "does not reproduce",
    "needs repro": "needs a repro",
    "intended behavior": "intended behaviour",
}

MAX_LINE = 200
"""Characters of a line in a report that are read."""

_MAX_READ = 4_000
"""Characters of a line that are searched for them, because invisible characters and entities may come first."""

_NOUN = r"(?:concern|issue|problem|risk|bug|flaw|hole|vulnerabilit(?:y|ie))s?"

_PHRASE = re.compile(rf"security[\W_]{{0,12}}{_NOUN}")
"""The two words, with any separator between them."""

_CONCERN = re.compile(
    r"(?:and )?(?:an? )?(?:(?!(?:no|not|without|never)\b)\w+ ){0,2}"
    rf"security {_NOUN}"
    r"(?: (?:found|exists?|present|confirmed|here))?"
)

_LABEL = re.compile(
    r"(?:the |final |my )*(?:outcome|result|verdict|conclusion|classification|status|finding)s?(?: is| was)?\b"
    r"|(?:i|we) (?:would )?(?:classify|rate|report|regard|consider|treat) (?:this|it)(?: as\b)?"
    r"|(?:this|it) (?:is|looks like|seems to be)\b"
)
_FILLERS = frozenset({"x", "final", "overall"})
"""Words in brackets before the outcome: a ticked box, or a qualification."""

_NOTHING = frozenset({"none", "no", "nothing", "n", "a", "none found", "none known", "not applicable"})
"""Text after a heading for security concerns in a report without any."""

_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

_LINE_ENDS = dict.fromkeys((0x0B, 0x0C, 0x85, 0x2028, 0x2029), "\n")


def normalise(text: str) -> str:
    """The text as it looks, in lower case. Entities are decoded, and look-alikes of spaces and hyphens are replaced."""
    text = html.unescape(text) if "&" in text else text
    if _CONTROL.search(text):
        text = _CONTROL.sub("", _COLOUR.sub("", text))
    if not text.isascii():
        text = drop_invisible(unify(text).translate(_LINE_ENDS))
    return text.casefold()


def split_clauses(line: str) -> list[str]:
    """The words of a line, split at punctuation and markup: `**Outcome:** security-concern` gives two clauses."""
    line = " ".join(normalise(line[:_MAX_READ]).split())[:MAX_LINE]
    line = re.sub(r"</?[a-z][^>]*>", " ", line)
    line = re.sub(r"(?<=[a-z])[-\u2010\u2212](?=[a-z])", " ", line.replace("_", " "))
    line = _PHRASE.sub(lambda found: re.sub(r"^security[\W_]*", "security ", found[0]), line)
    return [" ".join(clause.split()) for clause in re.split(r"[^\w\s]+|\b\d+\b", line) if clause.strip()]


def name_concern(lines: Iterable[list[str]]) -> bool:
    """Whether one of these lines, given as clauses, names a security concern as the outcome."""
    return any(_names_concern(*pair) for pair in pairwise([*lines, []]))


def _names_concern(clauses: list[str], following: list[str]) -> bool:
    """Whether a line names that outcome, alone or after others, and neither it nor the next line says "none"."""
    for place, clause in enumerate(clauses):
        label = _LABEL.match(clause)
        said = clause[label.end() :].strip() if label else clause
        if _CONCERN.fullmatch(said):
            behind = clauses[place + 1 :] or following
            return not behind or not _NOTHING.issuperset(behind)
        if said and said not in _FILLERS and ALIASES.get(said, said) not in OUTCOMES:
            return False
    return False
