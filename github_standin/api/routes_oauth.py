"""Sign-in through the App: the web application flow, and the tokens that it creates.

Source: docs.github.com, "Generating a user access token for a GitHub App". Instead of a password, a page asks who you
want to be.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, StrictUndefined
from yarl import URL

from github_standin.api.calls import Call
from github_standin.model.answers import Answer, Refusal, not_found
from github_standin.model.auth import Authority
from github_standin.model.render import Json, render_account
from github_standin.model.state import App, User, World

CODE_LIFE = timedelta(minutes=10)

_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "X-Frame-Options": "DENY"}

_PAGE = Environment(autoescape=True, undefined=StrictUndefined).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in</title><style>
:root { color-scheme: light dark } body { font: 16px/1.5 system-ui, sans-serif; max-width: 30rem; margin: 2rem auto;
padding: 0 1rem } button { font: inherit; width: 100%; margin: .3rem 0; padding: .5rem; text-align: left }
</style></head><body><main><h1>Sign in to {{ app }}</h1><p>This GitHub is a stand-in: choose who you are.</p>
{% for login in logins %}<form method="post">{% for name, value in fields.items() %}
<input type="hidden" name="{{ name }}" value="{{ value }}">{% endfor %}
<button name="login" value="{{ login }}">Sign in as <b>{{ login }}</b></button></form>{% endfor %}
</main></body></html>""")


def _is_person(user: User) -> bool:
    """Whether somebody can sign in with an account. The owner of an App without a name is a placeholder."""
    return user.type == "User" and not user.login.startswith("-")


@dataclass(frozen=True, slots=True)
class _Code:
    """A code that can be exchanged for a token once."""

    login: str
    redirect_uri: str
    challenge: str
    expires_at: datetime


class OAuth:
    """The pages under `/login/oauth`."""

    def __init__(self, world: World, app: App, authority: Authority) -> None:
        self._world = world
        self._app = app
        self._authority = authority
        self._codes: dict[str, _Code] = {}

    def add_routes(self, app: web.Application) -> None:
        """Add the pages to `app`."""
        app.router.add_get("/login/oauth/authorize", self.ask)
        app.router.add_post("/login/oauth/authorize", self.consent)
        app.router.add_post("/login/oauth/access_token", self.redeem)

    async def ask(self, request: web.Request) -> web.Response:
        """The page that asks who you are."""
        fields = self._check(request.query)
        people = sorted(user.login for user in self._world.users.values() if _is_person(user))
        html = _PAGE.render(app=self._app.slug, logins=people, fields=fields)
        return web.Response(text=html, content_type="text/html", headers=_POLICY)

    async def consent(self, request: web.Request) -> web.Response:
        """Redirect back to the App with a code."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        fields = self._check(form)
        user = self._world.users.get(form.get("login", "").casefold())
        if user is None or not _is_person(user):
            raise web.HTTPNotFound
        code, expires_at = secrets.token_hex(10), self._world.clock() + CODE_LIFE
        self._codes[code] = _Code(user.login, fields["redirect_uri"], fields["code_challenge"], expires_at)
        back = URL(fields["redirect_uri"]).update_query(code=code, state=fields["state"])
        raise web.HTTPFound(back)

    async def redeem(self, request: web.Request) -> web.Response:
        """Exchange a code for a token. GitHub always answers 200."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        return web.json_response(self._redeem(form))

    def _redeem(self, form: Mapping[str, str]) -> Json:
        app = self._app
        known = hmac.compare_digest(form.get("client_secret", "").encode(), app.client_secret.encode())
        if form.get("client_id") != app.client_id or not known:
            return {"error": "incorrect_client_credentials", "error_description": "The client_id is incorrect."}
        code = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if code is None or code.expires_at <= self._world.clock() or code.challenge not in ("", challenge):
            return {"error": "bad_verification_code", "error_description": "The code passed is incorrect or expired."}
        if form.get("redirect_uri") not in (None, code.redirect_uri):
            return {"error": "redirect_uri_mismatch", "error_description": "The redirect_uri must match."}
        token = self._authority.mint_for(self._world.add_user(code.login))
        return {"access_token": token.value, "token_type": "bearer", "scope": ""}

    def _check(self, given: Mapping[str, str]) -> dict[str, str]:
        """The fields of a sign-in request. Another App, or another App's address, is refused."""
        names = ("client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method")
        fields = {name: given.get(name, "") for name in names}
        if fields["client_id"] != self._app.client_id:
            raise web.HTTPNotFound
        if urlsplit(fields["redirect_uri"]).scheme not in ("http", "https"):
            raise web.HTTPBadRequest(text="The redirect_uri is not associated with this application.")
        if fields["code_challenge_method"] not in ("", "S256"):
            raise web.HTTPBadRequest(text="code_challenge_method must be S256")
        return fields


async def get_authenticated(call: Call) -> Answer:
    """The owner of the token."""
    assert call.token
    return Answer(200, render_account(call.site.links, call.actor))


async def delete_token(call: Call) -> Answer:
    """Revoke a person's token, with the App's credentials."""
    if call.params["client_id"] != call.site.links.app.client_id:
        raise not_found()
    if not call.site.authority.revoke(call.text("access_token")):
        raise Refusal(422, "Validation Failed")
    return Answer(204)
