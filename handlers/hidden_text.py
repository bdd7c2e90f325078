"""What a stranger wrote, as somebody sees it who reads the rendered page.

What a maintainer could not see must not steer an agent: it is removed, or marked as unseen. Every rule is one named
step, so that a test can switch one off. Refuses to know who wrote a text and where it goes.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it.rules_block import StateBlock
from markdown_it.rules_block import reference as read_definition
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline import html_inline as read_tag
from markdown_it.rules_inline import image as read_image
from markdown_it.rules_inline import link as read_link
from markdown_it.token import Token

from handlers.markdown import AnyLink
from runner.characters import show_invisible

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
    "invisible characters",
)
"""What is done: `links` have titles, `definitions` are those of links; the words of a fence behind its first are its
info string."""

FOLDED, FOOTNOTE, DRAWN, BEYOND = "⟨folded⟩", "⟨footnote⟩", "⟨drawn⟩", "⟨beyond the table⟩"
"""Our marks, at what a page shows only to who unfolds it, at its very end if at all, as a picture, or not: the cells of
a row for which its table has no column."""

_OPENER = re.compile(r"<!--|<\?|<!(?=[A-Za-z\[])")
"""HTML that browsers show nothing of: comments end with `-->`, and what they treat as comments ends with `>`.
See "bogus comment state" in the HTML standard, section 13.2.5."""

_TAG = re.compile(r"<(/?)([A-Za-z][^\s/>]{0,99}+)((?:\"[^\"]*+\"|'[^']*+'|[^>\"']{1,50}+){0,100}+)>")
"""Bounded, for a text may open thousands of tags and close none."""

_OPEN_TAG = re.compile(r"</?[A-Za-z]")
_ATTRIBUTE = re.compile(r"([^\s=/\"'>]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'>]+))?")

_KNOWN_TAG = re.compile(
    r"a|abbr|b|bdo|blockquote|br|caption|cite|code|dd|del|details|dfn|div|dl|dt|em|figcaption|figure|h[1-6]|hr|i|img|ins"
    r"|kbd|li|mark|ol|p|picture|pre|q|rt|ruby|s|samp|small|source|span|strike|strong|sub|summary|sup|table|tbody|td"
    r"|tfoot|th|thead|time|tr|tt|ul|var|video|wbr",
    re.IGNORECASE,
)
"""Tags that GitHub shows with what is in them; others it drops, and `rp` browsers hide."""

_DRAWN = re.compile(r"(?:mermaid|geojson|topojson|stl|math)\b", re.IGNORECASE)
_INFO = re.compile(r"((?:`{3,}|~{3,})[ \t]*\S{0,20})([^\n]*)")
_FOOTNOTE = re.compile(r"^([ \t>*+-]*)(?=\[\^[^\]\s]+\]:)", re.MULTILINE)
_DELIMITERS = re.compile(r"[ \t>]*+\|?+[ \t]*+:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+\|?[ \t]*+")

_SUSPECT = re.compile(r"<[A-Za-z/!?]|!\[|\]\(|\]\[")
_MAY_CLAIM_BACKTICK = re.compile(
    r"\$[^$]*`[^$]*\$|\]\([^)\n]*`|\]\[[^\]\n]*`|\[\^|\]:|^[ \t|:>]*-[ \t|:-]*$|(?:://|www\.)\S*`|`{81}", re.MULTILINE
)
"""Mathematics, links, footnotes, tables, bare addresses, runs of backticks too long for GitHub: where its parser may
use up a backtick that opens a code span for ours."""

_IMAGE = re.compile(r"!\[(?:[^\[\]\\]|\\.|\[[^\[\]]*+\]){0,999}+\](?=[(\[])", re.DOTALL)
_TITLE = re.compile(r"(\]\(\s*(?:<[^<>\n]*+>|[^\s()]++))\s++(?:\"[^\"]*+\"|'[^']*+'|\([^()]*+\))\s*+(?=\))")

Edit = tuple[int, int, str]
"""What stands in the place of a part, given by its offsets."""


def reveal(text: str, steps: Collection[str] = STEPS) -> str:
    """The text as far as a reader of the page sees it, and with every invisible character written out.

    Comments, the alt text of images, titles and definitions of links, attributes and info strings go; folded parts,
    footnotes, drawings and unknown tags are marked. What stands in code is seen, and stays.
    """
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    shown = "\n".join(_drop_hidden(lines, steps))
    return show_invisible(shown) if "invisible characters" in steps else shown


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines from `start` up to `end`, and what is seen of them: None where that is nothing at all."""

    start: int
    end: int
    shown: str | None
    ends: bool = True
    """Whether what they hide ends in them."""


