"""Finds the outcome of a report, and decides whether it names a security concern. Pure.

Published text stays public, and withheld text still reaches the operator. So every form that we can think of counts,
and text is compared by its appearance, whatever dashes, spaces and entities it uses.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise

from runner.characters import drop_colours, drop_invisible, normalise_newlines, unify
from runner.model.job import Job, Report

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

_LINES_BEFORE_OUTCOME = 3
"""The outcome is searched in this many lines with text, because a title may come first."""

OUTCOME_READ = 4_000
"""The characters of a report in which lists look for its outcome: enough for these lines, unless they are very long."""

_LINES_BEFORE_CONFIDENCE = 30
"""Any of this many first lines can make a report confidential."""

_MAX_LINES_READ = 1_000
"""The most lines with a letter that are searched for them, because some lines contain only tags."""

MAX_LINE = 200
"""Characters of a line in a report that are read."""

_MAX_READ = 4_000
"""Characters of a line that are searched for them, because invisible characters and entities may come first."""

_NOUN = r"(?:concern|issue|problem|risk|bug|flaw|hole|defect|weakness(?:es)?|exposure|vulnerabilit(?:y|ie))s?"

_PHRASE = re.compile(rf"security(?:[\W_]{{1,12}}(?:related|relevant|critical|sensitive))?[\W_]{{0,12}}({_NOUN})")
"""The two words, with any separator between them, and in `security-related concern` a word."""

_INVERTED = re.compile(
    rf"\b({_NOUN}) (?:(?:about|of|for|with|in|regarding|concerning)|relat(?:ed|ing) to) (?:the )?security\b(?! ?\w)"
)
"""The two words in the other order, at the end of a clause: `a concern about security`."""

_CONCERN = re.compile(
    r"(?:and )?(?:an? )?(?:(?!(?:no|not|without|never)\b)\w+ ){0,2}"
    rf"security {_NOUN}"
    r"(?: (?:found|exists?|present|confirmed|here))?"
)

_LABELS = (
    r"(?:the |final |my )*(?:(?:type|kind) of )?"
    r"(?:outcome|result|verdict|conclusion|classification|status|finding|type|kind|category|report|summary)s?"
    r"(?: of (?:this|the|my) \w+)?(?: is| was)?\b"
    r"|(?:i|we) (?:would )?(?:classify|rate|report|regard|consider|treat) (?:this|it)(?: as\b)?"
    r"|(?:i|we) (?:have |am |are )?(?:found|report|reporting)\b"
    r"|(?:i|we) (?:(?:want|have|need|would like|must) to )?(?:raise|report|flag)\b"
    r"|(?:this|it|(?:this|the) (?:issue|report|bug|problem|finding))"
    r" (?:is|looks like|seems to be|raises|describes|reports|contains)\b"
    r"|(?:note|warning|attention|important|actually|update|correction)\b"
)
_LABEL = re.compile(_LABELS)

_NAMED = re.compile(
    rf"\bsecurity (?:concerns?\b|{_NOUN}(?=$| (?:in|of|at|on|with|within|when|where|that|which|by|because|due|via)\b))"
)
"""A concern that a clause names. Other words for it also begin names, as in `security issue template`."""

_LEAD = re.compile(
    r"(?:\b(?:outcome|verdict|stop(?:s|ped|ping)?)\b(?:(?!\b(?:no|not|nor|never|without)\b).)*"
    rf"|(?:^|, )(?:{_LABELS})(?:, | )(?:an? )?(?:(?!(?:no|not|never|without)\b)\w+ ){{0,2}})$"
)
"""The words before a concern where a line announces it; there are commas between clauses."""

_BEGINNING = re.compile(
    r"(?:(?:an?|potential|possible|likely|confirmed|serious|severe|critical|and|but|also|plus"
    r"|there (?:is|are|may be|might be|could be)),? )*"
)
"""The words before a concern with which a report begins."""

_OTHERS = re.compile(
    rf"\b(?:{'|'.join(words for words in (*OUTCOMES, *ALIASES) if not words.startswith('security'))}"
    r"|not (?:only|just|merely))\b(?!,? n?or\b)(?:, | )?"
)
"""Words that may stand before a concern and deny nothing of it: another outcome, such as `not a bug`."""

_DENIED = re.compile(
    r" (?:(?:is|are|was|were|has been|have been) )?"
    r"(?:none|no|ruled out|excluded|not (?:found|seen|present|known|involved|relevant|applicable|identified))\b"
    r"| (?:do|does|did) not (?:apply|arise|exist)\b"
)
"""The words after a concern that the report denies."""

_OUTCOME_LINE = re.compile(r"(?:the |final )*(?:outcome|verdict)\b")
_ALARM = re.compile(r"\b(?:security|vulnerab|exploit)")
_DENIAL = re.compile(r"\b(?:no|not|none|never|nor|without)\b")
"""A line with the outcome that has such a word means a concern, whatever else it says: no other outcome has one."""

_FIRST_LINES = 3
"""Lines that a report begins with: a title may come before its outcome."""

_FILLERS = frozenset({"x", "final", "overall"})
"""Words in brackets before the outcome: a ticked box, or a qualification."""

_NOTHING = frozenset({"none", "no", "nothing", "n", "a", "none found", "none known", "not applicable"})
"""Text after a heading for security concerns in a report without any."""

_LETTER = re.compile(r"[^\W\d_]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

_LINE_ENDS = dict.fromkeys((0x0B, 0x0C, 0x85, 0x2028, 0x2029), "\n")


def is_withheld(job: Job, report: Report | None) -> bool:
    """Whether only the operator may see a run's result. All code that shows or passes on results checks this."""
    return job.confidential or names_concern(report)


