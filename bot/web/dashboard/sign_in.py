"""Signing in and out, by the App's own OAuth.

The token that comes of it says who is there, and is given back to GitHub at once. One case needs it for longer: a note
that is to be the person's own comment. Then GitHub is asked anew, which takes no click where the person has agreed
before, and the token waits, encrypted, in that person's own browser until the note is written, for an hour at most.
"""

from __future__ import annotations

import hmac
import re
import secrets
from datetime import timedelta

import structlog
from aiohttp import web

from bot.web.auth.oauth import GitHubOAuth, OAuthFailed
from bot.web.auth.sessions import Forged, Visit
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.drawing import HEADERS

log = structlog.get_logger()

TRIP = "trip"
"""What a browser keeps while its person is at GitHub."""
TRIP_LASTS = timedelta(minutes=10)

PEN = "pen"
"""The token by which a person's note becomes their own comment, and the job that it is for."""
PEN_LASTS = timedelta(hours=1)

CALLBACK = "/sign-in/callback"

_PATH = re.compile(r"/(?:[A-Za-z0-9][A-Za-z0-9_/.%~?=&+#:-]*)?")
"""An address of ours: no second slash, by which a browser would go elsewhere."""


class SignIn:
    """The handlers of signing in and out."""

    def __init__(self, desk: DashboardDeps, oauth: GitHubOAuth) -> None:
        self._desk = desk
        self._oauth = oauth

    def routes(self) -> list[web.RouteDef]:
        """Every address."""
        return [
            web.get("/sign-in", self.begin),
            web.get(CALLBACK, self.come_back),
            web.post("/sign-out", self.sign_out),
        ]

    async def begin(self, request: web.Request) -> web.Response:
        """To GitHub, to be asked who is there."""
        return self.leave(request.query.get("next", "/"))

    def leave(self, path: str, visit: Visit | None = None, job_id: str = "") -> web.Response:
        """Send somebody to GitHub; they come back to `path`, with a pen where it is for a note on a job."""
        trip = {
            "state": secrets.token_urlsafe(24),
            "verifier": secrets.token_urlsafe(48),
            "path": path if _PATH.fullmatch(path) else "/",
            "job": job_id,
        }
        login = (visit and visit.login) or ""
        url = self._oauth.authorize_url(trip["state"], trip["verifier"], self._redirect_uri, login)
        response = web.Response(status=303, headers={**HEADERS, "Location": url})
        self._desk.visits.write_cookie(response, TRIP, trip, TRIP_LASTS)
        return response

    async def come_back(self, request: web.Request) -> web.Response:
        """From GitHub, with a code: of this very browser's trip, and good for once."""
        visit, trip = self._desk.visits.read(request), self._desk.visits.read_cookie(request, TRIP, TRIP_LASTS)
        state, code = request.query.get("state", ""), request.query.get("code", "")
        if trip is None or not hmac.compare_digest(state.encode(errors="replace"), trip["state"].encode()):
            return self._refuse(visit, "This sign-in was not begun in this browser, or too long ago.")
        if not code:
            return self._refuse(visit, "GitHub says that you did not agree.")
        try:
            token = await self._oauth.redeem(code, trip["verifier"], self._redirect_uri)
            login = await self._oauth.fetch_login(token)
        except OAuthFailed as failed:
            return self._refuse(visit, str(failed))
        if not trip["job"]:
            await self._oauth.revoke(token)
            response = self._go(trip["path"])
            self._desk.visits.begin(response, login)
            log.info("dashboard.signed_in", login=login)
        elif login.casefold() == (visit.login or "").casefold():
            response = self._go(trip["path"])
            self._desk.visits.write_cookie(
                response, PEN, {"token": token, "job": trip["job"], "login": visit.login or ""}, PEN_LASTS
            )
        else:
            await self._oauth.revoke(token)
            return self._refuse(visit, "At GitHub you are somebody else than here. Please sign out first.")
        self._desk.visits.drop_cookie(response, TRIP)
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """Forget who was there."""
        try:
            await self._desk.visits.read_form(request)
        except Forged as forged:
            return self._refuse(self._desk.visits.read(request), str(forged))
        response = self._go("/")
        for purpose in (TRIP, PEN):
            self._desk.visits.drop_cookie(response, purpose)
        self._desk.visits.end(response)
        return response

    @property
    def _redirect_uri(self) -> str:
        return f"{self._desk.context.public_url}{CALLBACK}"

    def _go(self, path: str) -> web.Response:
        return web.Response(status=303, headers={**HEADERS, "Location": f"{self._desk.context.public_url}{path}"})

    def _refuse(self, visit: Visit, words: str) -> web.Response:
        response = self._desk.drawing.say(visit, "Not signed in", words, 403)
        self._desk.visits.drop_cookie(response, TRIP)
        return response
