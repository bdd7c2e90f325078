"""What all pages share: the layout, the person, and the CSRF check of forms.

There is no sign-in: people choose who they are.
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
        """Add the style sheet, the script and the form that chooses the person to `app`."""
        app.router.add_static("/-/", STATIC)
        app.router.add_post("/you", self.change_person)

    def person(self, request: web.Request) -> User | None:
        """The person that the browser has chosen; None for nobody."""
        user = self._world.users.get(request.cookies.get(COOKIE, "").casefold())
        return user if user in self.people() else None

    def people(self) -> list[User]:
        """The people to choose from."""
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
        """Show an error as a page to browsers, and as text to programs such as git."""
        try:
            return await handler(request)
        except web.HTTPClientError as refusal:
            if "text/html" not in request.headers.get("Accept", ""):
                raise
            words = refusal.text or ""
            if words.startswith(f"{refusal.status}: "):  # aiohttp's default text
                words = "Not found, or you don't have access. Choose who you are at the top of the page."
            words = f"{words[:1].upper()}{words[1:].strip()}"
            return self.render(request, "refused.html", status=refusal.status, title=refusal.reason, words=words)

    async def read_form(self, request: web.Request) -> Mapping[str, str]:
        """The fields of a form. Raises HTTP 403 if it did not come from one of our pages."""
        try:
            fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        except ValueError as error:
            raise web.HTTPBadRequest(text="this form cannot be read\n") from error
        if not secrets.compare_digest(fields.get(TOKEN_FIELD, "").encode(), self._token.encode()):
            raise web.HTTPForbidden(text="this form is from another site, or from before a restart: reload its page\n")
        return fields

    async def read_signed_form(self, request: web.Request) -> tuple[User, Mapping[str, str]]:
        """The sender of a form, and its fields. Raises HTTP 403 if nobody is chosen."""
        fields, person = await self.read_form(request), self.person(request)
        if person is None:
            raise web.HTTPForbidden(text="choose who you are first\n")
        return person, fields

    async def change_person(self, request: web.Request) -> web.Response:
        """Become another person, or nobody without a name."""
        fields = await self.read_form(request)
        response = web.Response(status=303, headers={"Location": _stay_here(fields.get("back", ""))})
        response.set_cookie(COOKIE, fields.get("login", ""), httponly=True, samesite="Strict")
        return response


def path_to(repository: Repository, issue: Issue) -> str:
    """The path of an issue's or pull request's page."""
    return f"/{repository.full_name}/{'pull' if isinstance(issue, Pull) else 'issues'}/{issue.number}"


def _stay_here(address: str) -> str:
    """The address, if it is a path of this site; else the start page."""
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
    """The CSS class with the colour of a name, the same on every page."""
    return f"hue-{sum(name.encode()) % _HUES}"