def names_concern(report: Report | None) -> bool:
    """Whether a report says itself that it is for the operator only. Its issue is confidential from then on."""
    return report is not None and is_concern(report.body)


def is_concern(text: str) -> bool:
    """Whether a report, or a heading of a worklog, names a finding that strangers could abuse.

    When in doubt, it is confidential, because publishing cannot be undone: any of the first lines with that outcome is
    enough. Only the first lines are read, so that a long report does not take long.
    """
    if find_outcome(normalise_newlines(text).split("\n"))[1] == SECURITY_CONCERN:
        return True
    lettered = islice(filter(_LETTER.search, text.splitlines()), _MAX_LINES_READ)
    written = (clauses for line in lettered if (clauses := _split_clauses(line)))
    return _name_concern(islice(written, _LINES_BEFORE_CONFIDENCE))


def find_outcome(lines: list[str]) -> tuple[int, str | None]:
    """The line with the outcome (-1 if there is none), and the outcome."""
    written = ((place, line) for place, line in enumerate(lines) if line.strip())
    for place, line in islice(written, _LINES_BEFORE_OUTCOME):
        if outcome := _read_outcome(line):
            return place, outcome
    return -1, None


def read_outcome(beginning: str) -> str | None:
    """The outcome in the first `OUTCOME_READ` characters of a report, as lists show it."""
    return find_outcome(normalise_newlines(beginning).split("\n"))[1]


def _read_outcome(line: str) -> str | None:
    """The outcome in lines such as `**Outcome:** FIX_STAGED.`; None for a sentence that only begins with one."""
    words = re.sub(r"[\s#*_`>-]+", " ", line[:200].casefold()).strip()
    words = re.sub(r"^outcome ?:? ?", "", words)
    phrase = re.split(r" ?[.,;(–—]", words, maxsplit=1)[0].strip()
    phrase = ALIASES.get(phrase, phrase)
    return phrase if phrase in OUTCOMES else None


def _normalise(text: str) -> str:
    """The text as it looks, in lower case. Entities are decoded, and look-alikes of spaces and hyphens are replaced."""
    text = html.unescape(text) if "&" in text else text
    if _CONTROL.search(text):
        text = _CONTROL.sub("", drop_colours(text))
    if not text.isascii():
        text = drop_invisible(unify(text).translate(_LINE_ENDS))
    return text.casefold()


_IN_WORD = re.compile(
    r"(?<=[^\W_])(?:[*`]++|~~|</?(?:b|i|u|s|em|strong|code|span|mark|ins|del|sub|sup)\b[^>]{0,200}+>"
    r"|<!--(?:(?!-->).){0,200}+-->)++(?=[^\W_])"
)
"""Marks within a word, which a reader does not see."""


def _split_clauses(line: str) -> list[str]:
    """The words of a line, split at punctuation and markup: `**Outcome:** security-concern` gives two clauses."""
    line = " ".join(_normalise(line[:_MAX_READ]).split())[:MAX_LINE]
    line = _IN_WORD.sub("", line)
    line = re.sub(r"</?[a-z][^>]*>", " ", line)
    line = re.sub(r"(?<=[a-z])[-\u2010\u2212](?=[a-z])", " ", line.replace("_", " "))
    line = _INVERTED.sub(r"security \1", _PHRASE.sub(r"security \1", line))
    return [" ".join(clause.split()) for clause in re.split(r"[^\w\s]+|\b\d+\b", line) if clause.strip()]


def _name_concern(lines: Iterable[list[str]]) -> bool:
    """Whether one of these lines, given as clauses, names a security concern as the outcome.

    The first line is the first of the report.
    """
    return any(
        _names_concern(clauses, following) or _announces_concern(clauses, following, is_first=place < _FIRST_LINES)
        for place, (line, following) in enumerate(pairwise([*lines, []]))
        for clauses in (_unwrap(line, following),)
    )


def _unwrap(line: list[str], following: list[str]) -> list[str]:
    """The line, with the next one where it ends between the two words."""
    if following and line[-1].endswith("security") and re.match(r"concerns?\b", following[0]):
        return [*line[:-1], f"{line[-1]} {following[0]}", *following[1:]]
    return line


def _announces_concern(clauses: list[str], following: list[str], *, is_first: bool) -> bool:
    """Whether a line names a concern after a word such as "outcome", or begins with one, and does not deny it."""
    if _OUTCOME_LINE.match(clauses[0]):
        said = _OTHERS.sub("", ", ".join(clauses))
        if _ALARM.search(said) and not _DENIAL.search(said):
            return True
    for place, clause in enumerate(clauses):
        for found in _NAMED.finditer(clause):
            before, after = ", ".join([*clauses[:place], clause[: found.start()]]), clause[found.end() :]
            before = _OTHERS.sub("", before)
            behind = clauses[place + 1 :] or following
            is_denied = _DENIED.match(after) or (not after and behind and _NOTHING.issuperset(behind))
            if not is_denied and (_LEAD.search(before) or (is_first and _BEGINNING.fullmatch(before))):
                return True
    return False


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
