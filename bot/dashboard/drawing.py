"""How every page is drawn: escaped, without secrets, and such that a browser runs nothing but our own files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bot.dashboard.visits import Visit
from handlers.context import Context
from handlers.sanitize import redact
from handlers.transcript import spell_out
from runner.characters import show_invisible

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with that, browsers do not say where a form came from either.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

COLOURED_DIFF = 200_000
"""Characters beyond which a diff is shown without colours: each line would cost an element."""

UNFOLDED_LINES = 400
"""Lines of a diff up to which all of its files are shown unfolded."""

MAX_WORD = 200
"""Characters of a text that is remembered once it is clean."""

MAX_WORDS = 10_000

_KINDS = {"+": "plus", "-": "minus", "@": "hunk"}

Lines = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What a diff says of one file."""

    name: str
    lines: Lines
    """Each with what it is: `plus`, `minus`, `hunk`, or nothing."""
    unfolded: bool

    def count(self, kind: str) -> int:
        """How many lines are of a kind."""
        return sum(one == kind for one, _ in self.lines)


class Drawing:
    """Draws pages from templates."""

    def __init__(self, context: Context, web_url: str) -> None:
        """`web_url` is where GitHub's pages are; empty where nobody has said."""
        self.secrets = spell_out(context.secrets)
        # A list says the same few hundred words each time, and looking for secrets in each is what takes its time.
        self._clean_word = lru_cache(MAX_WORDS)(self._clean_text)
        loader = FileSystemLoader(Path(__file__).parent.parent / "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=self.clean)
        self._templates.filters["diff_files"] = self._clean_diff
        self._templates.globals["github"] = web_url
        # Behind a proxy the service may be a folder of another site.
        self._templates.globals["root"] = urlsplit(context.public_url).path

    def render(self, template: str, visit: Visit, status: int = 200, **values: Any) -> web.Response:
        """A page, for whoever is there."""
        html = self.draw(template, visit=visit, **values)
        return web.Response(text=html, content_type="text/html", headers=HEADERS, status=status)

    def draw(self, template: str, block: str = "", /, **values: Any) -> str:
        """A template, or one block of it."""
        found = self._templates.get_template(template)
        return "".join(found.blocks[block](found.new_context(values))) if block else found.render(**values)

    def say(self, visit: Visit, title: str, words: str, status: int) -> web.Response:
        """A page that only says why something is not done."""
        return self.render("message.html", visit, status, title=title, words=words)

    def redact(self, text: str) -> str:
        """The text without secrets."""
        return redact(text, self.secrets)

    def clean(self, value: object) -> object:
        """What every value passes on its way into a page; one that is escaped already has passed it before."""
        if not isinstance(value, str) or hasattr(value, "__html__"):
            return value
        return self._clean_word(value) if len(value) <= MAX_WORD else self._clean_text(value)

    def _clean_text(self, text: str) -> str:
        return show_invisible(self.redact(str(text)))

    def _clean_diff(self, patch: str) -> list[FileDiff]:
        """The files of a diff, cleaned as a whole: a secret may have several lines."""
        text = show_invisible(self.redact(patch))
        return fold_diff(split_diff(text)) if len(text) < COLOURED_DIFF else [FileDiff("", [("", text)], True)]


def split_diff(text: str) -> Iterator[tuple[str, str]]:
    """Each line of a diff with what it is: `plus`, `minus`, `hunk`, or nothing."""
    in_hunk = False
    for line in text.removesuffix("\n").split("\n"):
        in_hunk = line.startswith("@@") or (in_hunk and not line.startswith("diff --git "))
        yield _KINDS.get(line[:1], "") if in_hunk else "", f"{line}\n"


def fold_diff(lines: Iterable[tuple[str, str]]) -> list[FileDiff]:
    """The files of a diff, in its order. Pure."""
    files: list[tuple[str, list[tuple[str, str]]]] = []
    count = 0
    for kind, line in lines:
        if not files or (not kind and line.startswith("diff --git ")):
            files.append((_name_file(line), []))
        files[-1][1].append((kind, line))
        count += 1
    return [FileDiff(name, found, count <= UNFOLDED_LINES) for name, found in files]


def _name_file(line: str) -> str:
    """The file's name, as the first line of its diff has it: the same on both sides, for we look for no renames."""
    words = line.removeprefix("diff --git ").removesuffix("\n")
    half = len(words) // 2
    return words[half + 1 :].removeprefix("b/") if words[:half].removeprefix("a/") in words[half:] else words
