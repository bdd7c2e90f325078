"""Keeps our own words apart from an agent's: the beginnings of our lines, and the quote that holds an agent's words.

Pure. What we post takes its headings and marks from here, so that whatever is ours is also protected here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import cache

from handlers.text.markdown import join_wrapped
from handlers.text.sanitize import LIKE_A_TICK, cut, make_safe, redact
from runner.changes.concerns import OUTCOMES
from runner.characters import drop_invisible, show_invisible, unify

NOTE_PLACEHOLDER = "in your own words, what the change does and why it is right"
"""What the report asks for, word for word; repeating it is no answer."""

SPEAKER = "agent:"
"""What stands before a line of an agent's that begins like one of ours."""


class Label(StrEnum):
    """The words with which a line or a fold of ours begins in what we post about a job."""

    PTQ = "ptq"
    NOW = "Now:"
    WAITING = "Waiting:"
    RESERVED = "Reserved for"
    SO_FAR = "So far:"
    WHY = "Why:"
    AGENT_SAYS = "What the agent says"
    REPORT_SAYS = "What the report says"
    SEEN = "Seen by ptq-bot"
    NOTE = "Please note:"
    PULL = "Pull request:"
    DIFF = "Diff:"
    TOO_LONG = "The diff is too long for a comment"
    CHECKOUT = "Apply locally:"
    FULL_REPORT = "Full report"
    FULL_REPRO = "Full repro"
    FULL_WORKLOG = "Full worklog"
    WORKLOG = "From the agent's worklog:"
    TOLD = "What the agent was told"
    AGENTS_REPORT = "The agent's full report"
    REST_OF_REPORT = "The rest of the report"
    AGENTS_REST = "The rest of the agent's report"
    AGENTS_WORKLOG = "The agent's worklog"
    AGENTS_REPRO = "The agent's repro"
    AGENTS_WORDS = "In the agent's words:"
    NEXT_STEP = "Next step."
    WRITTEN = "The change was written by"
    APPROVED = "Approved by"

    @property
    def bold(self) -> str:
        """The label as Markdown that stands out."""
        return f"**{self}**"


class Mark(StrEnum):
    """The sign before a line of a list of ours."""

    GOOD = "✅"
    FAILS = "🔴"
    OPEN = "❔"
    DOUBT = "⚠️"
    REFUSED = "⛔"


class Headline(StrEnum):
    """How the end of a job is called where no outcome of a report says it."""

    DONE = "Done"
    NOT_FINISHED = "Not finished"
    CANCELLED = "Cancelled"
    LOST = "Lost"
    PARTIAL = "Partial"
    NEEDS_HUMAN = "Needs a human"
    STILL_REPRODUCES = "Still reproduces"
    GONE = "Does not reproduce"
    UNSETTLED = "Not settled"
    NOT_VERIFIED = "Not verified"


def say_who_wrote(login: str) -> str:
    """The line above a human's words."""
    return f"**@{login} wrote:**"


def quote(text: str, secrets: Collection[str], limit: int, notice: str) -> str:
    """Somebody's Markdown as a quote of at most `limit` characters, safe to post; the notice follows where it was cut.

    Every line has the mark of the quote, so nothing in it ends the quote. A line that begins like one of ours says
    first that an agent wrote it. The text is redacted whole and cut before it is made safe: the cost has a bound.
    """
    whole = redact(text, secrets).strip()
    if not whole:
        return ""
    room = max(limit - len(notice) - 2, 0)
    # What makes a text safe only ever adds to it, so no more of it than this could be shown.
    safe = make_safe(join_wrapped(whole[:room]), ()).rstrip("\n")
    lines, is_whole = _clip(cut(safe, max(room - _LONGEST_PREFIX, 0), "").rstrip("\n"), room)
    is_whole = is_whole and len(whole) <= room and len(safe) <= room - _LONGEST_PREFIX
    return "\n".join(lines if is_whole else [*lines, "", notice])


def show_words(text: str, secrets: Collection[str], limit: int) -> str:
    """Somebody's words as code within a line of ours, at most `limit` characters of them: nothing in there is Markdown.

    Unlike `sanitize.show_code`, which is for names, it writes no sign out that people can read, and fits no table.
    """
    line = " ".join(show_invisible(redact(text, secrets)).split()).replace("`", LIKE_A_TICK)
    return f"`{line if len(line) <= limit else f'{line[: limit - 1]}…'}`" if line else "no words"


_LONGEST_PREFIX = len(f"> {SPEAKER} ")
_FENCE = re.compile(r"(`{3,})([^`]*)")
"""What `make_safe` writes itself: it spells out every other mark of code."""


def _clip(text: str, room: int) -> tuple[list[str], bool]:
    """As many lines of a safe text as there is room for, as a quote, and whether those are all."""
    quoted: list[str] = []
    fence = ""
    lines = text.split("\n")
    for line, underline in zip(lines, _find_underlines(lines), strict=True):
        before, fence = fence, _find_open(line, fence)
        shown = line if before or fence else mark_forgery(line, underline)
        shown = f"> {shown}" if shown else ">"
        room -= len(shown) + 1
        if room < (len(f"> {fence}\n") if fence else 0):
            return [*quoted, *([f"> {before}"] if before else [])], False
        quoted.append(shown)
    return quoted, True


def _find_underlines(lines: Sequence[str]) -> list[str]:
    """For each line the underline that makes its paragraph a heading, or nothing. A heading may have several lines.

    The line of dashes in a table is one, too: what is in the head of a table stands out.
    """
    found, underline = [""] * len(lines), ""
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].strip(" >")
        found[at] = underline
        underline = lines[at] if line and _UNDERLINE.fullmatch(line) else underline if line else ""
    return found


