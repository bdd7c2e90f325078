"""Who is there: a person who has signed in, known again by a cookie, and forms that are really theirs.

The cookie is the session: encrypted, with the login, the token of its forms and the time of signing in, and no
credential of GitHub's. What somebody may do is asked anew each time, so a session proves who they are, and no more.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from aiohttp import web

from bot.github.session import is_loopback
from bot.web.auth.cookies import Seal
from bot.web.auth.form_fields import Unreadable, read_fields

SESSION = "session"
LASTS = timedelta(hours=8)
"""How long somebody stays signed in."""

CSRF = "csrf"
"""The field of every form that proves that one of our pages had it."""


class Forged(Exception):  # noqa: N818
    """A form did not come from a page of ours that the same person had; the message says why, as a sentence."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, by somebody or nobody."""

    login: str | None = None
    csrf: str = ""
    is_operator: bool = False
    may_sign_in: bool = False
    path: str = ""
    """Where it went, so that whoever signs in comes back."""


class Visits:
    """Reads and writes the cookies of people."""

    def __init__(self, seal: Seal, public_url: str, operators: Collection[str], *, may_sign_in: bool) -> None:
        self._seal = seal
        parts = urlsplit(public_url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._secure = not (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        self._operators = frozenset(login.casefold() for login in operators)
        self._may_sign_in = may_sign_in

    def read(self, request: web.Request) -> Visit:
        """Who is there."""
        nobody = Visit(may_sign_in=self._may_sign_in, path=request.path_qs)
        values = self.read_cookie(request, SESSION, LASTS)
        if values is None or not self._may_sign_in:
            return nobody
        login = values["login"]
        return Visit(login, values["csrf"], login.casefold() in self._operators, True, request.path_qs)

    async def read_form(self, request: web.Request) -> tuple[Visit, dict[str, str]]:
        """Who is there, and the fields of their form. Raises `Forged`."""
        visit = self.read(request)
        if visit.login is None:
            raise Forged("You are not signed in any more.")
        if request.headers.get("Origin") != self._origin:
            raise Forged("This form came from another site.")
        try:
            fields = dict(await read_fields(request))
        except Unreadable as error:
            raise Forged(str(error)) from error
        if not hmac.compare_digest(fields.get(CSRF, "").encode(errors="replace"), visit.csrf.encode()):
            raise Forged("This form is older than your session.")
        return visit, fields

    def begin(self, response: web.StreamResponse, login: str) -> None:
        """Sign somebody in. Nothing of the session before it, if there was one, goes on."""
        self.write_cookie(response, SESSION, {"login": login, "csrf": secrets.token_urlsafe(24)}, LASTS)

    def end(self, response: web.StreamResponse) -> None:
        """Sign somebody out."""
        self.drop_cookie(response, SESSION)

    def read_cookie(self, request: web.Request, purpose: str, lasts: timedelta) -> dict[str, str] | None:
        """What a cookie of ours holds; None where there is none, or it is too old."""
        return self._seal.open(purpose, request.cookies.get(self._name(purpose), ""), lasts)

    def write_cookie(
        self, response: web.StreamResponse, purpose: str, values: Mapping[str, str], lasts: timedelta
    ) -> None:
        """Let a browser keep values that it cannot read."""
        response.set_cookie(
            self._name(purpose),
            self._seal.close(purpose, values),
            max_age=int(lasts.total_seconds()),
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="Lax",
        )

    def drop_cookie(self, response: web.StreamResponse, purpose: str) -> None:
        """Let a browser forget them."""
        response.del_cookie(self._name(purpose), path="/", secure=self._secure, httponly=True, samesite="Lax")

    def _name(self, purpose: str) -> str:
        # With this prefix browsers take it from this very host alone, and from no neighbour below the same domain.
        return f"__Host-ptq-{purpose}" if self._secure else f"ptq-{purpose}"
