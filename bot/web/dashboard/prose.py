"""Renders agents' Markdown as HTML that loads nothing, runs nothing, and links only to http and https. Pure.

HTML in the Markdown is shown as text, and pictures become links. Entities and Markdown's marks can hide a secret, so
the text is cleaned a second time, as readers see it. A line that looks like one of ptq-bot's own lines is marked as an
agent's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from handlers.text.transcript import redact_each
from handlers.text.voice import SPEAKER, sounds_like_us

MAX_PROSE = 20_000
"""A text with more characters is shown as it was typed. An ordinary text of 15 kB takes some 10 ms to render."""

MAX_CELLS = 10_000
"""The most cells of all tables in a text. Rows that end early count as full, because the parser fills them."""

MAX_LOOKS = 250_000
"""The most characters that the parser may have to search for the ends of links. It searches from each open bracket to
the end of the paragraph. To search this many takes a second."""

_MAX_NESTING = 20
"""The most levels of nested quotes, lists and marks. The parser leaves out deeper levels, so a text that reaches the
limit is shown as plain text."""

_TOP = 3
"""The level of a text's highest heading. The headings of the page and of its section have the levels above it."""

_WEB = re.compile(r"https?://[^/]", re.IGNORECASE)

_WIDE = '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
"""The element around each table."""

_CODE = ("code_block", "fence")
_HEADS = ("heading_open", "th_open")
_EMPHASIS = ("strong_open", "em_open")

Clean = Callable[[str], str]


def render_prose(text: str, clean: Clean) -> Markup:
    """Somebody's Markdown as HTML. A text that is too long, too deep or too costly for that is shown as plain text.

    `clean` removes secrets and other parts that nobody should see. A secret that appears only without the marks is
    removed as well. Its paragraph, or if necessary the whole text, is then shown without marks.
    """
    text = clean(text)
    tokens = _parse(text)
    if tokens is None:
        return _show(text)
    told = [token for token in tokens if token.type == "inline" or token.type in _CODE]
    for token in told:
        token.children = [*_tame_words(token.children or (), clean)]
    seen = [_read(token) for token in told]
    cleaned = redact_each(seen, clean)
    whole = "\n".join(cleaned)
    if clean(whole) != whole:
        return _show(clean(whole))
    for token, before, after in zip(told, seen, cleaned, strict=True):
        if before != after:
            token.content, token.children = after, [_say(after)]
    for block, token in pairwise(tokens):
        if token.type == "inline":
            token.children = [*_name_speaker(token.children or (), is_head=block.type in _HEADS)]
    html = _parser().renderer.render([*_tame_blocks(tokens)], _parser().options, {})
    return Markup('<div class="markdown">{}</div>').format(Markup(html))  # noqa: S704 - the renderer escapes


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING}).enable(["table", "strikethrough"])


def _parse(text: str) -> list[Token] | None:
    """The tokens of a text. None if the text must be shown as plain text."""
    if len(text) > MAX_PROSE or _is_costly(text):
        return None
    try:
        tokens = _parser().parse(text)
    except Exception:  # If a stranger's text breaks the parser, people can still read it as plain text.
        return None
    return None if any(token.level >= _MAX_NESTING - 1 for token in tokens) else tokens


def _is_costly(text: str) -> bool:
    lines = text.split("\n")
    cells = len(lines) * max(line.count("|") for line in lines)
    looks = sum(len(paragraph) * min(paragraph.count("["), _MAX_NESTING) for paragraph in text.split("\n\n"))
    return cells > MAX_CELLS or looks > MAX_LOOKS


def _show(text: str) -> Markup:
    return Markup('<pre class="prose">{}</pre>').format(text)


def _read(token: Token) -> str:
    """The text of a token, as readers see it."""
    return "".join(child.content or "\n" * child.type.endswith("break") for child in token.children or (token,))


def _say(text: str) -> Token:
    return Token("text", "", 0, content=text)


def _tame_words(words: Sequence[Token], clean: Clean) -> Iterator[Token]:
    """The tokens with only links to http and https, and with links in place of pictures."""
    is_link = False
    for token in words:
        if token.type == "link_open":
            is_link = _may_lead(address := str(token.attrs["href"]), clean)
            yield from [_lead(address)] if is_link else ()
        elif token.type == "link_close":
            yield from [token] if is_link else ()
            is_link = False
        elif token.type == "image":
            address, name = str(token.attrs["src"]), _say(_read(token).strip() or "image")
            may = not is_link and _may_lead(address, clean)
            yield from [_lead(address), name, Token("link_close", "a", -1)] if may else [name]
        else:
            yield token


def _name_speaker(words: Sequence[Token], *, is_head: bool) -> Iterator[Token]:
    """The words of a block. A line that begins like one of ptq-bot's own lines gets `SPEAKER` in front of it.

    `is_head` says that the block is a heading, so that all of it stands out.
    """
    ends = [place for place, token in enumerate(words) if token.type == "hardbreak"]
    for first, last in pairwise([-1, *ends, len(words)]):
        line = words[first + 1 : last]
        stands_out = is_head or any(token.type in _EMPHASIS for token in line[: _count_marks(line)])
        if sounds_like_us("".join(token.content for token in line), stands_out=stands_out):
            yield _say(f"{SPEAKER} ")
        yield from words[first + 1 : last + 1]


def _count_marks(line: Sequence[Token]) -> int:
    """The number of tokens before the token with the first letter of a line."""
    letters = (place for place, token in enumerate(line) if any(map(str.isalpha, token.content)))
    return next(letters, len(line))


def _may_lead(address: str, clean: Clean) -> bool:
    return bool(_WEB.match(address)) and all(clean(form) == form for form in (address, unquote(address)))


def _lead(address: str) -> Token:
    return Token("link_open", "a", 1, attrs={"href": address, "rel": "noopener nofollow noreferrer"})


def _tame_blocks(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens, with headings below those of the page, tables and code that can scroll, and classes for styles."""
    shift = _TOP - min((int(token.tag[1:]) for token in tokens if token.type == "heading_open"), default=1)
    for token in tokens:
        style = str(token.attrs.pop("style", ""))
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + shift, 6)}"
        elif token.type in _CODE:
            token.type, token.attrs = "code_block", {"tabindex": "0"}
        elif style:
            token.attrs = {"class": style.removeprefix("text-align:")}
        if token.type == "table_open":
            yield Token("html_block", "", 0, content=_WIDE)
        yield token
        if token.type == "table_close":
            yield Token("html_block", "", 0, content="</div>\n")
