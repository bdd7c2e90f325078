"""What strangers wrote, as an agent is given it: words that GitHub's page does not show are gone, or marked.

Words are planted into a text, GitHub's own parser renders it, and what a browser shows of that is held against
`reveal`. A word counts as marked

- on a line that begins with `⟨perhaps unseen⟩`, or behind `⟨footnote⟩` or `⟨beyond the table⟩` on its line,
- within `⟨<` and `>⟩`, the mark of a tag that the page drops,
- in a folded part: behind as many `⟨folded⟩` as folded parts have begun on the page,
- in an element that hides what it holds: behind the mark of a tag of that name,
- in a drawing: behind `⟨drawn⟩`.

The addresses of links and images, and the first word behind a fence, count as shown: agents are told of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from random import Random
from zlib import crc32

from handlers.text.hidden_text import BEYOND, DRAWN, FOLDED, FOOTNOTE, UNSEEN, reveal
from tests.support.github_markdown import render_github

_WORDS = re.compile(r"(?<![A-Za-z0-9<])(?:x|word|hidden|octocat|team|org|log|url|c|words)(?![A-Za-z0-9=])")
_TOKEN = re.compile(r"zq\d+z")
_TAG = re.compile(r"""<(/?)([A-Za-z][^\s/>]*)((?:[^>"']|"[^"]*"|'[^']*')*)>""")
_ATTRIBUTE = re.compile(r"""([^\s=/"'>]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+))?""")
_ADDRESSES = {("a", "href"), ("img", "src"), ("source", "src"), ("video", "src"), ("code", "class"), ("pre", "lang")}
_RAW_TEXT = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "plaintext"}
_HIDING = {*_RAW_TEXT, "template", "rp", "video"}
_LANGUAGES = r"(?:mermaid|geojson|topojson|stl|math)\b"
_DRAWN = re.compile(rf"\s*<code class=\"language-{_LANGUAGES}", re.IGNORECASE)
_DRAWN_LANG = re.compile(rf"[\"'\s]*{_LANGUAGES}", re.IGNORECASE)


@dataclass
class _Seen:
    """The words of a page: those that it shows, and how it shows some others."""

    shown: set[str] = field(default_factory=set)
    folded: dict[str, int] = field(default_factory=dict)
    """With the number of folded parts that have begun by then."""
    held: dict[str, str] = field(default_factory=dict)
    """With the element that hides them."""
    drawn: set[str] = field(default_factory=set)


def find_faults(text: str) -> list[str]:
    """The words of the text that an agent is given and that nobody sees."""
    planted = _plant(text)
    seen = _read(render_github(planted))
    revealed = reveal(planted)
    # A word counts where it stands first: each is planted once, but for those that name something.
    return [
        f"nobody sees {found[0]} in {line!r}"
        for line, before, found in _find_words(revealed)
        if not _is_marked(seen, found, line, before)
    ]


def _plant(text: str) -> str:
    """The text with words at the places of its own, and anywhere. What follows depends on the text alone."""
    random = Random(crc32(text.encode(errors="replace")))
    same = random.random() < 0.2
    count = 0

    def name(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"zq{len(found[0]) if same else 100 + count}z"

    planted = _WORDS.sub(name, text)
    for number in range(random.choice((0, 0, 1, 3))):
        at = random.randrange(len(planted) + 1)
        planted = f"{planted[:at]}{random.choice(('', ' '))}zq{number}z{random.choice(('', ' '))}{planted[at:]}"
    return planted


def _find_words(revealed: str) -> list[tuple[str, str, re.Match[str]]]:
    words, at = [], 0
    for line in revealed.split("\n"):
        words += [(line, revealed[: at + found.start()], found) for found in _TOKEN.finditer(line)]
        at += len(line) + 1
    return words


def _is_marked(seen: _Seen, found: re.Match[str], line: str, before: str) -> bool:
    word, left = found[0], line[: found.start()]
    if word in seen.shown or line.startswith(UNSEEN) or FOOTNOTE in left or BEYOND in left:
        return True
    if left.rfind("⟨<") > left.rfind(">⟩"):
        return True
    if word in seen.drawn and DRAWN in before:
        return True
    if word in seen.held and f"⟨<{seen.held[word]}" in before.lower():
        return True
    return word in seen.folded and before.count(FOLDED) >= seen.folded[word]


def _read(html: str) -> _Seen:
    """The page as a browser reads it, by the HTML standard as far as it matters here."""
    seen = _Seen()
    stack: list[tuple[str, bool]] = []
    at, folded = 0, 0

    def show(part: str) -> None:
        for word in _TOKEN.findall(part):
            hiding = [name for name, hides in stack if hides]
            if not hiding:
                seen.shown.add(word)
            elif hiding[0] == "details":
                seen.folded.setdefault(word, folded)
            elif hiding[0] == "pre":
                seen.drawn.add(word)
            else:
                seen.held.setdefault(word, hiding[0])

    while at < len(html):
        start = html.find("<", at)
        start = len(html) if start < 0 else start
        show(html[at:start])
        after = html[start + 1 : start + 2]
        if after in ("!", "?") or (after == "/" and not html[start + 2 : start + 3].isalpha()):
            at = _skip_comment(html, start)
        elif not (after.isascii() and after.isalpha()) and after != "/":
            show(html[start : start + 1])
            at = start + 1
        elif tag := _TAG.match(html, start):
            at = tag.end()
            name = tag[2].lower()
            attributes = {key.lower(): value for key, value in _ATTRIBUTE.findall(tag[3])}
            if tag[1]:
                _close(stack, name)
                continue
            known = " ".join(value for key, value in attributes.items() if (name, key) in _ADDRESSES)
            seen.shown.update(_TOKEN.findall(known))
            hides = name in _HIDING or (name == "details" and "open" not in attributes)
            is_drawn = _DRAWN.match(html, at) or _DRAWN_LANG.match(unescape(attributes.get("lang", "")))
            hides = hides or (name == "pre" and is_drawn is not None)
            folded += name == "details" and hides
            stack.append((name, hides))
            if name in _RAW_TEXT:
                end = re.compile(rf"</{name}[\s/>]", re.IGNORECASE).search(html, at)
                show(html[at : end.start() if end else len(html)])
                at = end.start() if end else len(html)
        else:
            break
    return seen


def _skip_comment(html: str, start: int) -> int:
    if not html.startswith("<!--", start):
        end = html.find(">", start)
        return end + 1 if end >= 0 else len(html)
    if short := re.compile("<!---?>").match(html, start):
        return short.end()
    found = re.compile("--!?>").search(html, start + 4)
    return found.end() if found else len(html)


def _close(stack: list[tuple[str, bool]], name: str) -> None:
    names = [open_name for open_name, _ in stack]
    if name in names:
        del stack[len(names) - 1 - names[::-1].index(name) :]
