"""Removes from a line what the page does not show: comments, tags, alt text, titles. Pure. Takes linear time."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from html import unescape

from handlers.text.markdown import LANGUAGES

STEPS = (
    "comments",
    "images",
    "links",
    "definitions",
    "attributes",
    "unknown tags",
    "folded parts",
    "footnotes",
    "cells",
    "info strings",
    "drawings",
    "formulas",
    "tiny text",
    "far text",
    "invisible characters",
)
"""The names of the steps, by what each step removes or marks.

`links` removes the titles of links, and `definitions` marks definitions of links. `info strings` removes the words
after the opening marks of a fence, except its language. A test can leave out a step, to show what the step is for.
"""

FOLDED, FOOTNOTE, DRAWN, TINY, FAR = "⟨folded⟩", "⟨footnote⟩", "⟨drawn⟩", "⟨tiny⟩", "⟨far off⟩"
"""Our marks for text that a page shows only after a click, at its very end or not at all, as a picture, too small to
read, or so far to the right or below that no reader looks there."""

UNSEEN, BEYOND = "⟨perhaps unseen⟩", "⟨beyond the table⟩"
"""Our marks for a line that the page may not show, and for the cells of a row for which the table has no columns."""

DRAWN_LANGUAGE = re.compile(r"(?:mermaid|geojson|topojson|stl|math)\b", re.IGNORECASE)
"""The languages of code blocks that GitHub shows as pictures."""

LANGUAGE = re.compile(rf"(?:{DRAWN_LANGUAGE.pattern}|(?:{LANGUAGES})(?![\w+#-]))", re.IGNORECASE)
"""The languages at the beginning of an info string that an agent is shown. A page does not show info strings, so all
other words are removed.
"""


class Trust(IntEnum):
    """How certain it is what the page shows of a line and of the lines below it."""

    CERTAIN = 0
    NO_CODE = 1
    """Up to the end of the paragraph, nothing counts as code, so each rule applies to all of the text."""
    MARKED = 2
    """Up to the end of the paragraph, something may be hidden."""
    LOST = 3
    """Up to the end of the text, something may be hidden."""


_SPECIAL = re.compile(r"!\[|[\\`<\[\]$]")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_TICKS = re.compile(r"`+")
_MAX_TICKS = 80
"""The most backticks that open a code span. For GitHub's parser, longer runs are text."""

_URL = re.compile(r"(?:://|www\.)[^ \t\v\f<]*", re.IGNORECASE)
"""A bare address: backticks in it are part of it."""

TAG = re.compile(
    r"<(/?)([A-Za-z][A-Za-z0-9-]*+)"
    r"((?:[ \t]++[A-Za-z_:][\w.:-]*+(?:[ \t]*+=[ \t]*+(?:\"[^\"<]*+\"|'[^'<]*+'|[^\s\"'=<>`]++))?+)*+)[ \t]*+/?>",
    re.ASCII,
)
_LOOSE_TAG = re.compile(r"</?([A-Za-z][^\s<>\"'`/]*+)[^<>\"'`]*>")
"""Something that is text in a paragraph, but a tag in raw HTML."""

_BOGUS = re.compile(r"<(?:\?[^<>`]*\?|!\[CDATA\[[^<>`]*\]\]|![A-Za-z][^<>`]*)>")
"""What browsers treat as a comment. See "bogus comment state" in the HTML standard, section 13.2.5."""

_BOGUS_IN_HTML = re.compile(r"<(?:!(?!--|\[)|/(?![A-Za-z]))[^<>`]*>")
ADDRESS = re.compile(r"<(?:[A-Za-z][A-Za-z0-9.+-]{1,31}:[^\s<>`]*|[A-Za-z0-9][\w.+-]*@[A-Za-z0-9.-]+)>", re.ASCII)
"""An address between angle brackets, which a page shows."""

_ATTRIBUTE = re.compile(r"([^\s=/\"'>]++)(?:[ \t]*=[ \t]*(\"[^\"]*\"|'[^']*'|[^\s\"'>]+))?")
_TARGET = (
    r"\([ \t]*+((?:[^\s()<>`\\]|\([^\s()<>`\\]*\))*+)"
    r"(?:[ \t]++(?:\"[^\"`\\<]*\"|'[^'`\\<]*'|\([^()`\\<]*\)))?+[ \t]*+\)"
)
_LINK_END = re.compile(rf"\]{_TARGET}")
_IMAGE = re.compile(rf"!\[[^\[\]\\`<]*\]{_TARGET}")
_NO_IMAGE = re.compile(r"!\[[^\[\]\\`<]*\](?![(\[])")
_NOTE = re.compile(r"\[\^[^\[\]`<\\]*\]")
_REFERENCE = re.compile(r"\]\[(?!\^)")

