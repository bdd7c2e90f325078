"""What a stranger wrote, as somebody sees it who reads the rendered page.

What a maintainer could not see must not steer an agent. Refuses to know who wrote a text and where it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from runner.characters import show_invisible

_OPENER = re.compile(r"<!--|<\?|<!(?=[A-Za-z\[])")
"""HTML that browsers show nothing of: comments end with `-->`, and what they treat as comments ends with `>`.
See "bogus comment state" in the HTML standard, section 13.2.5."""

_MAY_CLAIM_BACKTICK = re.compile(r"[$\[|]|://|www\.|`{81}")
"""Mathematics, links, tables, bare addresses, runs of backticks too long for GitHub: extensions in which its parser may
use up a backtick that opens a code span for ours."""


def reveal(text: str) -> str:
    """The text without HTML comments, and with every invisible character written out, as `⟨U+200B⟩`.

    A comment inside of a code block or a code span is code: it is seen, and it stays.
    """
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    return show_invisible("\n".join(_drop_hidden(lines)))


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines from `start` up to `end` that hold running text, or code where `hidden` is None."""

    start: int
    end: int
    hidden: tuple[str, ...] | None
    doubtful: bool = False
    """Whether GitHub's parser may not see the code spans that ours sees."""


def _drop_hidden(lines: Sequence[str]) -> Iterator[str]:
    """The text in pieces: code as it is, running text without its hidden parts, everything else read as HTML."""
    done = 0
    for block in [*_read_blocks("\n".join(lines)), _Block(len(lines), len(lines), None)]:
        if block.start > done:
            shown, still_open = _strip_html("\n".join(lines[done : block.start]))
            yield shown
            if still_open.startswith("<!--"):
                # Browsers show nothing of what follows, whatever it is.
                return
            done = block.start
        if block.end > done:
            yield _drop_from(block, "\n".join(lines[done : block.end]))
            done = block.end


def _read_blocks(text: str) -> Iterator[_Block]:
    for token in _parser().parse(text):
        if not token.map:
            continue
        start, end = token.map
        # What we take for indented code may be a paragraph of a GitHub footnote.
        if token.type == "fence" or (token.type == "code_block" and "[^" not in text):
            yield _Block(start, end, None)
        elif token.type == "inline":
            yield _Block(start, end, tuple(_find_hidden(token)), _is_doubtful(token))


def _is_doubtful(token: Token) -> bool:
    spans = [child.content for child in token.children or () if child.type == "code_inline"]
    return any(map(_OPENER.search, spans)) and bool(_MAY_CLAIM_BACKTICK.search(token.content))


def _find_hidden(token: Token) -> Iterator[str]:
    for child in token.children or ():
        if child.type == "hidden_html":
            yield child.content
        yield from _find_hidden(child)


def _drop_from(block: _Block, source: str) -> str:
    """Take the hidden parts out of a block's source; where they cannot be told from code, code that looks like them."""
    if block.hidden is None:
        return source
    shown = source
    for part in block.hidden:
        if part not in shown:
            # The marks of a quote or list stand between its lines.
            return "".join(_strip_html(source))
        shown = shown.replace(part, "", 1)
    return "".join(_strip_html(source)) if block.doubtful else shown


def _strip_html(text: str) -> tuple[str, str]:
    """The text without hidden HTML up to the one that never ends, and the rest from there on."""
    kept, at = [], 0
    while opener := _OPENER.search(text, at):
        kept.append(text[at : opener.start()])
        at = _find_end(text, opener.start())
        if at < 0:
            return "".join(kept), text[opener.start() :]
    return "".join([*kept, text[at:]]), ""


def _find_end(text: str, start: int) -> int:
    """Where the hidden HTML that starts here ends; -1 when none starts, or when it does not end."""
    if not (opener := _OPENER.match(text, start)):
        return -1
    closer = "-->" if opener[0] == "<!--" else ">"
    # From the second character on: `<!-->` is a whole comment.
    found = text.find(closer, start + 2)
    return found + len(closer) if found >= 0 else -1


def _read_hidden_html(state: StateInline, silent: bool) -> bool:
    """An inline rule of the parser; its own misses comments such as `<!-- a --->`."""
    end = _find_end(state.src, state.pos)
    if end < 0:
        return False
    if not silent:
        state.push("hidden_html", "", 0).content = state.src[state.pos : end]
    state.pos = end
    return True


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.inline.ruler.before("html_inline", "hidden_html", _read_hidden_html)
    return parser
