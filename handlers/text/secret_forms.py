"""What a live secret may look like in a text: as it is, line by line, and as other notations spell it. Pure.

Refuses to know what is done about it: `sanitize.redact` replaces it, `shown_patch` masks its lines.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from urllib.parse import quote, quote_plus

MIN_SECRET = 6
"""Characters. A shorter value would be found in innocent words."""

MIN_PIECE = 20
"""Characters of a line of a secret that has several, from which on the line alone is taken for the secret."""

MIN_PACKED = 8
"""Characters of a secret from which on it is looked for in hexadecimal and in base64, which are letters like others."""

Shape = re.Pattern[str] | None

_DROPPED = re.compile(r"\\([!-/:-@\[-`{-~])|(?<=[^\s*~])[*~]++(?=[^\s*~])")
"""What Markdown does not show: the backslash before a sign (CommonMark, 2.4), and emphasis within a word."""


def spell_out(secrets: Collection[str]) -> frozenset[str]:
    """The secrets, and how they look inside a string of JSON, and inside one that stands in another."""
    forms = {form for secret in secrets for form in (secret, secret.strip())}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in forms for escaped in (True, False)}
    return frozenset(forms)


def _encode(secret: str) -> Iterator[str]:
    """How addresses, HTML, shells, JSON, hexadecimal and base64 spell a secret. At most some 20 forms, most equal."""
    for spelled in (*(quote(secret, safe, errors="replace") for safe in ("", "/", "!'()*")), _quote_plus(secret)):
        yield from (spelled, _PERCENT.sub(lambda found: found[0].lower(), spelled))
    escaped = html.escape(secret, quote=False)
    for double, single in (('"', "'"), ("&quot;", "'"), ("&quot;", "&#x27;"), ("&#34;", "&#39;"), ("&quot;", "&#39;")):
        yield escaped.replace('"', double).replace("'", single)
    yield from (secret.replace("'", inner) for inner in ("'\"'\"'", "'\\''"))
    for signs in _JSON_SIGNS:
        yield from (signs.sub(partial(_spell_sign, form), json.dumps(secret)[1:-1]) for form in ("04x", "04X"))
    if len(secret) >= MIN_PACKED:
        raw = secret.encode(errors="replace")
        yield from (raw.hex(), raw.hex().upper())
        for form in _find_base64(raw):
            yield from (form, form.translate(_URL_SAFE))


_PERCENT = re.compile("%..")
_JSON_SIGNS = (re.compile("[<>&]"), re.compile("[<>&'+`]"), re.compile(r"[!#-/:-@\[\]-`{-~]"))
"""What some writers of JSON spell by its number: Go's, .NET's, and the most careful."""

_URL_SAFE = str.maketrans("+/", "-_")
_quote_plus = partial(quote_plus, errors="replace")


def _spell_sign(form: str, found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):{form}}"


def _find_base64(raw: bytes) -> Iterator[str]:
    """What the base64 of any content with these bytes must contain: a text for each position in a group of three."""
    for before in range(3):
        first, last = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        yield b64encode(bytes(before) + raw).decode()[first:last]


@cache
def find_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """What to look for, the longest first: one may be part of another. Sets of secrets are few, texts are many.

    Of a secret with several lines each line that says enough is a form: a text may quote or indent it, or show a part.
    """
    forms = {form for secret in spell_out(secrets) for form in (secret, secret.replace("\r\n", "\n"))}
    pieces = {piece.strip() for form in forms if "\n" in form.strip() for piece in form.split("\n")}
    pieces = {piece for piece in pieces if len(piece) >= MIN_PIECE and not piece.startswith("-----")}
    encoded = {form for secret in secrets if len(secret.strip()) >= MIN_SECRET for form in _encode(secret.strip())}
    return tuple(sorted((form for form in forms | pieces | encoded if len(form) >= MIN_SECRET), key=len, reverse=True))


def find_head(text: str, secrets: frozenset[str]) -> int:
    """Where, in whole lines, the first lines of a secret begin that goes on after them; else their length."""
    lone, longer = _find_heads(secrets)
    last = text[text.rfind("\n", 0, -1) + 1 :]
    found = [head for head in longer.get(last, ()) if text.endswith(head)]
    if last.endswith(lone):
        found += [head for head in lone if last.endswith(head)]
    return len(text) - max(map(len, found), default=0)


def has_head(text: str, secrets: frozenset[str]) -> bool:
    """Whether a line of the text may be the first one of a secret that has several."""
    lone, _ = _find_heads(secrets)
    return any(head in text for head in lone)


@cache
def _find_heads(secrets: frozenset[str]) -> tuple[tuple[str, ...], Mapping[str, Sequence[str]]]:
    """The first lines of secrets that have several, up to the end of each line but their last: those that are one line,
    and the longer ones by their last line. A log asks for them line by line."""
    found = [(form, place) for form in find_forms(secrets) for place in range(len(form) - 1) if form[place] == "\n"]
    # Not an empty line: it would hold back every line there is, and what comes after it is a secret, too.
    heads = dict.fromkeys(form[: place + 1] for form, place in found if form[:place].strip())
    longer: dict[str, list[str]] = {}
    for head in heads:
        if (before := head.rfind("\n", 0, -1)) >= 0:
            longer.setdefault(head[before + 1 :], []).append(head)
    return tuple(head for head in heads if head.count("\n") == 1), longer


PIECE = 50_000
"""Characters that are searched at once. Other threads wait for that: a few milliseconds, and 100 for some megabytes."""


def _cut(text: str) -> Iterator[str]:
    """The text in pieces. Each ends with a blank, which no match of `_RUN` and `_DROPPED` goes over."""
    start = 0
    while len(text) - start > PIECE:
        blanks = (text.rfind(blank, start, start + PIECE) for blank in "\n ")
        end = (next((at for at in blanks if at >= 0), -1) + 1) or (text.find("\n", start) + 1) or len(text)
        yield text[start:end]
        start = end
    yield text[start:]


_RUN = re.compile(r"[A-Za-z0-9+/_%-]{12,}+")


@cache
def _find_probe(form: str) -> str:
    """The longest part of a form that occurs only in a run of these signs, or nothing."""
    return max(_RUN.findall(form), key=len, default="")


def find_present(text: str, forms: Iterable[str]) -> list[str]:
    """The forms that the text contains. There are many forms, so most are searched only in its long runs."""
    runs = "\n".join(run for piece in _cut(text) for run in _RUN.findall(piece))
    return [form for form in forms if _find_probe(form) in runs and form in text]


def find_spans(text: str, secrets: Iterable[str], shapes: Iterable[Shape]) -> Iterator[tuple[int, int]]:
    """Where in the text something begins and ends that is a secret or looks like one, in no order."""
    for secret in find_present(text, secrets):
        at = text.find(secret)
        while at >= 0:
            yield at, at + len(secret)
            at = text.find(secret, at + len(secret))
    for shape in shapes:
        yield from (found.span() for found in find_matches(shape, text)) if shape else ()


_MARGIN = 10_000
"""Characters by which it is certain whether a key begins at a place: the first part of a JSON web token may hold
certificates."""


def find_matches(shape: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Like `finditer`, in pieces, so that other threads can run: some megabytes may take seconds.

    Only a private key is searched for at once: where it begins depends on its end, which may be far away.
    """
    size, start, at = len(text) if "-----END" in shape.pattern else PIECE, 0, 0
    while start < len(text):
        end = start + size
        at = max(at, start)
        while (found := shape.search(text, at, end + _MARGIN)) and found.start() < end:
            found = shape.match(text, found.start()) or found  # It may go on behind what was searched.
            at = found.end()
            yield found
        start = max(end, at)


