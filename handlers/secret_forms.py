"""What a live secret may look like in a text: as it is, line by line, and as JSON and Markdown spell it. Pure.

Refuses to know what is done about it: `sanitize.redact` replaces it, `shown_patch` masks its lines.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache

MIN_SECRET = 6
"""Characters. A shorter value would be found in innocent words."""

MIN_PIECE = 20
"""Characters of a line of a secret that has several, from which on the line alone is taken for the secret."""

Shape = re.Pattern[str] | None

_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
"""A sign that Markdown shows without its backslash (CommonMark, 2.4)."""


def spell_out(secrets: Collection[str]) -> frozenset[str]:
    """The secrets, and how they look inside a string of JSON, and inside one that stands in another."""
    forms = {form for secret in secrets for form in (secret, secret.strip())}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in forms for escaped in (True, False)}
    return frozenset(forms)


@cache
def find_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """What to look for, the longest first: one may be part of another. Sets of secrets are few, texts are many.

    Of a secret with several lines each line that says enough is a form: a text may quote or indent it, or show a part.
    """
    forms = {form for secret in spell_out(secrets) for form in (secret, secret.replace("\r\n", "\n"))}
    pieces = {piece.strip() for form in forms if "\n" in form.strip() for piece in form.split("\n")}
    pieces = {piece for piece in pieces if len(piece) >= MIN_PIECE and not piece.startswith("-----")}
    return tuple(sorted((form for form in forms | pieces if len(form) >= MIN_SECRET), key=len, reverse=True))


@cache
def find_heads(secrets: frozenset[str]) -> Sequence[str]:
    """What the first lines of secrets that have several look like, up to the end of each line but their last."""
    found = [(form, place) for form in find_forms(secrets) for place in range(len(form) - 1) if form[place] == "\n"]
    # Not an empty line: it would hold back every line there is, and what comes after it is a secret, too.
    return [form[: place + 1] for form, place in found if form[:place].strip()]


def find_spans(text: str, secrets: Iterable[str], shapes: Iterable[Shape]) -> Iterator[tuple[int, int]]:
    """Where in the text something begins and ends that is a secret or looks like one, in no order."""
    for secret in secrets:
        at = text.find(secret)
        while at >= 0:
            yield at, at + len(secret)
            at = text.find(secret, at + len(secret))
    for shape in shapes:
        yield from (found.span() for found in shape.finditer(text)) if shape else ()


def mask_escaped(text: str, secrets: Iterable[str], shapes: Iterable[Shape], mask: str) -> str:
    """The text without what is a secret once Markdown has dropped its backslashes: `ghp\\_...` shows `ghp_...`."""
    escapes = [found.start() - number for number, found in enumerate(_ESCAPED.finditer(text))]
    if not escapes:
        return text
    parts, done = [], 0
    for start, end in sorted(find_spans(_ESCAPED.sub(r"\1", text), secrets, shapes)):
        first, last = start + bisect_left(escapes, start), end + bisect_right(escapes, end - 1)
        if first >= done:
            parts += [text[done:first], mask]
        done = max(done, last)
    return "".join([*parts, text[done:]])
