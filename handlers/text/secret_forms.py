"""Finds secrets in a text, in every form in which they may be written there. Pure.

A secret may be there unchanged, line by line, or in another notation such as JSON or base64. Callers decide what to do
with a secret that was found: `sanitize.redact` replaces it, `shown_patch` masks its lines.
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
"""The fewest characters of a form. A shorter one would be found in ordinary words."""

MIN_PIECE = 20
"""The fewest characters of one line of a multi-line secret, if the line alone is treated as a secret."""

MIN_PACKED = 8
"""The fewest characters of a secret that is also searched for in hexadecimal and base64.

The encoded form of a shorter secret would be found in ordinary letters and digits.
"""

Shape = re.Pattern[str] | None

_DROPPED = re.compile(r"\\([!-/:-@\[-`{-~])|(?<=[^\s*~])[*~]++(?=[^\s*~])")
"""Marks that Markdown does not show: a backslash before punctuation (CommonMark, 2.4), and emphasis within a word."""


def spell_out(secrets: Collection[str]) -> frozenset[str]:
    """The secrets as they are and as Python quotes them, and the forms of all these inside a JSON string, and inside a
    JSON string within another JSON string."""
    plain = {form for secret in secrets for form in (secret, secret.strip())}
    quoted = {written[1:-1] for form in plain for written in (repr(form), ascii(form))}
    forms = plain | quoted | {repr(form.encode(errors="replace"))[2:-1] for form in plain}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in forms for escaped in (True, False)}
    return frozenset(forms)


def _encode(secret: str) -> Iterator[str]:
    """The forms of a secret in URLs, HTML, shells, JSON, hexadecimal and base64. At most 31, and many may be equal."""
    for spelled in (*(quote(secret, safe, errors="replace") for safe in _SAFE_IN_URLS), _quote_plus(secret)):
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


_SAFE_IN_URLS = ("", "/", "!'()*", "!$&'()*+,;=~/:")
"""The signs that programs do not encode in addresses. They differ from program to program."""

_PERCENT = re.compile("%..")
_JSON_SIGNS = (re.compile("[<>&]"), re.compile("[<>&'+`]"), re.compile(r"[!#-/:-@\[\]-`{-~]"))
"""The characters that JSON encoders write as `\\u` escapes: Go's encoder, .NET's, and the strictest ones."""

_URL_SAFE = str.maketrans("+/", "-_")
_quote_plus = partial(quote_plus, errors="replace")


def _spell_sign(form: str, found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):{form}}"


def _find_base64(raw: bytes) -> Iterator[str]:
    """Three texts. The base64 of any content with these bytes contains one of them.

    Base64 encodes groups of three bytes. Each text is for one position of the first byte in its group.
    """
    for before in range(3):
        first, last = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        yield b64encode(bytes(before) + raw).decode()[first:last]


@cache
def find_forms(secrets: frozenset[str]) -> tuple[str, ...]:
    """The forms to search for. The longest come first, because a form may be part of another one.

    Each line of a multi-line secret is a form of its own if it has `MIN_PIECE` characters, because a text may indent or
    quote the lines, or contain only some of them. The result is cached: there are many texts, but few sets of secrets.
    """
    forms = {form for secret in spell_out(secrets) for form in (secret, secret.replace("\r\n", "\n"))}
    pieces = {piece.strip() for form in forms if "\n" in form.strip() for piece in form.split("\n")}
    pieces = {piece for piece in pieces if len(piece) >= MIN_PIECE and not piece.startswith("-----")}
    encoded = {form for secret in secrets for form in _encode(secret.strip())}
    return tuple(sorted((form for form in forms | pieces | encoded if len(form) >= MIN_SECRET), key=len, reverse=True))


def find_head(text: str, secrets: frozenset[str]) -> int:
    """Where the beginning of a multi-line secret begins, if the text ends with one. The rest may be in the next lines.

    The text has whole lines. Returns its length if it does not end with the beginning of a secret.
    """
    lone, longer = _find_heads(secrets)
    last = text[text.rfind("\n", 0, -1) + 1 :]
    found = [head for head in longer.get(last, ()) if text.endswith(head)]
    if last.endswith(lone):
        found += [head for head in lone if last.endswith(head)]
    return len(text) - max(map(len, found), default=0)


def has_head(text: str, secrets: frozenset[str]) -> bool:
    """Whether a line of the text may be the first line of a multi-line secret."""
    lone, _ = _find_heads(secrets)
    return any(head in text for head in lone)


@cache
def _find_heads(secrets: frozenset[str]) -> tuple[tuple[str, ...], Mapping[str, Sequence[str]]]:
    """The beginnings of multi-line secrets: the first line, the first two lines, and so on, without the last line.

    Returns the beginnings of one line, and the longer ones by their last line. They are cached, because a log is
    searched for them line by line.
    """
    found = [(form, place) for form in find_forms(secrets) for place in range(len(form) - 1) if form[place] == "\n"]
    # Blank beginnings do not count, because a log would hold back every blank line. The secret without its blank
    # beginning is a form, too.
    heads = dict.fromkeys(form[: place + 1] for form, place in found if form[:place].strip())
    longer: dict[str, list[str]] = {}
    for head in heads:
        if (before := head.rfind("\n", 0, -1)) >= 0:
            longer.setdefault(head[before + 1 :], []).append(head)
    return tuple(head for head in heads if head.count("\n") == 1), longer


PIECE = 50_000
"""The characters that are searched at once. Other threads have to wait meanwhile.

