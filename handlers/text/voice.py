"""Keeps the bot's own lines apart from an agent's: labels that begin our lines, and quotes that hold an agent's words.

Pure. All our comments take their labels, marks and headlines from here. So `mark_forgery` knows all of them, and marks
an agent's line that begins with one.
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
"""What a report asks people to write in a note. A note that only repeats these words does not count."""

SPEAKER = "agent:"
"""Comes before an agent's line that begins like one of ours, so that readers see whose line it is."""


class Label(StrEnum):
    """The words at the beginning of our lines, and of the summaries of folded parts, in posts about a job."""

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
        """The label in bold, as Markdown."""
        return f"**{self}**"


class Mark(StrEnum):
    """The symbol at the beginning of an item in our lists."""

    GOOD = "✅"
    FAILS = "🔴"
    OPEN = "❔"
    DOUBT = "⚠️"
    REFUSED = "⛔"


class Headline(StrEnum):
    """Our own headlines for an ended job. The outcome in an agent's report may be the headline instead."""

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
    """Somebody's Markdown as a quote of at most `limit` characters, safe to post. If it is cut, `notice` follows.

    Every line has the mark of a quote, so no line can end the quote. A line that begins like one of ours gets `SPEAKER`
    before it. The whole text is redacted. It is then cut before it is made safe, so that this takes bounded time.
    """
    whole = redact(text, secrets).strip()
    if not whole:
        return ""
    room = max(limit - len(notice) - 2, 0)
    # `make_safe` hardly ever makes a text shorter, so text after the first `room` characters could not be shown.
    safe = make_safe(join_wrapped(whole[:room]), ()).rstrip("\n")
    lines, is_whole = _clip(cut(safe, max(room - _LONGEST_PREFIX, 0), "").rstrip("\n"), room)
    is_whole = is_whole and len(whole) <= room and len(safe) <= room - _LONGEST_PREFIX
    return "\n".join(lines if is_whole else [*lines, "", notice])


def show_words(text: str, secrets: Collection[str], limit: int) -> str:
    """At most `limit` characters of somebody's words, as a code span in a line of ours. So they contain no Markdown.

    `sanitize.show_code` is for names, and writes out more characters. Do not use this function in a table, because it
    leaves `|` as it is.
    """
    line = " ".join(show_invisible(redact(text, secrets)).split()).replace("`", LIKE_A_TICK)
    return f"`{line if len(line) <= limit else f'{line[: limit - 1]}…'}`" if line else "no words"


_LONGEST_PREFIX = len(f"> {SPEAKER} ")
_FENCE = re.compile(r"(`{3,})([^`]*)")
"""A fence in a text from `make_safe`, which writes every fence itself, and replaces all other marks of code."""


def _clip(text: str, room: int) -> tuple[list[str], bool]:
    """The lines of a safe text for which there is room, as a quote, and whether these are all lines."""
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
    """For each line, the line that underlines its paragraph and so makes it a heading. Empty without such a line.

    A heading may have several lines. The line of dashes in a table counts as an underline, because the head of a table
    is shown in bold.
    """
    found, underline = [""] * len(lines), ""
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].strip(" >")
        found[at] = underline
        underline = lines[at] if line and _UNDERLINE.fullmatch(line) else underline if line else ""
    return found


def _find_open(line: str, fence: str) -> str:
    """The fence that is open after a line, or empty. `fence` is the one that was open before the line, or empty."""
    found = _FENCE.fullmatch(line)
    if not found:
        return fence
    marks, rest = found.groups()
    if not fence:
        return marks
    return "" if marks.startswith(fence) and not rest.strip() else fence


_BEGINNING = re.compile(rf"(?:[\s>#*+~|_\\-]|\d{{1,9}}[.)](?=\s)|\[[ xX]\](?=\s)|{SPEAKER}[\s*~_\\]*+\|)*")
"""Everything before the first word of a line: the marks of quotes, lists, headings, tables and emphasis.

A cell that contains only `SPEAKER` also counts as a mark. Otherwise a forged label in the next cell would not be found.
"""

_LINK_END = re.compile(r"\]\((?:[^\s()]++|\([^\s()]*+\))*+\)")
"""The address of a link, which readers do not see. `make_safe` leaves no links with a title."""

_UNDERLINE = re.compile(r"[\s>]*+(?:=+\s*|(?=[|:\s]*+-)[|:\s-]++)")


def mark_forgery(line: str, following: str = "") -> str:
    """Put `SPEAKER` before a line that begins like one of ours. Any other line stays as it is.

    `following` is the line that underlines the paragraph, if there is one. It makes the line a heading.
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
    # `SPEAKER` comes before marks of emphasis, because the emphasis ends after the words.
    marks = marks.rstrip("*_~\\")
    return f"{marks}{SPEAKER} {line[len(marks) :]}"


_WROTE = re.compile(r"(?:the operator|[a-z0-9][a-z0-9-]*) (?:wrote:|told the agent\b)")
"""The beginnings of two of our lines: the line above a note (`say_who_wrote`), and the line above a message to an agent
(`report_comment.say_who_told`). Without punctuation, as `_plain` returns them."""

_SIGNS = re.compile(r"^(?::[a-z0-9_+-]{1,40}:|[\W_]|[0-9]|[a-z](?=[.):]))+")
"""Symbols before the first word of a line: dots, arrows, brackets, emoji and their names (`:rocket:`), the number or
letter of an item."""

_LOOKED_AT = 200
"""The characters of a line that are compared with the beginnings of ours, which are shorter."""


def _has_emphasis(words: str) -> bool:
    """Whether a mark of emphasis is before the first word."""
    before = _SIGNS.match(drop_invisible(html.unescape(words)))
    return before is not None and bool(re.search("[*_]", before[0]))


def sounds_like_us(words: str, *, stands_out: bool) -> bool:
    """Whether a line, or a cell of a table, begins with one of our marks or labels.

    The lines above a note and above a message to an agent count, too. If the line or cell `stands_out`, as a heading
    does, our headlines also count.
    """
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
"""Symbols that look like one of our marks, and names that GitHub shows as one of them, each with our mark."""

_SHORTCODE = re.compile("|".join(_SHORTCODES))


def _plain(text: str) -> str:
    """A text as it looks, in lower case, without emphasis, invisible characters, and spaces that nobody notices."""
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
    """The labels, as `_plain` returns them.

    Of labels with several words, a final colon or full stop is removed. A single word without it would also be found in
    ordinary lines.
    """
    labels = [_plain(label) for label in Label]
    return [label if " " not in label else label.rstrip(":.") for label in labels]


@cache
def _headlines() -> Sequence[str]:
    return [_plain(headline) for headline in (*Headline, *OUTCOMES)]
