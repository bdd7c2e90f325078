"""What strangers wrote, in a comment of ours, as GitHub's own parser renders it: nothing in it is live, and what is
ours around it stays ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote
from zlib import crc32

from handlers.sanitize import collapse, fence, make_safe
from tests.support.github_markdown import render_github

_OURS_BEFORE = "### Done\n\n**Root cause**\n\n"
_OURS_AFTER = f"\n\n{collapse('Our diff', fence('+ours', 'diff'))}\n\nour last words"

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
_DRAWN = re.compile(r"language-(?:mermaid|geojson|topojson|stl|math)\b", re.IGNORECASE)

_MENTION = re.compile(r"(?<![A-Za-z0-9])@[A-Za-z0-9]")
_REFERENCE = re.compile(r"[\w.-]#\d|(?<![A-Za-z0-9])GH-\d", re.IGNORECASE)
_CLOSING = re.compile(
    r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[^A-Za-z0-9#\u200b\0]*(?:[\w.-]+/[\w.-]+)?(?:#|GH-)\d",
    re.IGNORECASE,
)
_THREAD = re.compile(
    r"(?<![\w-])(?<!redirect\.)github\.(?:com|example)\.?(?::\d*)?/+[^/\s]+/+[^/\s]+/+(?:issues|pull|discussions)/+\d",
    re.IGNORECASE,
)


class _Reader(HTMLParser):
    """Reads rendered HTML, and notes what is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.stack: list[str] = []
        self.nodes = [""]
        """The texts outside code, as GitHub's filters see them: one for each run without a tag in it."""
        self.blocks = [""]
        """The same for each block, with NUL in the place of code."""
        self.last_words: list[str] = []
        """The elements around our last words."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.nodes.append("")
        if tag in _BLOCKS:
            self.blocks.append("")
        if tag == "code":
            self.blocks[-1] += "\0"
        if tag not in _BLOCKS | _INLINE:
            self.faults.append(f"the element {tag}")
        for name, value in attrs:
            if name not in _ATTRIBUTES.get(tag, ()) or (name == "class" and _DRAWN.match(value or "")):
                self.faults.append(f"the attribute {name}={value!r} of {tag}")
            if name == "href" and _THREAD.search(unquote((value or "").replace("\\", "/"))):
                self.faults.append(f"a link to the thread {value!r}")
        if tag not in _VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.nodes.append("")
        if tag in _BLOCKS:
            self.blocks.append("")
        if self.stack[-1:] != [tag]:
            self.faults.append(f"the element {tag} ends in {self.stack}")
        else:
            self.stack.pop()

    def handle_data(self, data: str) -> None:
        if "code" not in self.stack and "pre" not in self.stack:
            self.nodes[-1] += data
            self.blocks[-1] += data
        if data == "our last words":
            self.last_words = list(self.stack)

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"the comment {data[:40]!r}")

    def handle_decl(self, decl: str) -> None:
        self.faults.append(f"the declaration {decl[:40]!r}")

    def unknown_decl(self, data: str) -> None:
        self.faults.append(f"the declaration {data[:40]!r}")

    def handle_pi(self, data: str) -> None:
        self.faults.append(f"the instruction {data[:40]!r}")


def find_faults(text: str) -> list[str]:
    """What is wrong with a comment of ours that holds the text, whole and cut."""
    limit = 1 + crc32(text.encode(errors="replace")) % (2 * len(text) + 2)
    faults = []
    for most in (None, limit):
        safe = make_safe(text, (), most)
        faults += _judge(safe)
        if most is not None and len(safe) > most:
            faults.append(f"it has {len(safe)} characters of {most}")
        if make_safe(safe, (), most) != safe:
            faults.append("what is safe is changed again")
    return faults


def _judge(safe: str) -> Iterator[str]:
    for hard_breaks in (True, False):
        html = render_github(f"{_OURS_BEFORE}{safe}{_OURS_AFTER}", hard_breaks=hard_breaks)
        reader = _Reader()
        reader.feed(html)
        reader.close()
        yield from reader.faults
        if html.count('<pre lang="diff">') + html.count('<code class="language-diff">+ours') != 1:
            yield "our diff is not shown as we wrote it"
        if html.count("<details>") != 1 or reader.last_words != ["p"]:
            yield "what follows is not outside"
        for node in reader.nodes:
            yield from (f"live: {found[0]!r}" for pattern in (_MENTION, _REFERENCE) for found in pattern.finditer(node))
        for block in reader.blocks:
            yield from (f"live: {found[0]!r}" for pattern in (_CLOSING, _THREAD) for found in pattern.finditer(block))
