"""Lists the targets of an issue's images and links for the agent. The service does not open them.

Pure. Takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_LINKS = 20
MAX_ADDRESS = 120
"""The most characters of an address that are shown."""

_FENCE = re.compile(r"[ >*+\-\d.)]*(`{3,}(?=[^`]*$)|~{3,})")
_CODE = re.compile(r"(?<!`)(`+)(?!`)[^`]*(?<!`)\1(?!`)")
_ADDRESS = re.compile(
    r"(?:(?P<image>!\[\])|(?<=\]))\((?P<target>[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)?)\)"
    r"|<(?P<tag>[A-Za-z]\w*) (?:href|src)=[\"']?(?P<held>[^\s\"'<>]+)"
    r"|\b(?P<bare>(?:(?:https?|ftp)://|www\.)[^\s<>\"`]+)",
    re.IGNORECASE,
)


def list_links(texts: Iterable[str]) -> tuple[str, ...]:
    """The first `MAX_LINKS` addresses in Markdown, without repeated ones, as `image: ADDRESS` or `link: ADDRESS`.

    The texts are as `hidden_text.reveal` returns them.
    """
    found: dict[str, None] = {}
    for text in texts:
        for link in _find_links(text):
            found[link[:MAX_ADDRESS]] = None
            if len(found) == MAX_LINKS:
                return tuple(found)
    return tuple(found)


def _find_links(text: str) -> Iterator[str]:
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            for found in _ADDRESS.finditer(_CODE.sub(" ", line)):
                yield from _name(found)


def _name(found: re.Match[str]) -> Iterator[str]:
    if found["tag"]:
        image = found["tag"].lower() in ("img", "source", "video")
        yield f"{'image' if image else 'link'}: {found['held']}"
    elif found["bare"]:
        yield f"link: {found['bare'].rstrip('.,;:!?)')}"
    elif found["target"]:
        yield f"{'image' if found['image'] else 'link'}: {found['target']}"
