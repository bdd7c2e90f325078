"""The documents that set-up pages name: as links, and as plain text. The wheel contains them."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import Markup, escape

FOLDER = "/docs/"
"""The path of the documents on the set-up pages."""

PACKAGED, CHECKOUT = Path(__file__).with_name("_docs"), Path(__file__).parents[2] / "docs"

_NAMED = re.compile(r"(?<![\w/])docs/([a-z-]+\.md)(?![\w.])")


def find_document(name: str) -> Path | None:
    """The file of a document such as `machines.md`; None if there is none."""
    folder = PACKAGED if PACKAGED.is_dir() else CHECKOUT
    return folder / name if name in {path.name for path in folder.glob("*.md")} else None


def link_documents(text: str) -> Markup:
    """A text as HTML, in which each document that it names is a link."""
    return Markup(_NAMED.sub(_link, str(escape(text))))  # noqa: S704 - escaped before


def _link(found: re.Match[str]) -> str:
    if find_document(found[1]) is None:
        return found[0]
    return f'<a href="{FOLDER}{found[1]}" target="_blank">{found[0]}</a>'
