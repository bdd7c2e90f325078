"""What a stranger wrote, as somebody sees it who reads the rendered page.

What a maintainer could not see must not steer an agent. Refuses to know who wrote a text and where it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from runner.characters import show_invisible

_OPENER = re.compile(r"<!--|<!\[CDATA\[|<\?|<!(?=[A-Za-z])")
_CLOSERS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>", "<!": ">"}
"""HTML that browsers show nothing of: comments, and what they treat as such (CommonMark 0.31, section 6.6)."""


def reveal(text: str) -> str:
    """The text without HTML comments, and with every invisible character written out, as `⟨U+200B⟩`.

    A comment inside of a code block or a code span is code: it is seen, and it stays.
    """
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    return show_invisible("\n".join(_drop_hidden(lines)))


def _drop_hidden(lines: Sequence[str]) -> Iterator[str]:
    """The text in pieces: code as it is, running text without its hidden parts, everything else read as HTML."""
    done = 0
    for start, end, hidden in _read_blocks("\n".join(lines)):
        if start > done:
            piece, open_ended = _strip_html("\n".join(lines[done:start]))
            yield piece
            if open_ended:
                return
        block = "\n".join(lines[max(start, done) : end])
        yield block if hidden is None else _remove(block, hidden)
        done = end
    if done < len(lines):
        yield _strip_html("\n".join(lines[done:]))[0]


def _read_blocks(text: str) -> list[tuple[int, int, list[str] | None]]:
    """First line, line after the last, and hidden parts (None: code) of every block that holds text or code."""
    blocks: dict[tuple[int, int], list[str] | None] = {}
    for token in _parser().parse(text):
        if not token.map or token.type not in ("inline", "fence", "code_block"):
            continue
        place = (token.map[0], token.map[1])
        hidden = list(_find_hidden(token.children or ())) if token.type == "inline" else None
        # The cells of a table's row share their line.
        blocks[place] = [*(blocks.get(place) or ()), *hidden] if hidden is not None else None
    return [(start, end, hidden) for (start, end), hidden in blocks.items()]


def _find_hidden(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "hidden_html":
            yield token.content
        yield from _find_hidden(token.children or ())


def _remove(block: str, hidden: Sequence[str]) -> str:
    """Take the hidden parts out of a block's source, whose lines carry the marks of the quotes and lists around it."""
    for part in hidden:
        source = r"\n[ \t>]*".join(re.escape(line).replace(r"\|", r"\\?\|") for line in part.split("\n"))
        block, found = re.subn(source, "", block, count=1)
        if not found:
            return _strip_html(block)[0]
    return block


def _strip_html(text: str) -> tuple[str, bool]:
    """The text without hidden HTML, and whether the last of it was never closed: browsers then hide all that follows."""
    kept, at = [], 0
    while opener := _OPENER.search(text, at):
        kept.append(text[at : opener.start()])
        at = _find_end(text, opener.start())
        if at < 0:
            return "".join(kept), True
    return "".join([*kept, text[at:]]), False


def _find_end(text: str, start: int) -> int:
    """Where the hidden HTML that starts here ends; -1 when none starts, or when it does not end."""
    opener = _OPENER.match(text, start)
    if not opener:
        return -1
    closer = _CLOSERS[opener[0]]
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
    parser = MarkdownIt("commonmark").enable("table")
    parser.inline.ruler.before("html_inline", "hidden_html", _read_hidden_html)
    return parser
