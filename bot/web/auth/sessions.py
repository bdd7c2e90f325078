"""Sessions of signed-in people, and the CSRF check of their forms.

The session is an encrypted cookie with the login, the CSRF token and the time of sign-in. It holds no GitHub
credential. It holds no permissions either, because the service asks GitHub for these.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from urllib.parse import urlsplit

from aiohttp import web

from bot.github.session import is_loopback
from bot.web.auth.cookies import CookieCipher
from bot.web.auth.form_fields import Unreadable, read_fields

SESSION = "session"
LASTS = timedelta(hours=8)
"""How long a session lasts."""

CSRF = "csrf"
"""The field with the CSRF token."""


class FormRefused(Exception):  # noqa: N818
    """A form cannot be read, or is not from a page of this session. The message is a sentence for people."""

    def __init__(self, words: str, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        """`fields` are the fields of a form from a page of this site. A form from another site is never shown again."""
        super().__init__(words)
        self.fields = fields


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request. `login` is None if nobody is signed in."""

    login: str | None = None
    csrf: str = ""
    is_operator: bool = False
    may_sign_in: bool = False
    path: str = ""
    """The requested path. The visitor returns to it after sign-in."""

    def sign(self, text: str) -> str:
        """A code for `text` that only pages of this session know. It is used in addresses. Pure."""
        return hmac.digest(self.csrf.encode(), text.encode(), "sha256").hex()[:32]


def is_same(given: str, secret: str) -> bool:
    """Whether the sender of a request gave this secret. The time of the comparison does not depend on it."""
    # A browser may send lone surrogates, which UTF-8 cannot encode.
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


class Sessions:
    """Reads and writes the cookies of people."""

    def __init__(self, cipher: CookieCipher, public_url: str, operators: Collection[str], *, may_sign_in: bool) -> None:
        self._cipher = cipher
        parts = urlsplit(public_url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._secure = not (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        self._operators = frozenset(login.casefold() for login in operators)
        self._may_sign_in = may_sign_in

    def read(self, request: web.Request) -> Visitor:
        """The sender of a request."""
        nobody = Visitor(may_sign_in=self._may_sign_in, path=request.path_qs)
        values = self.read_cookie(request, SESSION, LASTS)
        if values is None or not self._may_sign_in:
            return nobody
        login = values["login"]
        return Visitor(login, values["csrf"], login.casefold() in self._operators, True, request.path_qs)

    async def read_form(self, request: web.Request) -> tuple[Visitor, dict[str, str]]:
        """The sender of a form, and its fields. Raises `FormRefused`."""
        visitor = self.read(request)
        if request.headers.get("Origin") != self._origin:
            raise FormRefused("This form came from another site.")
        try:
            fields = dict(await read_fields(request))
        except Unreadable as error:
            raise FormRefused(str(error)) from error
        if visitor.login is None:
            raise FormRefused("You are no longer signed in.", fields)
        if not is_same(fields.get(CSRF, ""), visitor.csrf):
            raise FormRefused("Your session has changed.", fields)
        return visitor, fields

    def begin(self, response: web.StreamResponse, login: str) -> None:
        """Sign a person in, with a new session."""
        self.write_cookie(response, SESSION, {"login": login, "csrf": secrets.token_urlsafe(24)}, LASTS)

    def end(self, response: web.StreamResponse) -> None:
        """Sign a person out."""
        self.drop_cookie(response, SESSION)

    def read_cookie(self, request: web.Request, purpose: str, lasts: timedelta) -> dict[str, str] | None:
        """The values of a cookie. None if there is no valid one, or if it is too old."""
        return self._cipher.decrypt(purpose, request.cookies.get(self._name(purpose), ""), lasts)

    def write_cookie(
        self, response: web.StreamResponse, purpose: str, values: Mapping[str, str], lasts: timedelta
    ) -> None:
        """Set an encrypted cookie."""
        response.set_cookie(
            self._name(purpose),
            self._cipher.encrypt(purpose, values),
            max_age=int(lasts.total_seconds()),
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="Lax",
        )

    def drop_cookie(self, response: web.StreamResponse, purpose: str) -> None:
        """Delete a cookie."""
        response.del_cookie(self._name(purpose), path="/", secure=self._secure, httponly=True, samesite="Lax")

    def _name(self, purpose: str) -> str:
        # With this prefix, browsers accept the cookie only from this host, not from other hosts of the same domain.
        return f"__Host-ptq-{purpose}" if self._secure else f"ptq-{purpose}"