_KNOWN_TAG = re.compile(
    r"a|abbr|b|blockquote|br|caption|cite|code|dd|del|details|dfn|div|dl|dt|em|figcaption|figure|h[1-6]|hr|i|img|ins"
    r"|kbd|li|mark|ol|p|picture|pre|q|rt|ruby|s|samp|small|source|span|strike|strong|sub|summary|sup|table|tbody|td"
    r"|tfoot|th|thead|time|tr|tt|ul|var|wbr",
    re.IGNORECASE,
)
"""Tags that GitHub keeps, and whose contents are visible as they are written.

Not among them are tags that GitHub removes, `rp` and `video`, whose contents browsers hide, and `bdo`, which reverses
the letters.
"""

_SIZES = {
    **dict.fromkeys(("small", "sub", "sup"), 0.75),
    **dict.fromkeys(("code", "h6", "kbd", "pre", "samp", "tt"), 0.85),
    "rt": 0.5,
}
"""Elements that make letters smaller in browsers and on GitHub's pages, and the factor for each."""
_SMALLEST = 0.49
"""Letters with a smaller part of the usual size cannot be read. An index of an index, as in a formula, has 0.56."""

_EMPTY = frozenset({"br", "hr", "img", "source", "wbr"})
"""Elements without contents."""

_HIDING = re.compile(r"rp|template|audio|video|canvas|object|svg|math|datalist|select|dialog", re.IGNORECASE)
"""Elements whose contents a browser does not show, or shows in another form."""

_PLAIN_CONTENT = re.compile(r"[^<`\\]*+</([A-Za-z]++)>")
"""The contents of an element, if they have no tags and no code, with its end tag."""

RAW_TEXT = re.compile(r"script|style|textarea|title|xmp|iframe|noembed|noframes|noscript|plaintext", re.IGNORECASE)
"""Elements in which tags and comments are text for a browser."""

_ADDRESSES = {"a": "href", "img": "src", "source": "src", "video": "src"}

_SIZES_KEPT = frozenset({"border", "cellpadding", "cellspacing", "height", "hspace", "size", "vspace", "width"})
"""Attributes that take space on the page. Large ones are kept, because they can move text far away (`distance.py`)."""
_SIZED = frozenset({"hr", "img", "table", "tbody", "td", "tfoot", "th", "thead", "tr"})
_PIXELS = re.compile(r"\s*(\d{1,6})(?![\d.]*%)")
_ROOM = 100
"""Pixels. An attribute with this size or a smaller one is removed."""

Found = tuple[str, int, Trust]
"""What the page shows of a part of a line, where the part ends in the line, and how certain this is."""