That takes a few milliseconds for a piece, and 100 for some megabytes.
"""


def _cut(text: str) -> Iterator[str]:
    """The text in pieces, each with up to `PIECE` characters, or more if it cannot be cut before.

    Each piece but the last ends with a space or a newline, because no match of `_RUN` or `_DROPPED` contains one.
    """
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
    """The longest match of `_RUN` in a form. Empty if there is none.

    In a text, this part of the form can only be inside a match of `_RUN`.
    """
    return max(_RUN.findall(form), key=len, default="")


def find_present(text: str, forms: Iterable[str]) -> list[str]:
    """The forms that the text contains.

    There are many forms, so the whole text is searched for a form only if its probe is in the text's matches of `_RUN`.
    """
    runs = "\n".join(run for piece in _cut(text) for run in _RUN.findall(piece))
    return [form for form in forms if _find_probe(form) in runs and form in text]


def find_spans(text: str, secrets: Iterable[str], shapes: Iterable[Shape]) -> Iterator[tuple[int, int]]:
    """Where secrets, and parts of the text with one of the shapes, begin and end. In no order."""
    for secret in find_present(text, secrets):
        at = text.find(secret)
        while at >= 0:
            yield at, at + len(secret)
            at = text.find(secret, at + len(secret))
    for shape in shapes:
        yield from (found.span() for found in find_matches(shape, text)) if shape else ()


_MARGIN = 10_000
"""The characters after a place that are enough to decide whether a key begins there.

They are this many because the first part of a JSON web token may contain certificates.
"""


def find_matches(shape: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Like `finditer`, but piece by piece, so that other threads can run. Searching some megabytes may take seconds.

    Only private keys are searched for in the whole text at once, because a match needs the end of the key, which may be
    far from its beginning.
    """
    size, start, at = len(text) if "-----END" in shape.pattern else PIECE, 0, 0
    while start < len(text):
        end = start + size
        at = max(at, start)
        while (found := shape.search(text, at, end + _MARGIN)) and found.start() < end:
            found = shape.match(text, found.start()) or found  # The match may end after the searched part.
            at = found.end()
            yield found
        start = max(end, at)


def find_escaped(text: str, secrets: Iterable[str], shapes: Iterable[Shape]) -> Iterator[tuple[int, int]]:
    """Where the text has a secret, or one of the shapes, after `_DROPPED` is removed from it. In order of beginning.

    Shells, and string literals in programs, also write backslashes before punctuation.
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
    """Mask what Markdown would show as a secret. For example, `ghp\\_a**b**` is shown as `ghp_ab`."""
    parts, done = [], 0
    for first, last in find_escaped(text, secrets, shapes):
        if first >= done:
            parts += [text[done:first], mask]
        done = max(done, last)
    return "".join([*parts, text[done:]])
