"""Renders pages: escaped, without secrets, and with headers that let browsers run only our own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from bot.web.auth.headers import HEADERS
from bot.web.auth.sessions import Visitor
from bot.web.dashboard.diffs import read_diff
from bot.web.dashboard.prose import render_prose
from handlers.context import Context
from handlers.text.sanitize import redact
from handlers.text.shown_patch import ShownPatch, show_patch
from handlers.words.report_comment import propose_title
from runner.characters import show_invisible
from runner.model.job import split_failure

MAX_WORD = 200
"""The longest text whose redacted form is cached."""

MAX_WORDS = 10_000

MAX_DIFFS, MAX_PROSES = 8, 64
"""The most parsed diffs, and the most rendered texts in Markdown, that are cached."""


PIECE = 50_000
"""The most characters that are escaped at once. Other threads have to wait meanwhile."""


def escape_in_pieces(text: str) -> Markup:
    """Escape a text like `escape`, but a long one piece by piece, so that other threads do not wait long. Pure."""
    if len(text) <= PIECE or hasattr(text, "__html__"):
        return escape(text)
    return Markup().join(escape(text[at : at + PIECE]) for at in range(0, len(text), PIECE))


def show_moment(at: datetime, *, seconds: bool = False) -> Markup:
    """A time for people and for programs. Pure."""
    said = at.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), said)


def show_age(at: datetime, now: datetime) -> Markup:
    """How long ago something was, such as `3 min ago`, with the exact time as a tooltip. Pure."""
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        at.isoformat(), at, describe_age((now - at).total_seconds())
    )


def describe_age(seconds: float) -> str:
    """How long ago something was, such as `3 min ago`. Pure."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


class Renderer:
    """Renders pages from templates."""

    def __init__(self, context: Context, web_url: str, warn: Callable[[Visitor], str] = lambda visitor: "") -> None:
        """`web_url` is the address of GitHub's pages, or empty. `warn` returns the warning on all of a visitor's pages,
        or an empty text.
        """
        self.secrets = frozenset(context.secrets)
        # A list has the same few hundred texts each time, and searching them for secrets is slow.
        self._clean_word = lru_cache(MAX_WORDS)(self._clean_text)
        loader = FileSystemLoader(Path(__file__).parent.parent / "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=self.clean)
        self._templates.filters["e"] = escape_in_pieces
        self._templates.filters["shown_patch"] = self.show_patch
        self._templates.filters["pull_title"] = lambda report, job: propose_title(job, report, self.secrets)
        # These are cached, because pages are often reloaded.
        self._templates.filters["diff_files"] = lru_cache(MAX_DIFFS)(read_diff)
        self._templates.filters["markdown"] = lru_cache(MAX_PROSES)(self._render_prose)
        self._templates.filters["moment"] = show_moment
        # People get back exactly the text that they typed. A changed text would be sent with the form the next time.
        self._templates.filters["verbatim"] = escape
        self._templates.filters["ago"] = lambda at: show_age(at, context.now())
        # Redact before splitting, because a secret may span lines.
        self._templates.filters["failure"] = lambda text: split_failure(self.redact(text))
        self._templates.globals["github"] = web_url
        self._templates.globals["warn"] = warn
        # Behind a proxy, the service may be under a path of another site.
        self._templates.globals["root"] = urlsplit(context.public_url).path

    def render_page(self, template: str, visitor: Visitor, status: int = 200, **values: Any) -> web.Response:
        """Render a page for a visitor."""
        html = self.render_html(template, visitor=visitor, **values)
        return web.Response(text=html, content_type="text/html", headers=HEADERS, status=status)

    def render_html(self, template: str, block: str = "", /, **values: Any) -> str:
        """Render a template, or one block of it."""
        found = self._templates.get_template(template)
        return "".join(found.blocks[block](found.new_context(values))) if block else found.render(**values)

    def render_message(
        self,
        visitor: Visitor,
        title: str,
        words: str,
        status: int,
        *,
        typed: Mapping[str, str] = MappingProxyType({}),
        back: str = "",
        signs_in: bool = False,
    ) -> web.Response:
        """Render a page with a message, and with the texts that its reader has `typed`, by label.

        `back` is the path of the page that the reader came from. With `signs_in`, the link to it leads through sign-in.
        """
        values = {"title": title, "words": words, "typed": typed, "back": back, "signs_in": signs_in}
        return self.render_page("message.html", visitor, status, **values)

    def redact(self, text: str) -> str:
        """Remove secrets from a text."""
        return redact(text, self.secrets)

    def show_patch(self, patch: str) -> ShownPatch:
        """A job's patch, as it is shown in the report's comment."""
        return show_patch(patch, self.secrets)

    def clean(self, value: object) -> object:
        """Remove secrets from a value of a page. A value that is already escaped was cleaned before."""
        if not isinstance(value, str) or hasattr(value, "__html__"):
            return value
        return self._clean_word(value) if len(value) <= MAX_WORD else self._clean_text(value)

    def _clean_text(self, text: str) -> str:
        return show_invisible(self.redact(str(text)))

    def _render_prose(self, text: str) -> Markup:
        return render_prose(text, self._clean_text)