class Editor:
    """Removes hidden parts from lines.

    `defines` and `has_footnotes` say whether the text has definitions of links, and footnotes. Without them, brackets
    are shown as brackets.
    """

    def __init__(self, steps: Collection[str], *, defines: bool, has_footnotes: bool) -> None:
        self._steps = steps
        self._defines = defines
        self._has_footnotes = has_footnotes
        self._open: list[tuple[str, float]] = []
        """The open elements, each with the size of the letters in it, as a part of the usual size."""
        self._open_before = 0
        """How many of the open elements were opened before this block."""

    def begin_block(self) -> None:
        """Begin another paragraph, quote or item. A page may ignore an end tag in it for an element opened before."""
        self._open_before = len(self._open)

    def edit(self, line: str, *, certain: bool, html: bool) -> tuple[str, Trust]:
        """What the page shows of a line, and how certain this is.

        `html` says that the line may be raw HTML. `certain` says that nothing is open before the line in its paragraph,
        so that its code spans and escapes are what they look like.
        """
        part = _Part(line, html)
        shown, done, trust = [], 0, Trust.CERTAIN if certain else Trust.NO_CODE
        while found := _SPECIAL.search(line, done):
            shown.append(line[done : found.start()])
            piece, done, worse = self._show(part, found.start(), certain=trust is Trust.CERTAIN and not html)
            shown.append(piece)
            trust = max(trust, worse)
        shown.append(line[done:])
        return "".join(shown), trust if certain or trust > Trust.NO_CODE else Trust.CERTAIN

    def _show(self, part: _Part, at: int, *, certain: bool) -> Found:
        line = part.line
        match line[at]:
            case "\\":
                escapes = certain and line[at + 1 : at + 2] in _PUNCTUATION and not part.is_in_url(at)
                return line[at : at + 1 + escapes], at + 1 + escapes, Trust.CERTAIN
            case "`":
                return part.show_code(at, certain=certain)
            case "$":
                return "$", at + 1, Trust.NO_CODE
            case "!":
                return self._show_image(line, at)
            case "[":
                return self._show_bracket(part, at)
            case "]":
                return self._show_link_end(line, at)
        return self._show_html(part, at, certain=certain)

    def _show_image(self, line: str, at: int) -> Found:
        if "images" not in self._steps or (self._has_footnotes and line.startswith("![^", at)):
            return "!", at + 1, Trust.CERTAIN
        if found := _IMAGE.match(line, at):
            return f"![]({found[1]})", found.end(), Trust.CERTAIN
        harmless = not self._defines and _NO_IMAGE.match(line, at)
        return "![", at + 2, Trust.CERTAIN if harmless else Trust.MARKED

    def _show_bracket(self, part: _Part, at: int) -> Found:
        if not part.line.startswith("[^", at) or "footnotes" not in self._steps:
            return "[", at + 1, Trust.CERTAIN
        # A page does not show the label of a footnote. GitHub removes a label over several lines, even if there is no
        # such footnote.
        mark = FOOTNOTE if self._has_footnotes else ""
        return f"{mark}[", at + 1, Trust.CERTAIN if _NOTE.match(part.line, at) else Trust.MARKED

    def _show_link_end(self, line: str, at: int) -> Found:
        if line.startswith("](", at) and "links" in self._steps:
            if found := _LINK_END.match(line, at):
                return f"]({found[1]})", found.end(), Trust.CERTAIN
            return "](", at + 2, Trust.MARKED
        hides = self._defines and _REFERENCE.match(line, at)
        return "]", at + 1, Trust.MARKED if hides else Trust.CERTAIN

    def _show_html(self, part: _Part, at: int, *, certain: bool) -> Found:
        line, html = part.line, part.html
        comments = "comments" in self._steps
        if line.startswith("<!--", at):
            end = part.find_comment_end(at)
            found = None
        else:
            found = _BOGUS.match(line, at) or (html and _BOGUS_IN_HTML.match(line, at)) or None
            end = found.end() if found else -1
        if end >= 0:
            dropped = line[at:end]
            # If this may be code instead of a comment, a tag inside may be a real one.
            trust = Trust.LOST if not certain and "<" in dropped[1:] else Trust.CERTAIN
            return "" if comments else dropped, end, trust
        if not html and (found := ADDRESS.match(line, at)):
            return found[0], found.end(), Trust.CERTAIN
        if found := TAG.match(line, at):
            shown = self._show_tag(found) + TINY * self._follow_size(found, certain=certain or html)
            return shown, found.end(), _judge_tag(line, found, found[2])
        if found := _LOOSE_TAG.match(line, at):
            return (
                self._show_loose_tag(found),
                found.end(),
                _judge_tag(line, found, found[1]),
            )
        following = line[at + 1 : at + 2]
        if not following.isascii() or not (following.isalpha() or following in ("/", "!", "?")) or not following:
            return "<", at + 1, Trust.CERTAIN
        return "<", at + 1, self._judge_open_tag(line, at, html=html)

    def _judge_open_tag(self, line: str, at: int, *, html: bool) -> Trust:
        """How certain the following text is if HTML begins here and does not end on this line."""
        if html or line.startswith(("<?", "<![CDATA["), at):
            return Trust.LOST
        if line.startswith("<!", at) and not re.match(r"<!(?:--|[A-Za-z])", line[at : at + 4]):
            return Trust.CERTAIN
        if line.startswith("</", at) and not line[at + 2 : at + 3].isalpha():
            return Trust.CERTAIN
        return Trust.MARKED

    def _follow_size(self, tag: re.Match[str], *, certain: bool) -> bool:
        """Whether the letters after this tag are too small to read.

        An end tag counts only for the last opened element, because browsers ignore some of the other end tags.
        """
        name = tag[2].lower()
        if tag[1]:
            if certain and len(self._open) > self._open_before and self._open[-1][0] == name:
                self._open.pop()
            return False
        if name in _EMPTY:
            return False
        size = (self._open[-1][1] if self._open else 1.0) * _SIZES.get(name, 1.0)
        self._open.append((name, size))
        return "tiny text" in self._steps and name in _SIZES and size < _SMALLEST

    def _show_loose_tag(self, found: re.Match[str]) -> str:
        shown = f"⟨{found[0]}⟩" if "unknown tags" in self._steps else found[0]
        return shown + FOLDED * (found[0].lower().startswith("<details") and "folded parts" in self._steps)

    def _show_tag(self, found: re.Match[str]) -> str:
        """A tag with only the attributes that readers can notice: an address, much space, and that it is not folded."""
        closing, name, rest = found.groups()
        # Of several attributes with one name, the first counts.
        attributes = {key.lower(): value for key, value in reversed(_ATTRIBUTE.findall(rest))}
        known = _KNOWN_TAG.fullmatch(name)
        key = _ADDRESSES.get(name.lower(), "")
        address = attributes.get(key, "").strip()
        kept = f" {key}={address}" if address and not closing and not re.search(r"\s", address) else ""
        # Of several `details` elements with one name, a browser opens only one.
        is_open = "open" in attributes and "name" not in attributes
        kept += " open" * (is_open and name.lower() == "details")
        if name.lower() in _SIZED and not closing:
            # Readers see a picture in its space, so its height and width are left out.
            kept += "".join(_name_room(attributes, ("height", "width") if name.lower() == "img" else ()))
        tag = f"<{closing}{name}{kept if 'attributes' in self._steps else rest}>"
        if not known:
            return f"⟨{tag}⟩" if "unknown tags" in self._steps else tag
        folded = name.lower() == "details" and not closing and not is_open
        # GitHub treats `<pre lang=mermaid>` as a fence with this language.
        language = unescape(attributes.get("lang", "")).strip(" \t\"'")
        drawn = name.lower() == "pre" and DRAWN_LANGUAGE.match(language) is not None
        if "dir" in attributes and "unknown tags" in self._steps:  # It may change the order of words and numbers.
            tag = f"⟨{tag}⟩"
        tag += DRAWN * (drawn and "drawings" in self._steps)
        return tag + FOLDED * (folded and "folded parts" in self._steps)


