"""Finds where the images and links of an issue lead: they are listed for the agent, and nobody follows them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from handlers.markdown import AnyLink

MAX_LINKS = 20
MAX_ADDRESS = 120
"""Characters of each that are shown."""

_BARE = re.compile(r"\b(?:(?:https?|ftp)://|www\.)[^\s<>\"`]+")
_IN_TAG = re.compile(r"<(\w+)[^>]* (?:href|src)=[\"']?([^\s\"'>]+)", re.IGNORECASE)


def list_links(texts: Iterable[str]) -> tuple[str, ...]:
    """The first addresses in Markdown that is `reveal`ed, each once, with `image: ` or `link: ` before it."""
    found = dict.fromkeys(link[:MAX_ADDRESS] for text in texts for link in _find_links(text))
    return tuple(found)[:MAX_LINKS]


def _find_links(text: str) -> Iterator[str]:
    for block in _parser().parse(text):
        for token in (block, *(block.children or ())):
            if token.type == "image":
                yield f"image: {token.attrs['src']}"
            elif token.type == "link_open":
                yield f"link: {token.attrs['href']}"
            elif token.type in ("html_inline", "html_block"):
                for name, address in _IN_TAG.findall(token.content):
                    yield f"{'image' if name.lower() in ('img', 'source', 'video') else 'link'}: {address}"
            elif token.type == "text":
                yield from (f"link: {address.rstrip('.,;:!?)')}" for address in _BARE.findall(token.content))


@cache
def _parser() -> AnyLink:
    return AnyLink("commonmark")