def find_escaped(text: str, secrets: Iterable[str], shapes: Iterable[Shape]) -> Iterator[tuple[int, int]]:
    """The places, in order, of what is a secret or has such a shape once backslashes and emphasis are dropped.

    Shells and strings in programs write signs with a backslash, too.
    """
    plain = "".join(_DROPPED.sub(r"\1", piece) for piece in _cut(text))
    spans = sorted(find_spans(plain, secrets, shapes)) if len(plain) < len(text) else []
    if not spans:
        return
    places, dropped = [], [0]
    for found in _DROPPED.finditer(text):
        places.append(found.start() - dropped[-1])
        dropped.append(dropped[-1] + len(found[0]) - len(found[1] or ""))
    for start, end in spans:
        yield start + dropped[bisect_left(places, start)], end + dropped[bisect_right(places, end - 1)]


def mask_escaped(text: str, secrets: Iterable[str], shapes: Iterable[Shape], mask: str) -> str:
    """The text without what is a secret once Markdown has dropped its marks: `ghp\\_a**b**` shows `ghp_ab`."""
    parts, done = [], 0
    for first, last in find_escaped(text, secrets, shapes):
        if first >= done:
            parts += [text[done:first], mask]
        done = max(done, last)
    return "".join([*parts, text[done:]])
