"""Markdown as far as its blocks: headings and fences, without a look at the words in them."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token


def parse_blocks(text: str) -> list[Token]:
    """The blocks of a CommonMark text, in order. Takes no more than linear time on what strangers write."""
    return _parser().parse(text)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.core.ruler.disable("inline")
    return parser
