"""What every page of the stand-in has: its frame, who looks at it, and the check that a form came from a page of ours.

Nobody signs in: whoever looks says who they are. It refuses to know what a page shows.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from github_standin.model.render import Links
from github_standin.model.state import Issue, Pull, Repository, User, World
from github_standin.pages.markdown import render_markdown

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "standin_login"
TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
STATIC = Path(__file__).parent / "static"

_EMOJI = {
    "+1": "👍",
    "-1": "👎",
    "laugh": "😄",
    "confused": "😕",
    "heart": "❤️",
    "hooray": "🎉",
    "rocket": "🚀",
    "eyes": "👀",
}
_HUES = 8


class Frame:
    """Renders templates for one `World`. Pages in other modules share it."""

    def __init__(self, world: World, links: Links) -> None:
        self._world = world
        self._links = links
        self._token = secrets.token_urlsafe()
        loader = FileSystemLoader(Path(__file__).parent / "templates")
        self._templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.filters |= {"markdown": render_markdown, "hue": _choose_hue, "emoji": _EMOJI.__getitem__}
        self._templates.tests["pull"] = lambda issue: isinstance(issue, Pull)
        self._templates.globals |= {"token_field": TOKEN_FIELD, "token": self._token, "path_to": path_to}

    def add_routes(self, app: web.Application) -> None:
        """Put style sheet and script into `app`, and the form by which people say who they are."""
        app.router.add_static("/-/", STATIC)
        app.router.add_post("/you", self.change_person)

    def person(self, request: web.Request) -> User | None:
        """Whoever the browser says it is; None for nobody."""
        user = self._world.users.get(request.cookies.get(COOKIE, "").casefold())
        return user if user in self.people() else None

    def people(self) -> list[User]:
        """Whom one can be."""
        return [user for user in self._world.users.values() if user.type == "User" and user != self._links.app.owner]

    def render(
        self, request: web.Request, template: str, *, status: int = 200, forms_lead_to: str = "", **values: Any
    ) -> web.Response:
        """A page. `forms_lead_to` is the origin of another site to which the answer to a form redirects, if any."""
        frame: dict[str, Any] = {"repository": None, "here": None, "path": request.path_qs}
        frame |= {"you": self.person(request), "people": self.people()}
        html = self._templates.get_template(template).render(frame | values)
        return web.Response(text=html, status=status, content_type="text/html", headers=_headers(forms_lead_to))

    @web.middleware
    async def explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Show browsers a refusal within the frame; programs, such as git, get its text."""
        try:
            return await handler(request)
        except web.HTTPClientError as refusal:
            if "text/html" not in request.headers.get("Accept", ""):
                raise
            words = refusal.text or ""
            if words.startswith(f"{refusal.status}: "):  # aiohttp's own, which says no more than the title.
                words = "There is no such page, or you may not see it: say who you are, at the top of the page."
            words = f"{words[:1].upper()}{words[1:].strip()}"
            return self.render(request, "refused.html", status=refusal.status, title=refusal.reason, words=words)

    async def read_form(self, request: web.Request) -> Mapping[str, str]:
        """The texts of a form; raises HTTP 403 for one that did not come from a page of ours."""
        try:
            fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        except ValueError as error:
            raise web.HTTPBadRequest(text="this form cannot be read\n") from error
        if not secrets.compare_digest(fields.get(TOKEN_FIELD, "").encode(), self._token.encode()):
            raise web.HTTPForbidden(text="this form did not come from this site as it runs now: load its page anew\n")
        return fields

    async def read_signed_form(self, request: web.Request) -> tuple[User, Mapping[str, str]]:
        """Who sent a form, and its texts; raises HTTP 403 for one that nobody sent."""
        fields, person = await self.read_form(request), self.person(request)
        if person is None:
            raise web.HTTPForbidden(text="say first who you are\n")
        return person, fields

    async def change_person(self, request: web.Request) -> web.Response:
        """Be somebody else from now on; without a name, nobody."""
        fields = await self.read_form(request)
        response = web.Response(status=303, headers={"Location": _stay_here(fields.get("back", ""))})
        response.set_cookie(COOKIE, fields.get("login", ""), httponly=True, samesite="Strict")
        return response


def path_to(repository: Repository, issue: Issue) -> str:
    """The path of an issue's or pull request's page."""
    return f"/{repository.full_name}/{'pull' if isinstance(issue, Pull) else 'issues'}/{issue.number}"


def _stay_here(address: str) -> str:
    """The address, if it is a path of this site; else the start."""
    is_path = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_path else "/"


def _headers(forms_lead_to: str) -> dict[str, str]:
    policy = (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        f"base-uri 'none'; frame-ancestors 'none'; form-action 'self' {forms_lead_to}"
    )
    return {
        "Content-Security-Policy": policy.strip(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def _choose_hue(name: str) -> str:
    """The class that gives a name its colour, the same on every page."""
    return f"hue-{sum(name.encode()) % _HUES}"
