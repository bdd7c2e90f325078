"""The human note: what a maintainer writes to approve a diff, and the reasons why a text does not count as one. Pure.

This module does not know who wrote a note, or which report is the current one. It compares texts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from textwrap import fill

from markdown_it import MarkdownIt
from markdown_it.token import Token

from handlers.commands.table import CONTAINERS, Command, OpenElements, parse_commands
from handlers.text.sanitize import close_fence, fence, make_safe_line, show_code
from handlers.text.voice import NOTE_PLACEHOLDER
from runner.characters import drop_invisible, unify
from runner.model.job import DIGEST_SHOWN

MAX_NOTE = 10_000
"""The most characters of a note. It comes first in a pull request, and leaves room for the rest."""

MIN_WORDS = 5
"""The fewest different words of a note."""

MIN_LETTERS = 30
"""The fewest letters of a note, in any script. A note is a sentence, not an "ok"."""

MIN_SAID = 20
"""The fewest letters that the different words of a note have together."""

MAX_REPEATED = 3
"""A note with n different words has at most n * n / 3 words. People do not repeat a few words more often."""

NOTE_EXAMPLE = (
    "The loop left out the last row because its end was exclusive. "
    "Now it includes it; I checked that the new test fails without the change."
)
"""An example of a good note."""

PHONE_COLUMNS = 44
"""Characters of a code block's line that a phone shows without scrolling."""

_SHINGLE = 5
"""The number of words in a row that make a passage. A passage that is also in a source was copied."""

Shingle = tuple[str, ...]

_OPTION = re.compile(r"(?:(?<!\S)--|^\s*[–—]+)\w[\w-]*")
"""A word on the command's line that somebody meant as an option."""

DOUBLE_QUOTES, _SINGLE = r"[\"“”„«»]", r"['‘’‚]"
_TITLE = re.compile(
    rf"\s*(?:--|[–—]+)title(?:\s*=|(?=\s|$))\s*"
    rf"(?:{DOUBLE_QUOTES}(?P<double>.*?){DOUBLE_QUOTES}|{_SINGLE}(?P<single>.*?){_SINGLE}(?!\S)|(?P<bare>.*))",
    re.IGNORECASE,
)
"""The option `--title` with its value. The value is in quotes, or it is the rest of the line.

Phones write curly quotes, and a long dash for `--`.
"""

_DIGEST = re.compile(r"[\W_]*([0-9a-fA-F]{6,64})[\W_]*")
"""A digest as people write it: in quotes or bold, before a colon."""

_NAMED = re.compile(rf"(?<![^\W_])[0-9a-fA-F]{{{DIGEST_SHOWN},}}(?![^\W_])")
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+", re.IGNORECASE)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
"""A word. In Chinese and Japanese, which have no spaces, each character counts as a word."""

_SENTENCE_END = re.compile(r"(?<![.!?;:。！？])[.!?;:。！？]++(?=\s|$|[\u3040-\u30ff\u3400-\u9fff])|\n")


@dataclass(frozen=True, slots=True)
class NoteText:
    """What a person wrote after `/ptq pr`: the digest, if any, the note, verbatim, and the title, if any."""

    digest: str | None
    text: str
    title: str | None = None
    """The title as it was typed. Empty if the option has no value, None without the option."""
    unknown: str | None = None
    """What looks like an option on the command's line, but is not one."""
    perhaps: Sequence[str] = ()
    """What may be meant as a digest on the command's line or the line below it. Empty if a digest comes first."""


def parse_note(command: Command) -> NoteText:
    """Split the command into digest, title and note. Words that happen to be hex (`facade`) belong to the note."""
    title, argument = _take_title(command.argument)
    first, _, rest = argument.partition(" ")
    found = _DIGEST.fullmatch(first)
    if found is None or (len(found[1]) < DIGEST_SHOWN and found[1].isalpha()):
        return _read(None, argument, command.body, title)
    if title is None:
        title, rest = _take_title(rest)
    return _read(found[1].lower(), rest, command.body, title)


def has_note(comment: str, text: str, title: str | None, digest: str) -> bool:
    """Whether a comment still contains this note, with this title and for this digest."""
    commands = (command for command in parse_commands(comment) if isinstance(command, Command) and command.verb == "pr")
    return any(
        (note.text, note.title) == (text, title) and (note.digest is None or matches_digest(note.digest, digest))
        for note in map(parse_note, commands)
    )


def _read(digest: str | None, line: str, body: str, title: str | None) -> NoteText:
    option = _OPTION.search(line)
    first = body.strip().partition("\n")[0]
    perhaps = () if digest else tuple(map(str.lower, _NAMED.findall(_normalise(_ADDRESS.sub(" ", f"{line}\n{first}")))))
    text = f"{line.strip()}\n\n{body}".strip()
    return NoteText(digest, text, title, option[0].strip() if option else None, perhaps)