def _name_room(attributes: Mapping[str, str], dropped: Collection[str]) -> Iterator[str]:
    """The attributes that take much space, each with its pixels, without those in `dropped`."""
    for key in sorted(_SIZES_KEPT.intersection(attributes).difference(dropped)):
        pixels = _PIXELS.match(unescape(attributes[key]).strip("\"'"))
        if pixels and int(pixels[1]) > _ROOM:
            yield f" {key}={int(pixels[1])}"


def _judge_tag(line: str, tag: re.Match[str], name: str) -> Trust:
    """How certain the text after a tag is. It is also certain if all that the element hides is on this line."""
    if RAW_TEXT.fullmatch(name):
        return Trust.LOST
    if tag[0].startswith("</") or not _HIDING.fullmatch(name):
        return Trust.CERTAIN
    end = _PLAIN_CONTENT.match(line, tag.end())
    return Trust.CERTAIN if end and end[1].lower() == name.lower() else Trust.LOST


class _Part:
    """A line, with cached results about it."""

    def __init__(self, line: str, html: bool) -> None:
        self.line = line
        self.html = html
        self._last_closer = line.rfind("-->")
        self._runs: dict[int, list[int]] = {}
        """The length of runs of backticks -> the places where these runs begin."""
        self._urls: list[tuple[int, int]] | None = None

    def show_code(self, at: int, *, certain: bool) -> Found:
        """An unchanged code span. If the backticks open none on this line, the rest of the paragraph is uncertain."""
        run = _TICKS.match(self.line, at)
        length = run.end() - at if run else 1
        if not certain:
            return self.line[at : at + length], at + length, Trust.NO_CODE
        starts = self._find_runs().get(length, [])
        place = bisect_left(starts, at + length)
        if place == len(starts) or length > _MAX_TICKS or self.is_in_url(at):
            return self.line[at : at + length], at + length, Trust.NO_CODE
        end = starts[place] + length
        return self.line[at:end], end, Trust.CERTAIN

    def _find_runs(self) -> dict[int, list[int]]:
        if not self._runs:
            for found in _TICKS.finditer(self.line):
                self._runs.setdefault(found.end() - found.start(), []).append(found.start())
        return self._runs

    def is_in_url(self, at: int) -> bool:
        """Whether a place is in a bare address. Backticks and backslashes in an address are part of it."""
        if self._urls is None:
            self._urls = [found.span() for found in _URL.finditer(self.line)]
        place = bisect_left(self._urls, (at, 0)) - 1
        return place >= 0 and at < self._urls[place][1]

    def find_comment_end(self, at: int) -> int:
        """Where the comment that begins here ends. -1 if it does not end on this line, or if parsers disagree."""
        if self._last_closer < at + 4 or self.line.startswith(("<!-->", "<!--->"), at):
            return -1
        end = self.line.index("-->", at + 4)
        return -1 if "--!>" in self.line[at:end] else end + 3
