"""The human note: what a maintainer writes to approve a diff, and what makes it no note. Pure.

Refuses to know who wrote it and which report stands: it compares texts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from markdown_it import MarkdownIt
from markdown_it.token import Token

from handlers.commands import Command
from handlers.sanitize import defuse, fence, one_line
from runner.characters import is_invisible
from runner.job import DIGEST_SHOWN

MIN_LETTERS = 30
"""Letters, of any script, that a note has at least: a sentence, not an "ok"."""

NOTE_PLACEHOLDER = "in your own words, what the change does and why it is right"
"""What the report asks for, word for word; repeating it is no answer."""

NOTE_EXAMPLE = (
    "The loop left out the last row because its end was exclusive. "
    "Now it includes it; I checked that the new test fails without the change."
)
"""A note as we would like to read it."""

_SHINGLE = 5
"""Words in a row that make a passage the same passage."""

_DIGEST = re.compile(r"`?([0-9a-fA-F]{6,64})`?")
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+", re.IGNORECASE)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
"""A word; in Chinese and Japanese, which write no spaces, a character."""


@dataclass(frozen=True, slots=True)
class NoteText:
    """What `/ptq pr` was given: the digest that it names, if any, and the note, verbatim."""

    digest: str | None
    text: str


@dataclass(frozen=True, slots=True)
class NoteFault:
    """Why a note approves nothing. `sentence` is the reply: Markdown, with what to do and an example."""

    code: str
    sentence: str


def parse_note(command: Command) -> NoteText:
    """Split the command into digest and note. Words that happen to be hex (`facade`) belong to the note."""
    first, _, rest = command.argument.partition(" ")
    found = _DIGEST.fullmatch(first)
    if found is None or (len(found[1]) < DIGEST_SHOWN and found[1].isalpha()):
        return NoteText(None, _join(command.argument, command.body))
    return NoteText(found[1].lower(), _join(rest, command.body))


def _join(line: str, body: str) -> str:
    return f"{line.strip()}\n\n{body}".strip()


def matches_digest(shown: str, digest: str) -> bool:
    """Whether `shown` names `digest`: its beginning, of at least `DIGEST_SHOWN` hex digits."""
    return len(shown) >= DIGEST_SHOWN and digest.startswith(shown.lower())


def find_digest_fault(shown: str, *, example: str) -> NoteFault | None:
    """Why `shown` names no digest at all, whichever stands."""
    if len(shown) >= DIGEST_SHOWN:
        return None
    reason = (
        f"`{shown}` has {len(shown)} digits, and that is too few to be sure which diff you mean. "
        f"Please give at least {DIGEST_SHOWN} of the digest, as the report shows them."
    )
    return NoteFault("short_digest", _with_example(reason, example))


def find_note_fault(note: str, *, report_texts: Sequence[str], example: str) -> NoteFault | None:
    """Why `note` cannot stand for a human's approval; None when it can.

    Only its author's own prose counts: quotes, code, links and HTML may stand in it, but say nothing by themselves.
    `example` is a whole command with a note, to be shown in the answer; repeating it is refused as well.
    """
    found = _judge(note, report_texts, example)
    return NoteFault(found[0], _with_example(found[1], example)) if found else None


def _with_example(reason: str, example: str) -> str:
    return f"{reason} For example:\n\n{fence(example, 'text')}"


def _judge(note: str, report_texts: Sequence[str], example: str) -> tuple[str, str] | None:
    if not note.strip():
        return "empty", (
            "A pull request opens with a human's note, and this command came without one. "
            "Please write below it what the change does and why it is right."
        )
    prose = _normalise(" ".join(_find_prose(note)))
    letters = _count_letters(prose)
    if not letters and _count_letters(note):
        return "only_quotes", (
            "This note holds only quotes, links or code. Please add a sentence of your own: what the change does and "
            "why it is right."
        )
    if letters < MIN_LETTERS:
        return "too_short", (
            f"This note is too short to tell a reviewer anything: it has {letters} letters of your own, and "
            f"{MIN_LETTERS} are the least. Please say what the change does and why it is right."
        )
    if _find_copied(prose, (NOTE_PLACEHOLDER, NOTE_EXAMPLE, example)):
        return "template", (
            "This note repeats our template. Please say in your own words what this change does and why it is right."
        )
    if passage := _find_copied(prose, report_texts):
        return "copied", (
            f"“{defuse(one_line(passage, 200))}” stands in the agent's report already. A reviewer wants to hear from "
            "somebody who read the diff: please say it in your own words (and put what you quote behind a `>`)."
        )
    return None


def _count_letters(text: str) -> int:
    return sum(char.isalpha() for char in text)


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _find_prose(note: str) -> Iterator[str]:
    """The words outside quotes, code, links, images and HTML."""
    quoted = 0
    for token in _parser().parse(note.encode(errors="replace").decode()):
        if token.type in ("blockquote_open", "blockquote_close"):
            quoted += token.nesting
        if token.type == "inline" and not quoted:
            yield _ADDRESS.sub(" ", "".join(_find_words(token.children or [])))


def _find_words(children: Sequence[Token]) -> Iterator[str]:
    linked = 0
    for child in children:
        if child.type in ("link_open", "link_close"):
            linked += child.nesting
        if child.type == "text" and not linked:
            yield child.content
        elif child.type in ("softbreak", "hardbreak", "code_inline"):
            yield " "


def _normalise(text: str) -> str:
    """One spelling for what looks the same."""
    return unicodedata.normalize("NFKC", "".join(char for char in text if not is_invisible(char)))


def _find_words_of(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_normalise(text))]


def _find_copied(prose: str, sources: Iterable[str]) -> str | None:
    """The longest passage of `prose` that stands in `sources`, if half of its words or more do."""
    places = list(_WORD.finditer(prose))
    words = [place[0].casefold() for place in places]
    size = min(_SHINGLE, len(words))
    wanted = set(_shingles(words, size))
    known = {shingle for source in sources for shingle in _shingles(_find_words_of(source), size) if shingle in wanted}
    copied = [False] * len(words)
    for at, shingle in enumerate(_shingles(words, size)):
        if shingle in known:
            copied[at : at + size] = [True] * size
    if not words or 2 * sum(copied) < len(words):
        return None
    first, last = max(_runs(copied), key=lambda run: run[1] - run[0])
    return prose[places[first].start() : places[last - 1].end()]


def _shingles(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[shift:] for shift in range(size)), strict=False)


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Where `flags` is true, as (first, past the last)."""
    start = None
    for at, flag in enumerate(chain(flags, [False])):
        if flag and start is None:
            start = at
        elif not flag and start is not None:
            yield start, at
            start = None
