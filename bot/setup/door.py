"""Who may see and use the pages of set-up: one browser, which came by the address that the terminal shows.

Another web site that is open in that browser is kept out: by the Host header (it may point a name of its own at us), by
a cookie, and in forms by a word that only our own pages hold. It refuses to know the pages.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from bot.web.auth.form_fields import Unreadable, read_fields

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN, WORD = "token", "csrf"
STATIC = "/static/"


class SetupRefused(Exception):  # noqa: N818 - what is the case
    """A request that is not for us to answer. The message is a sentence for people."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


AGAIN = (
    "End `ptq-bot setup` in the terminal by Ctrl-C, start it again, and open the address that it prints. "
    "Nothing is lost."
)


class Door:
    """Lets in the first browser that has the token, and no other."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        """For the address; good once."""
        self.word = secrets.token_urlsafe(24)
        """For forms."""
        self._session = secrets.token_urlsafe(24)
        self._is_used = False
        self._hosts: frozenset[str] = frozenset()
        self._cookie = ""

    def stand_at(self, port: int) -> str:
        """Guard the pages at this port of the host itself. Returns their address."""
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._cookie = f"ptq_setup_{port}"  # Cookies know hosts, and no ports.
        return f"http://127.0.0.1:{port}"

    def check_host(self, request: web.Request) -> None:
        """Raises `SetupRefused` for a request that was sent to another name: that of a site which points at us."""
        if request.host not in self._hosts:
            raise SetupRefused(421, "This page is at 127.0.0.1, and answers to no other name.")

    def enter(self, request: web.Request) -> web.Response | None:
        """The answer to who comes by the address of the terminal, or None to who is in. Raises `SetupRefused`."""
        token = request.query.get(TOKEN)
        is_style = request.method == "GET" and request.path.startswith(STATIC)
        if is_style or (token is None and self.is_inside(request)):
            return None
        if token is None:
            raise SetupRefused(403, f"This browser has not been let in. {AGAIN}")
        if not self.is_inside(request):
            if not _is_same(token, self.token):
                raise SetupRefused(403, "The address is not the one that the terminal shows: its token is another.")
            if self._is_used:
                raise SetupRefused(403, f"This address was used already, by another browser or window. {AGAIN}")
        self._is_used = True
        answer = web.Response(status=303, headers={"Location": "/"})
        # Lax: GitHub leads back to us, and that must count as being inside.
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="Lax", path="/")
        return answer

    async def check_form(self, request: web.Request) -> None:
        """Raises `SetupRefused` for a form that another site has sent."""
        origin = request.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            raise SetupRefused(403, "This form was sent by another site.")
        try:
            word = dict(await read_fields(request)).get(WORD, "")
        except Unreadable as error:
            raise SetupRefused(400, str(error)) from error
        except web.HTTPClientError as error:
            raise SetupRefused(error.status, f"This form cannot be read: {error.reason}.") from error
        if not _is_same(word, self.word):
            raise SetupRefused(
                403, "This form is not of this set-up, or of one that was started anew: load its page again."
            )

    def is_inside(self, request: web.Request) -> bool:
        """Whether a request is of the browser that was let in."""
        shown = request.cookies.get(self._cookie, "")
        return _is_same(shown, self._session)


def _is_same(shown: str, own: str) -> bool:
    # What a browser sends may hold halves of characters, which UTF-8 cannot say.
    return hmac.compare_digest(shown.encode(errors="replace"), own.encode())