def _drop_hidden(lines: Sequence[str], steps: Collection[str]) -> Iterator[str]:
    """The text in pieces: code as it is, running text without its hidden parts, everything else read as HTML."""
    done = 0
    for block in [*_read_blocks(lines, steps), _Block(len(lines), len(lines), None)]:
        between = _strip_html("\n".join(lines[done : block.start]), steps) if block.start > done else None
        for shown, ends in (between or (None, True), (block.shown, block.ends)):
            if shown is not None:
                yield shown
            if not ends:
                # Browsers show nothing of what follows, whatever it is.
                return
        done = block.end


def _read_blocks(lines: Sequence[str], steps: Collection[str]) -> Iterator[_Block]:
    text = "\n".join(lines)
    for token in _parser().parse(text):
        start, end = token.map or (0, 0)
        source = "\n".join(lines[start:end])
        if token.type == "fence":
            yield _Block(start, end, _show_fence(source, token, steps))
        elif token.type == "code_block" and "[^" not in text:
            # What we take for indented code may be a paragraph of a GitHub footnote.
            yield _Block(start, end, source)
        elif token.type == "inline":
            yield _Block(start, end, _show_running_text(source, token, steps))
        elif token.type == "definition" and "definitions" in steps:
            yield _Block(start, end, None)
        elif token.type == "html_block":
            # Without the marks of a quote, which would end a tag of several lines.
            content = token.content.removesuffix("\n")
            shown, ends = _strip_html(content, steps, in_block=True)
            yield _Block(start, end, source if shown == content else shown, ends)


def _show_fence(source: str, token: Token, steps: Collection[str]) -> str:
    mark = f" {DRAWN}" if "drawings" in steps and _DRAWN.match(token.info.strip()) else ""
    return _INFO.sub(lambda found: found[1] + ("" if "info strings" in steps else found[2]) + mark, source, count=1)


def _show_running_text(source: str, token: Token, steps: Collection[str]) -> str:
    shown = None if _is_doubtful(token) else _change(source, token.content, _list_edits(token, steps))
    shown = _strip_everything(source, steps) if shown is None else shown
    shown = _FOOTNOTE.sub(rf"\1{FOOTNOTE}", shown) if "footnotes" in steps else shown
    return _mark_cells(shown) if "cells" in steps and "|" in shown else shown


def _mark_cells(shown: str) -> str:
    """A paragraph that may be a table for GitHub, with our mark before the cells that it leaves out."""
    lines = shown.split("\n")
    place = next((at for at, line in enumerate(lines) if at and _DELIMITERS.fullmatch(line)), len(lines))
    for line in lines[place : place + 1]:
        columns = line.strip(" \t|>").count("|") + 1
        row = re.compile(rf"^([ \t>]*+\|?+(?:(?:\\.|[^|\\])*+\|){{{columns}}})(?=.*[^\s|])")
        lines[place + 1 :] = [row.sub(rf"\1{BEYOND}", after, count=1) for after in lines[place + 1 :]]
    return "\n".join(lines)


def _is_doubtful(token: Token) -> bool:
    """Whether GitHub's parser may not see the code spans that ours sees, and they hold what it would hide."""
    spans = [child.content for child in token.children or () if child.type == "code_inline"]
    return any(map(_SUSPECT.search, spans)) and bool(_MAY_CLAIM_BACKTICK.search(token.content))


def _list_edits(token: Token, steps: Collection[str]) -> Iterator[Edit]:
    """What to change in the content of a block, in order. Whatever stands in an image's alt text goes with that."""
    for child in token.children or ():
        if child.type != "hidden":
            continue
        step, start, end = child.meta["hidden"]
        if step == "tags":
            found = _TAG.fullmatch(token.content, start, end)
            yield start, end, _show_tag(found, steps) if found else ""
        elif step in steps:
            yield start, end, child.content


def _change(source: str, content: str, edits: Iterable[Edit]) -> str | None:
    """A block's source with its content edited; None where the content cannot be found in it."""
    starts, shifts, at, inner = [], [], 0, 0
    for line, shown in zip(source.split("\n"), content.split("\n"), strict=False):
        # The marks of quotes and lists stand before it.
        found = line.rfind(shown.strip())
        if found < 0:
            return None
        starts.append(inner)
        shifts.append(at + found - (len(shown) - len(shown.lstrip())) - inner)
        at, inner = at + len(line) + 1, inner + len(shown) + 1
    parts, done = [], 0
    for start, end, shown in edits:
        first, last = (offset + shifts[bisect(starts, offset) - 1] for offset in (start, end))
        parts += [source[done:first], shown]
        done = last
    return "".join([*parts, source[done:]])


def _strip_everything(source: str, steps: Collection[str]) -> str:
    """Where hidden parts cannot be told from code: without what looks like one."""
    shown, _ = _strip_html(source, steps)
    shown = _IMAGE.sub("![]", shown) if "images" in steps else shown
    return _TITLE.sub(r"\1", shown) if "links" in steps else shown