def _take_title(line: str) -> tuple[str | None, str]:
    """Split a line into the title that it begins with, or None, and the rest."""
    found = _TITLE.match(line)
    if found is None:
        return None, line
    title = next((text for text in found.groupdict().values() if text is not None), "")
    return title.strip(), line[found.end() :].strip()


def matches_digest(shown: str, digest: str) -> bool:
    """Whether `shown` is the beginning of `digest`, with at least `DIGEST_SHOWN` hex digits."""
    return len(shown) >= DIGEST_SHOWN and digest.startswith(shown.lower())


def find_digest_fault(shown: str) -> str | None:
    """Why `shown` cannot name a digest, as a reply. None if it can."""
    if len(shown) >= DIGEST_SHOWN:
        return None
    return f"`{shown}` is too short. Give at least {DIGEST_SHOWN} digits of the digest, as the report shows them."


@dataclass(frozen=True, slots=True)
class NoteFault:
    """Why a note does not count."""

    reply: str
    """For the thread."""
    on_page: str
    """For the form. It leaves out what the form shows itself."""


def find_option_fault(note: NoteText, shown: str) -> str | None:
    """Why the command's line cannot be read, as a reply. None if it can be read. `shown` is the digest of the diff."""
    example = f"for example `/ptq pr {shown} --title 'Keep the last row'`"
    if note.title == "":
        return f"`--title` needs a title in quotes, {example}. Write your note on the lines after it."
    if note.unknown is None:
        return None
    return (
        f"Unknown option {show_code(note.unknown, (), 40)}. The only option of `/ptq pr` is `--title` with a title in "
        f"quotes, {example}. Write your note on the lines after it."
    )


_OUR_REFUSALS = (
    "Please add a note under the command: every pull request starts with one from a person. Please say",
    "is copied from the agent's report. Use your own words, and quote with",
    "A pull request opens with a human's note, and this command came without one. Please say below it",
    "This note holds only quotes, links or code. Please say",
    "This note is too short to tell a reviewer anything: it has letters of your own, and needs",
    "stands in the agent's report already, and a reviewer wants to hear from somebody who read the diff",
    "If you agree with this diff, reply with the line below and, under it",
    "A draft pull request opens with your note first",
)
"""Sentences that ptq-bot writes itself. A text that repeats them is not a note."""


def find_note_fault(note: str, report_texts: Sequence[str], shown: str) -> NoteFault | None:
    """Why `note` does not count as a human's approval. None if it counts. `shown` is the digest of the diff.

    Only the author's own prose counts. Quotes, code, links and HTML are allowed, but are not enough.
    """
    if (fault := _judge(note, report_texts)) is None:
        return None
    example = fence(f"/ptq pr {shown}\n\n{fill(NOTE_EXAMPLE, PHONE_COLUMNS)}", "text")
    return NoteFault(f"{fault.reply} For example:\n\n{example}", fault.on_page)


def _judge(note: str, report_texts: Sequence[str]) -> NoteFault | None:
    if not note.strip():
        return NoteFault(
            "Please add a note under the command: every pull request starts with one from a person. "
            f"Please say, {NOTE_PLACEHOLDER}.",
            "Write a note: every pull request begins with one.",
        )
    # Checked before the note is parsed, because it may be as long as a comment can be.
    if len(note) > MAX_NOTE:
        much = f"This note has {len(note):,} characters. It can have {MAX_NOTE:,}."
        return NoteFault(
            f"{much} Please say more briefly, {NOTE_PLACEHOLDER}.",
            f"Your note has {len(note):,} characters. It can have {MAX_NOTE:,}.",
        )
    prose = _normalise(" ".join(_find_prose(note)))
    letters = _count_letters(prose)
    if not letters and _count_letters(note):
        return NoteFault(
            f"This note holds only quotes, links or code. Please say, {NOTE_PLACEHOLDER}.",
            "Quotes, links and code do not count. Add a sentence of your own.",
        )
    if letters < MIN_LETTERS:
        return NoteFault(
            f"This note is too short to tell a reviewer anything: it has {letters} letters of your own, and "
            f"needs {MIN_LETTERS}. Please say, {NOTE_PLACEHOLDER}.",
            f"Your note is too short: it has {letters} letters of your own, and needs {MIN_LETTERS}.",
        )
    if _repeats_itself(prose):
        return NoteFault(
            f"This note says the same few words again and again. Please say, {NOTE_PLACEHOLDER}.",
            "Your note repeats the same few words. Say what the change does and why it is right.",
        )
    if _hides_what_follows(note):
        left = "This note leaves a fence, a comment or an HTML element open, which would hide what stands below it."
        return NoteFault(
            f"{left} Please say, {NOTE_PLACEHOLDER}.",
            "Your note leaves a code fence, a comment or an HTML element open, which would hide the text after it. "
            "Close it.",
        )
    if _find_copied(prose, (NOTE_PLACEHOLDER, NOTE_EXAMPLE, *_OUR_REFUSALS)):
        return NoteFault(
            f"This note repeats our template. Please say, {NOTE_PLACEHOLDER}.",
            "Your note repeats the example, or words of this form. Use your own words.",
        )
    if passage := _find_copied(prose, report_texts):
        return NoteFault(
            f"“{make_safe_line(passage, (), 200)}” is copied from the agent's report. Use your own words, and "
            "quote with `>`.",
            "Your note copies the agent's report. Use your own words, and put a > before what you quote: "
            f"“{' '.join(passage.split())[:200]}”",
        )
    return None


