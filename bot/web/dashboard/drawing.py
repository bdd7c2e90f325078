"""How every page is drawn: escaped, without secrets, and such that a browser runs nothing but our own files."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bot.web.auth.sessions import Visit
from bot.web.dashboard.diffs import read_diff
from bot.web.dashboard.prose import render_prose
from handlers.context import Context
from handlers.text.sanitize import redact
from handlers.text.shown_patch import ShownPatch, show_patch
from runner.characters import show_invisible
from runner.model.job import split_failure

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

MAX_WORD = 200
"""Characters of a text that is remembered once it is clean."""

MAX_WORDS = 10_000

MAX_DIFFS, MAX_PROSES = 8, 64
"""Diffs and reports that are remembered as they are drawn."""


def show_moment(at: datetime, *, seconds: bool = False) -> Markup:
    """A moment as people read it and as programs do. Pure."""
    said = at.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), said)


class Drawing:
    """Draws pages from templates."""

    def __init__(self, context: Context, web_url: str) -> None:
        """`web_url` is where GitHub's pages are; empty where nobody has said."""
        self.secrets = frozenset(context.secrets)
        self._live_secrets = context.secrets
        # A list says the same few hundred words each time, and looking for secrets in each is what takes its time.
        self._clean_word = lru_cache(MAX_WORDS)(self._clean_text)
        loader = FileSystemLoader(Path(__file__).parent.parent / "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=self.clean)
        # Whoever looks at a page looks at it again, and others do.
        self._templates.filters["shown_patch"] = self.show_patch
        self._templates.filters["diff_files"] = lru_cache(MAX_DIFFS)(read_diff)
        self._templates.filters["markdown"] = lru_cache(MAX_PROSES)(self._render_prose)
        self._templates.filters["moment"] = show_moment
        # A secret may go on in the next line.
        self._templates.filters["failure"] = lambda text: split_failure(self.redact(text))
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

    def show_patch(self, patch: str) -> ShownPatch:
        """A job's patch, the same as in the comment."""
        return show_patch(patch, self._live_secrets)

    def clean(self, value: object) -> object:
        """What every value passes on its way into a page; one that is escaped already has passed it before."""
        if not isinstance(value, str) or hasattr(value, "__html__"):
            return value
        return self._clean_word(value) if len(value) <= MAX_WORD else self._clean_text(value)

    def _clean_text(self, text: str) -> str:
        return show_invisible(self.redact(str(text)))

    def _render_prose(self, text: str) -> Markup:
        return render_prose(text, self._clean_text)