def _strip_html(text: str, steps: Collection[str], *, in_block: bool = False) -> tuple[str, bool]:
    """The text as far as a browser shows it, and whether what is hidden ends in it. `in_block`: all of it is HTML."""
    kept, at, ends = [], 0, True
    while "comments" in steps and (opener := _OPENER.search(text, at)):
        kept.append(text[at : opener.start()])
        at = _find_end(text, opener.start())
        if at < 0:
            ends = text[opener.start() :][:4] != "<!--"
            at = len(text)
    shown = "".join([*kept, text[at:]])
    if "attributes" in steps and in_block and (left := _OPEN_TAG.search(shown, _find_last_tag(shown))):
        shown, ends = shown[: left.start()], False
    return _show_tags(shown, steps), ends


def _find_last_tag(html: str) -> int:
    """Where the last whole tag ends."""
    return max((found.end() for found in _TAG.finditer(html)), default=0)


def _show_tags(html: str, steps: Collection[str]) -> str:
    return _TAG.sub(lambda found: _show_tag(found, steps), html)


def _show_tag(found: re.Match[str], steps: Collection[str]) -> str:
    """A tag with what a page shows something of: where it leads, and that it is not folded."""
    closing, name, rest = found.groups()
    attributes = {key.lower(): value for key, value in _ATTRIBUTE.findall(rest)}
    kept = "".join(f" {key}={attributes[key]}" for key in ("href", "src") if attributes.get(key))
    kept += " open" * ("open" in attributes)
    tag = f"<{closing}{name}{kept if 'attributes' in steps else rest}>"
    if not _KNOWN_TAG.fullmatch(name):
        return f"⟨{tag}⟩" if "unknown tags" in steps else tag
    folded = name.lower() == "details" and not closing and "open" not in attributes
    return tag + FOLDED * (folded and "folded parts" in steps)


def _find_end(text: str, start: int) -> int:
    """Where the hidden HTML that starts here ends; -1 when none starts, or when it does not end."""
    if not (opener := _OPENER.match(text, start)):
        return -1
    closer = "-->" if opener[0] == "<!--" else ">"
    # From the second character on: `<!-->` is a whole comment.
    found = text.find(closer, start + 2)
    return found + len(closer) if found >= 0 else -1


# The parser

Read = Callable[[StateInline, bool], bool]


def _read_hidden_html(state: StateInline, silent: bool) -> bool:
    """An inline rule of the parser; its own misses comments such as `<!-- a --->`."""
    end = _find_end(state.src, state.pos)
    if end < 0:
        return False
    if not silent:
        _note(state, "comments", state.pos, end, "")
    state.pos = end
    return True


def _note(state: StateInline, step: str, start: int, end: int, shown: str) -> None:
    token = state.push("hidden", "", 0)
    token.content, token.meta = shown, {"hidden": (step, start, end)}


def _read_tag(state: StateInline, silent: bool) -> bool:
    start = state.pos
    found = read_tag(state, silent)
    if found and not silent:
        _note(state, "tags", start, state.pos, "")
    return found


def _read_image(state: StateInline, silent: bool) -> bool:
    start = state.pos
    found = read_image(state, silent)
    if found and not silent:
        _note(state, "images", start, state.pos, f"![]{_render_target(state.tokens[-1], 'src')}")
    return found


def _read_link(state: StateInline, silent: bool) -> bool:
    start, before = state.pos, len(state.tokens)
    found = read_link(state, silent)
    if found and not silent:
        opening = next(token for token in state.tokens[before:] if token.type == "link_open")
        label_end = state.md.helpers.parseLinkLabel(_at(state, start), start, True)
        by_name = state.src[label_end + 1 : label_end + 2] != "(" or "label" in opening.meta
        if by_name or "title" in opening.attrs:
            # A link by the name of a definition needs its address: definitions are not shown.
            step = "definitions" if by_name else "links"
            _note(state, step, label_end + 1, state.pos, _render_target(opening, "href"))
    return found


def _at(state: StateInline, pos: int) -> StateInline:
    """The same text, to be read from another place."""
    again = StateInline(state.src, state.md, state.env, [])
    again.pos, again.posMax = pos, state.posMax
    return again


def _render_target(token: Token, name: str) -> str:
    address = str(token.attrs[name])
    return f"(<{address}>)" if set(address) & set("()") else f"({address})"


def _read_definition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A block rule of the parser; what it takes for the definition of a link named `^1` is a footnote of GitHub's."""
    at = state.bMarks[start] + state.tShift[start]
    return not state.src.startswith("[^", at) and read_definition(state, start, end, silent)


@cache
def _parser() -> AnyLink:
    parser = AnyLink("commonmark", {"inline_definitions": True, "store_labels": True})
    parser.inline.ruler.before("html_inline", "hidden_html", _read_hidden_html)
    parser.inline.ruler.at("html_inline", _read_tag)
    parser.inline.ruler.at("image", _read_image)
    parser.inline.ruler.at("link", _read_link)
    parser.block.ruler.at("reference", _read_definition)
    return parser