def _find_open(line: str, fence: str) -> str:
    """The fence that is open after a line, empty where none is; `fence` is the one that was open before."""
    found = _FENCE.fullmatch(line)
    if not found:
        return fence
    marks, rest = found.groups()
    if not fence:
        return marks
    return "" if marks.startswith(fence) and not rest.strip() else fence


_BEGINNING = re.compile(rf"(?:[\s>#*+~|_\\-]|\d{{1,9}}[.)](?=\s)|\[[ xX]\](?=\s)|{SPEAKER}[\s*~_\\]*+\|)*")
"""What may stand before the first word of a line: the marks of quotes, lists, headings, tables and emphasis. A cell
that holds only the speaker does not cover the next cell."""

_LINK_END = re.compile(r"\]\((?:[^\s()]++|\([^\s()]*+\))*+\)")
"""Where a link leads. A reader does not see it. `make_safe` leaves no link with more to it than an address."""

_UNDERLINE = re.compile(r"[\s>]*+(?:=+\s*|(?=[|:\s]*+-)[|:\s-]++)")


def mark_forgery(line: str, following: str = "") -> str:
    """The line, which says that an agent wrote it where it begins like one of ours; any other stays as it is.

    `following` is the line that underlines its paragraph, if one does: by it a line can be a heading.
    """
    beginning = _BEGINNING.match(line)
    marks = beginning[0] if beginning else ""
    words = line[len(marks) :]
    stands_out = bool(re.search(r"[#*_]", marks) or _UNDERLINE.fullmatch(following))
    cells = _LINK_END.sub("", words).split("|")
    if words.startswith(SPEAKER) or not any(
        sounds_like_us(cell, stands_out=stands_out or _has_emphasis(cell)) for cell in cells
    ):
        return line
    # Before the marks of emphasis, which end after the words.
    marks = marks.rstrip("*_~\\")
    return f"{marks}{SPEAKER} {line[len(marks) :]}"


_WROTE = re.compile(r"(?:the operator|[a-z0-9][a-z0-9-]*) (?:wrote:|told the agent\b)")
"""How the note of a human begins in a pull request (`say_who_wrote`), and the words for a running agent in a report:
without their signs, as `_plain` shows them."""

_SIGNS = re.compile(r"^(?::[a-z0-9_+-]{1,40}:|[\W_]|[0-9]|[a-z](?=[.):]))+")
"""What may be before the first word of a line: dots, arrows, brackets, pictures and their names (`:rocket:`), the
number or letter of an item."""

_LOOKED_AT = 200
"""Characters of a line as it looks: more than any beginning of ours has."""


def _has_emphasis(words: str) -> bool:
    """Whether a mark of emphasis is before the first word."""
    before = _SIGNS.match(drop_invisible(html.unescape(words)))
    return before is not None and bool(re.search("[*_]", before[0]))


def sounds_like_us(words: str, *, stands_out: bool) -> bool:
    """Whether a line, or a cell of a table, begins with a mark of ours or with one of our labels; or, where it stands
    out as a heading does, with a headline."""
    shown = _plain(words)[:_LOOKED_AT]
    phrases = (*_phrases(), *(_headlines() if stands_out else ()))
    signs = (_SIGNS.match(shown) or [""])[0]
    said = shown[len(signs) :]
    return (
        bool(_WROTE.match(said))
        or any(mark in signs for mark in _marks())
        or any(said.startswith(phrase) and not said[len(phrase) : len(phrase) + 1].isalnum() for phrase in phrases)
    )


_SHORTCODES = {
    ":white_check_mark:": "✅",
    ":heavy_check_mark:": "✅",
    ":ballot_box_with_check:": "✅",
    ":red_circle:": "🔴",
    ":grey_question:": "❔",
    ":question:": "❔",
    ":warning:": "⚠",
    ":no_entry:": "⛔",
    ":x:": "⛔",
    ":no_entry_sign:": "⛔",
    "✔": "✅",
    "☑": "✅",
    "✓": "✅",
    "√": "✅",
    "🗸": "✅",
    "🟢": "✅",
    "❓": "❔",
    "❌": "⛔",
    "🚫": "⛔",
}
"""The signs that look like ours, and how GitHub spells them and ours."""

_SHORTCODE = re.compile("|".join(_SHORTCODES))


def _plain(text: str) -> str:
    """A text as it looks, letters alone: without emphasis, signs of no width, and spaces that nobody notices."""
    text = unify(drop_invisible(html.unescape(text).replace("\ufe0f", "")))
    text = _SHORTCODE.sub(lambda found: _SHORTCODES[found[0]], text)
    text = re.sub(r"[][*_`~\\]", "", text).replace("\u2019", "'")
    text = re.sub(r"[\u2010-\u2015\u2212]", "-", text)
    return re.sub(r" (?=[:.])", "", " ".join(text.split())).casefold()


@cache
def _marks() -> tuple[str, ...]:
    return tuple(_plain(mark) for mark in Mark)


@cache
def _phrases() -> Sequence[str]:
    """The labels; their last sign counts only where a single word would be found in innocent lines without it."""
    labels = [_plain(label) for label in Label]
    return [label if " " not in label else label.rstrip(":.") for label in labels]


@cache
def _headlines() -> Sequence[str]:
    return [_plain(headline) for headline in (*Headline, *OUTCOMES)]
