"""What strangers wrote, in a comment of ours, as GitHub's own parser renders it: nothing in it is live, and what is
ours around it stays ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from urllib.parse import unquote
from zlib import crc32

from handlers.text.sanitize import collapse, defuse, fence, make_safe, make_safe_line, show_code
from handlers.text.voice import quote
from tests.support.github_markdown import render_github

_OURS_BEFORE = "### Done\n\n**Root cause**\n\n"
_LAST_WORDS = "our last words"
_OURS_AFTER = f"\n\n{collapse('Our diff', fence('+ours', 'diff'))}\n\n{_LAST_WORDS}"
_OUR_DIFF = '\n<pre><code class="language-diff">+ours\n</code></pre>\n'

_INLINE = {"br", "code", "em", "strong", "del", "a", "input"}
_BLOCKS = {
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "pre", "blockquote", "hr"),
    "details",
    "summary",
}
_BLOCKS |= {"table", "thead", "tbody", "tr", "th", "td"}
_ATTRIBUTES = {"a": {"href"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}, "code": {"class"}}
_ATTRIBUTES["input"] = {"type", "checked", "disabled"}
_VOID = {"br", "hr", "input", "img"}
_PIECE = re.compile(r'<(/?)([a-z0-9]+)((?: [a-z-]+="[^"<>]*")*)(?: /)?>|([^<]+)|<')
"""An element of those that the parser writes, text, or what is none of that: HTML as it stood in the source."""

_ATTRIBUTE = re.compile(r' ([a-z-]+)="([^"]*)"')
_DRAWN = re.compile(r"language-(?:mermaid|geojson|topojson|stl|math)\b", re.IGNORECASE)

_MENTION = re.compile(r"(?<![A-Za-z0-9])@[A-Za-z0-9]")
_REFERENCE = re.compile(r"[\w.-]#\d|(?<![A-Za-z0-9])GH-\d", re.IGNORECASE)
_CLOSING = re.compile(
    r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[^A-Za-z0-9#\u200b\0]*(?:[\w.-]+/[\w.-]+)?(?:#|GH-)\d",
    re.IGNORECASE,
)
_THREAD = re.compile(
    r"(?:(?<![\w.-])(?:www\.)?github\.com|://github\.example)\.?(?::\d*)?"
    r"/+[^/\s]+/+[^/\s]+/+(?:issues|pull|discussions)/+\d",
    re.IGNORECASE,
)


@dataclass
class _Rendered:
    """Rendered HTML, read, and what is wrong with it."""

    faults: list[str]
    nodes: list[str]
    """The texts outside code, as GitHub's filters see them: one for each run without a tag in it."""
    blocks: list[str]
    """The same for each block, with NUL in the place of code."""
    last_words: Sequence[str] = ()
    """The elements around our last words."""


def _read(html: str) -> _Rendered:
    read = _Rendered([], [], [""])
    stack: list[str] = []
    for piece in _PIECE.finditer(html):
        closing, tag, attributes, text = piece.groups()
        if text is not None:
            if "code" not in stack and "pre" not in stack:
                read.nodes.append(unescape(text))
                read.blocks[-1] += read.nodes[-1]
            if text.strip() == _LAST_WORDS:
                read.last_words = tuple(stack)
            continue
        if tag is None or tag not in _BLOCKS | _INLINE:
            read.faults.append(f"HTML: {html[piece.start() :][:60]!r}")
            continue
        if tag in _BLOCKS:
            read.blocks.append("")
        elif tag == "code" and not closing:
            read.blocks[-1] += "\0"
        if closing and stack[-1:] == [tag]:
            stack.pop()
        elif closing:
            read.faults.append(f"the element {tag} ends in {stack}")
        elif tag not in _VOID:
            stack.append(tag)
        read.faults += [fault for found in _ATTRIBUTE.findall(attributes) if (fault := _judge_attribute(tag, *found))]
    return read


def _judge_attribute(tag: str, name: str, value: str) -> str:
    if name not in _ATTRIBUTES.get(tag, ()) or (name == "class" and _DRAWN.match(value)):
        return f"the attribute {name}={value!r} of {tag}"
    if name == "href" and _THREAD.search(unquote(unescape(value).replace("\\", "/"))):
        return f"a link to the thread {value!r}"
    return ""


def find_faults(text: str) -> list[str]:
    """What is wrong with a comment of ours that holds the text, whole and cut."""
    number = crc32(text.encode(errors="replace"))
    limit = 1 + number % (2 * len(text) + 2)
    whole, part = make_safe(text, ()), make_safe(text, (), limit)
    faults: list[str] = [*judge(whole, hard_breaks=number % 3 > 0), *judge(part, hard_breaks=number % 5 > 1)]
    line, code = make_safe_line(text, (), 200), show_code(text, ())
    faults += judge(f"{line}\n\n- {line}, {code}\n\n| a | b |\n|---|---|\n| {code} | c |", hard_breaks=True)
    faults += judge(quote(text, (), limit + 20, "(cut)"), hard_breaks=number % 2 > 0)
    if len(part) > limit:
        faults.append(f"{len(part)} characters are more than {limit}")
    if defuse(whole) != whole:
        faults.append("what is safe is changed again")
    return faults


def judge(safe: str, *, hard_breaks: bool = True) -> Iterator[str]:
    """What is wrong with a comment of ours that holds this defused text."""
    html = render_github(f"{_OURS_BEFORE}{safe}{_OURS_AFTER}", hard_breaks=hard_breaks)
    read = _read(html)
    yield from read.faults
    if html.count(_OUR_DIFF) != 1 or html.count("<details>") != 1 or read.last_words != ("p",):
        yield f"what follows does not stand outside: {html[-200:]!r}"
    for node in read.nodes:
        yield from (f"live: {found[0]!r}" for pattern in (_MENTION, _REFERENCE) for found in pattern.finditer(node))
    for block in read.blocks:
        yield from (f"live: {found[0]!r}" for pattern in (_CLOSING, _THREAD) for found in pattern.finditer(block))
