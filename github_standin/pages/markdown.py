"""Renders GitHub-flavoured Markdown as harmless HTML.

It supports tables, strikethrough, task lists, bare addresses, mentions, collapsed parts and coloured diffs. Of embedded
HTML only harmless tags remain, and they are always closed, so a text cannot affect the rest of the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from github_standin.pages.diffs import render_diff

_VOID = frozenset({"br", "hr"})
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = ("blockquote", "dd", "details", "div", "dl", "dt", "li", "ol", "p", "pre", "summary", "ul")
_TABLES = ("table", "tbody", "td", "th", "thead", "tr")
_WORDS = (
    "a",
    "b",
    "code",
    "del",
    "em",
    "i",
    "ins",
    "kbd",
    "q",
    "s",
    "samp",
    "span",
    "strong",
    "sub",
    "sup",
    "tt",
    "var",
)
_TAGS = frozenset({*_VOID, *_HEADINGS, *_BLOCKS, *_TABLES, *_WORDS})
_RAW = re.compile(r"<(?=/?(?:title|textarea|style|xmp|iframe|noembed|noframes|script|plaintext)\b)", re.IGNORECASE)
"""Tags that GitHub removes (GFM, 6.11), because they change how everything after them is parsed."""
_HREF = re.compile(r"https?://|mailto:|[/#]", re.IGNORECASE)
_LIVE = re.compile(
    r"(?P<url>https?://[^\s<>\"]*[^\s<>\".,:;!?'*_~)\]])|(?<![\w/#&])#(?P<number>[1-9]\d{0,8})\b"
    r"|(?<![\w/@.`])@(?P<login>[a-zA-Z0-9][a-zA-Z0-9-]{0,38})(?:\[bot\])?"
)
_TASK = re.compile(r"\s*\[([ xX])\]\s")


class _Renderer(RendererHTML):
    """Leaves HTML unchanged, except for `_RAW` tags."""

    def html_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """HTML between paragraphs."""
        return _RAW.sub("&lt;", tokens[idx].content)

    def html_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """HTML within a paragraph."""
        return _RAW.sub("&lt;", tokens[idx].content)


class _Sanitizer(HTMLParser):
    """Writes HTML again with known tags and attributes only, all closed. The rest becomes text or is removed."""

    def __init__(self, repository_path: str) -> None:
        super().__init__(convert_charrefs=True)
        self._repository_path = repository_path
        self._parts: list[str] = []
        self._open: list[str] = []
        self._begins_item = False
        self._is_diff = False

    def finish(self) -> str:
        """The result, with open tags closed."""
        self.close()
        while self._open:
            self._end()
        return "".join(self._parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a tag."""
        values = {name: value or "" for name, value in attrs}
        if tag == "img":
            self._link(values.get("src", ""), values.get("alt") or "image")
        elif tag in _TAGS:
            self._begins_item = tag == "li" or (tag == "p" and self._begins_item)
            self._is_diff = tag == "code" and values.get("class") == "language-diff"
            opening = '<div class="block">' if tag == "pre" else ""
            self._parts.append(f"{opening}<{tag}{_render_attributes(tag, values)}>")
            if tag not in _VOID:
                self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close a tag, and the tags inside it."""
        if tag in self._open:
            while self._end() != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._begins_item and (task := _TASK.match(data)):
            checked = "" if task[1] == " " else " checked"
            self._parts.append(f'<input type="checkbox" disabled{checked}> ')
            data = data[task.end() :]
        self._begins_item = self._begins_item and not data.strip()
        if self._is_diff and "pre" in self._open:
            self._parts.append(render_diff(data))
        elif {"a", "code", "pre"}.isdisjoint(self._open):
            self._write_live(data)
        else:
            self._parts.append(escape(data))

    def _end(self) -> str:
        tag = self._open.pop()
        closing = '<button type="button" class="copy">Copy</button></div>' if tag == "pre" else ""
        self._parts.append(f"</{tag}>{closing}")
        return tag

    def _write_live(self, text: str) -> None:
        """Write text outside code, with links for addresses, numbers and names."""
        end = 0
        for match in _LIVE.finditer(text):
            self._parts.append(escape(text[end : match.start()]))
            end = match.end()
            if match["url"]:
                self._link(match["url"], match["url"])
            elif match["number"] and self._repository_path:
                self._link(f"{self._repository_path}/issues/{match['number']}", match[0])
            else:
                self._parts.append(f"<strong>{escape(match[0])}</strong>" if match["login"] else escape(match[0]))
        self._parts.append(escape(text[end:]))

    def _link(self, address: str, text: str) -> None:
        start = "" if "a" in self._open else f"<a{_render_attributes('a', {'href': address})}>"
        self._parts.append(f"{start}{escape(text)}{'</a>' if start else ''}")


def _render_attributes(tag: str, values: dict[str, str]) -> str:
    """The few harmless attributes."""
    if tag == "a" and _HREF.match(values.get("href", "")):
        return f' href="{escape(values["href"])}" rel="nofollow noopener"'
    if tag == "details" and "open" in values:
        return " open"
    if tag == "ol" and values.get("start", "").isdecimal():
        return f' start="{escape(values["start"])}"'
    if tag in ("td", "th") and (align := re.fullmatch(r"text-align:(left|center|right)", values.get("style", ""))):
        return f' class="{align[1]}"'
    return ""


_MARKDOWN = MarkdownIt("commonmark", {"html": True, "breaks": True}, renderer_cls=_Renderer)
_MARKDOWN.enable(["table", "strikethrough"])


def render_markdown(text: str, repository_path: str = "") -> Markup:
    """Markdown as HTML. With `repository_path`, such as `/octo/widgets`, `#1` links to an issue there."""
    sanitizer = _Sanitizer(repository_path)
    sanitizer.feed(_MARKDOWN.render(text))
    return Markup(sanitizer.finish())  # noqa: S704 - the sanitizer escapes
