"""Access to the set-up pages: only the browser that opened the address from the terminal.

The Host header is checked, because another site may point its own name at this host. Pages need a cookie, and forms
a CSRF token.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from bot.web.auth.form_fields import Unreadable, read_fields
from bot.web.auth.sessions import is_same

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN, CSRF = "token", "csrf"
STATIC = "/static/"


class SetupRefused(Exception):  # noqa: N818 - what is the case
    """A request is refused. The message is a sentence for people."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


AGAIN = (
    "Press Ctrl-C in the terminal, start `ptq-bot setup` again, and open the address that it prints. Nothing is lost."
)


class SetupAccess:
    """Lets in the first browser that has the token, and no other one."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        """For the address. It is valid once."""
        self.csrf_token = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self._is_used = False
        self._hosts: frozenset[str] = frozenset()
        self._cookie = ""

    def set_port(self, port: int) -> str:
        """Protect the pages at this port of the local host. Returns their address."""
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._cookie = f"ptq_setup_{port}"  # Cookies do not distinguish ports.
        return f"http://127.0.0.1:{port}"

    def check_host(self, request: web.Request) -> None:
        """Raises `SetupRefused` for a request to another host name, such as a site that points at this host."""
        if request.host not in self._hosts:
            raise SetupRefused(421, "This page only answers at 127.0.0.1.")

    def authenticate(self, request: web.Request) -> web.Response | None:
        """A redirect with a session for the terminal's address; None for a signed-in browser. Raises `SetupRefused`."""
        token = request.query.get(TOKEN)
        is_style = request.method == "GET" and request.path.startswith(STATIC)
        if is_style or (token is None and self.is_signed_in(request)):
            return None
        if token is None:
            raise SetupRefused(403, f"Access denied. {AGAIN}")
        if not self.is_signed_in(request):
            if not is_same(token, self.token):
                raise SetupRefused(403, "Wrong token. Use the address that the terminal shows.")
            if self._is_used:
                raise SetupRefused(403, f"Another browser or window has already used this address. {AGAIN}")
        self._is_used = True
        answer = web.Response(status=303, headers={"Location": "/"})
        # Lax: GitHub redirects back to these pages, and that request must carry the cookie.
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="Lax", path="/")
        return answer

    async def check_form(self, request: web.Request) -> None:
        """Raises `SetupRefused` for a form from another site."""
        origin = request.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            raise SetupRefused(403, "This form was sent by another site.")
        try:
            csrf_token = dict(await read_fields(request)).get(CSRF, "")
        except Unreadable as error:
            raise SetupRefused(400, str(error)) from error
        except web.HTTPClientError as error:
            raise SetupRefused(error.status, f"This form cannot be read: {error.reason}.") from error
        if not is_same(csrf_token, self.csrf_token):
            raise SetupRefused(403, "This form is from another set-up, or from before a restart. Reload its page.")

    def is_signed_in(self, request: web.Request) -> bool:
        """Whether this is the browser that was let in."""
        shown = request.cookies.get(self._cookie, "")
        return is_same(shown, self._session)
