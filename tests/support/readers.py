"""What GitHub makes of Markdown that we post, and what an agent is given of what strangers wrote."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt, rules_block
from markdown_it.token import Token

MENTION = re.compile(r"(?<![A-Za-z0-9])@[A-Za-z0-9]")
CLOSING = re.compile(
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+(?:[\w.-]+/[\w.-]+)?(?:#|GH-)\d|[\w.-]+/[\w.-]+#\d", re.IGNORECASE
)


def make_parser() -> MarkdownIt:
    """CommonMark with tables: for GitHub's parser, unlike markdown-it, what opens a fence is no head of one."""
    parser = MarkdownIt("commonmark")
    parser.block.ruler.after("fence", "tables", rules_block.table, {"alt": ["paragraph", "reference"]})
    return parser


def github_reads(text: str) -> list[Token]:
    """The tokens of the text in the dialect that GitHub uses, as far as markdown-it knows it, flat."""
    tokens = make_parser().enable("strikethrough").parse(text)
    return [token for block in tokens for token in (block, *(block.children or ()))]


def find_live(text: str) -> list[str]:
    """What in a posted text notifies, closes, embeds or hides."""
    tokens = github_reads(text)
    prose = "\0".join(token.content for token in tokens if token.type == "text")
    found = [live[0] for pattern in (MENTION, CLOSING) for live in pattern.finditer(prose)]
    return found + [token.content for token in tokens if token.type in ("html_block", "html_inline", "image")]


def ends_outside(text: str) -> bool:
    """Whether what follows `text` is a paragraph of its own."""
    opening, probe, _ = make_parser().parse(f"{text}\n\nPROBE")[-3:]
    return (opening.type, opening.level, probe.content) == ("paragraph_open", 0, "PROBE")


def find_nonce(prompt: str) -> str:
    """The number of the fences in a prompt, as its own words say it."""
    used = re.search(r"`<untrusted-([0-9a-f]{16}) \.\.\.>`", prompt)
    assert used
    return used[1]


def read_blocks(prompt: str) -> dict[str, str]:
    """What stands between true markers, by source. They must come in pairs, one pair after the other."""
    marker = re.compile(rf'<(/?)(untrusted|steering)-{find_nonce(prompt)}(?: source="([^"\n]*)")?>')
    found: dict[str, str] = {}
    told = prompt.index("## What is known")
    marks = list(marker.finditer(prompt, told))
    for opening, closing in zip(marks[::2], marks[1::2], strict=True):
        assert (opening[1], closing[1], opening[2]) == ("", "/", closing[2])
        found[opening[3]] = prompt[opening.end() : closing.start()].removeprefix("\n").removesuffix("\n")
    return found