def _repeats_itself(prose: str) -> bool:
    """Whether a text has too few different words. Digits and repeated letters do not make a word different."""
    words = ["".join(filter(str.isalpha, word.casefold())) for word in _WORD.findall(prose)]
    words = [re.sub(r"(.)\1+", r"\1", word) for word in words if word]
    different = set(words)
    said = sum(map(len, different))
    return len(different) < MIN_WORDS or said < MIN_SAID or len(different) ** 2 < MAX_REPEATED * len(words)


_UNREAD = re.compile(rf"^{CONTAINERS}(?:\[[^\]\n]++\]:|</?source(?=[\s/>]|$))", re.MULTILINE | re.IGNORECASE)
"""From here on, GitHub's parser may see HTML where ours does not.

The two read definitions of links differently, and ours does not know the element `source`.
"""

_DECLARATION = re.compile(r"<(?:\?|!\[cdata\[|![a-z])", re.IGNORECASE)
"""The beginning of HTML that continues over blank lines to its own end (CommonMark, 4.6). No honest note has it."""


def _hides_what_follows(note: str) -> bool:
    """Whether the text that we write below the note would be read as a part of the note."""
    elements = OpenElements()
    for token in _parse(note):
        if token.type == "html_block":
            elements.read(token.content)
        for child in token.children or []:
            if child.type == "html_inline":
                elements.read(child.content)
    for block in re.split(r"\n[ \t]*\n", note):
        if found := _UNREAD.search(block):
            elements.read(block[found.start() :])
    return close_fence(note) != note or bool(_DECLARATION.search(note)) or bool(elements)


def _count_letters(text: str) -> int:
    return sum(char.isalpha() for char in text)


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _parse(note: str) -> list[Token]:
    return _parser().parse(note.encode(errors="replace").decode())


def _find_prose(note: str) -> Iterator[str]:
    """The words outside quotes, code, links, images and HTML."""
    quoted = 0
    for token in _parse(note):
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
    """Give characters that look the same one spelling, and drop invisible ones."""
    return unify(drop_invisible(text))


def _find_copied(prose: str, sources: Iterable[str]) -> str | None:
    """The longest part of `prose` that is copied from `sources`. None if less than half of the words are copied.

    Words are compared in passages of `_SHINGLE` words in a row, or of a whole sentence that is shorter.
    """
    places = list(_WORD.finditer(prose))
    words = [place[0].casefold() for place in places]
    shingles = list(_find_shingles(prose, places, words))
    known = _choose_known({shingle for _, shingle in shingles}, sources)
    copied = [False] * len(words)
    for at, shingle in shingles:
        if shingle in known:
            copied[at : at + len(shingle)] = [True] * len(shingle)
    if not words or 2 * sum(copied) < len(words):
        return None
    first, last = max(_find_runs(copied), key=lambda run: run[1] - run[0])
    return prose[places[first].start() : places[last - 1].end()]


def _find_shingles(prose: str, places: Sequence[re.Match[str]], words: Sequence[str]) -> Iterator[tuple[int, Shingle]]:
    """Every passage, with the number of its first word."""
    starts = [place.start() for place in places]
    ends = [bisect_left(starts, stop.end()) for stop in _SENTENCE_END.finditer(prose)]
    for first, last in pairwise([0, *ends, len(words)]):
        size = min(_SHINGLE, last - first)
        for at in range(first, last - size + 1) if size else ():
            yield at, tuple(words[at : at + size])


def _choose_known(wanted: set[Shingle], sources: Iterable[str]) -> set[Shingle]:
    """The wanted passages that are in a source."""
    known: set[Shingle] = set()
    for source in sources:
        words = [word.casefold() for word in _WORD.findall(_normalise(source))]
        for size in {len(shingle) for shingle in wanted}:
            known.update(wanted.intersection(zip(*(words[shift:] for shift in range(size)), strict=False)))
    return known


def _find_runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The runs of true `flags`, each as the number of its first flag and the number after its last."""
    edges = [at for at, (before, after) in enumerate(pairwise([False, *flags, False])) if before != after]
    return zip(edges[::2], edges[1::2], strict=True)
