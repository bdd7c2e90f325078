"""Every small change of a template (HTML pages, prompts in Markdown) that a test should notice. Pure, too."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.mutants import Edit, Mutant, Text

_CONDITION = re.compile(rb"\{%-?\s*(?:el)?if\s+(.+?)\s*-?%\}")
_SHOWN = re.compile(rb"\{\{-?(.*?)-?\}\}")
_FILTER = re.compile(rb"\s*\|\s*(?!e\b)\w+(?:\([^()]*\))?")  # Pages escape also what nobody pipes through `e`.
_LINE = re.compile(rb"^.*\S.*\n", re.MULTILINE)
_COMMENT = re.compile(rb"\{#.*?#\}", re.DOTALL)


def find_template_mutants(source: str, name: str) -> list[Mutant]:
    """All mutants of a template; `name` stands for it, as a function's name does for a function."""
    text = Text(source)
    comments = [comment.span() for comment in _COMMENT.finditer(text.data)]
    found = [
        text.make(name, *edit)
        for edit in _find_edits(text.data, is_page=name.endswith(".html"))
        if not any(start < edit[1][1] and edit[1][0] < end for start, end in comments)
    ]
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.operator))


def _find_edits(data: bytes, is_page: bool) -> Iterator[Edit]:
    for condition in _CONDITION.finditer(data):
        yield "drop condition", condition.span(1), "true"
    for shown in _SHOWN.finditer(data):
        for one in _FILTER.finditer(shown.group()):
            yield "drop filter", (shown.start() + one.start(), shown.start() + one.end()), ""
        if is_page:
            yield "show unescaped", shown.span(1), f" ({shown[1].decode().strip()}) | safe "
    for line in _LINE.finditer(data):
        if b"{%" not in line.group() and line.group().count(b"{{") == line.group().count(b"}}"):
            yield "delete line", line.span(), ""
