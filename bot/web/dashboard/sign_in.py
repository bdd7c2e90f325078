"""Sign-in and sign-out, with the App's OAuth.

The token of a sign-in only identifies the person, and is revoked at once. For a note, GitHub is asked for another
token, without a click if the person has agreed before. With that token, the note is posted as the person's own comment.
On a job without an issue, GitHub uses the token to say whose note it is. The token stays encrypted in the person's
browser until the note is sent, for an hour at most.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import timedelta

import structlog
from aiohttp import web
from cachetools import TTLCache

from bot.web.auth.clients import find_client
from bot.web.auth.headers import HEADERS
from bot.web.auth.oauth import GitHubOAuth, OAuthFailed
from bot.web.auth.page_queue import PageQueue
from bot.web.auth.sessions import FormRefused, Visitor, is_same
from bot.web.dashboard.deps import DashboardDeps

log = structlog.get_logger()

STATE_COOKIE = "trip"
"""The cookie with the OAuth state, while the person is on GitHub's page."""
STATE_COOKIE_LASTS = timedelta(minutes=10)

NOTE_COOKIE = "pen"
"""The cookie with the token for a note, and the note's job."""
NOTE_COOKIE_LASTS = timedelta(hours=1)

CALLBACK = "/sign-in/callback"

MOST_USED = 20_000
"""The most used states that are remembered. The queue lets fewer sign-ins through while their cookies last."""

_PATH = re.compile(r"/(?:[A-Za-z0-9][A-Za-z0-9_/.%~?=&+#:-]*)?")
"""A path on this site. It cannot begin with two slashes, because that would lead to another site."""


class SignIn:
    """The handlers of sign-in and sign-out."""

    def __init__(self, deps: DashboardDeps, oauth: GitHubOAuth) -> None:
        self._deps = deps
        self._oauth = oauth
        lasts_s, now = STATE_COOKIE_LASTS.total_seconds(), deps.context.now
        self._used: TTLCache[str, bool] = TTLCache(MOST_USED, lasts_s, timer=lambda: now().timestamp())
        # Sign-ins have a queue of their own. Each of them waits for GitHub, so strangers could make other pages wait.
        # Somebody who is not signed in yet is known by address only, so each address counts as one reader.
        self._queue = PageQueue(lambda request: deps.sessions.read(request).login or find_client(request))

    def routes(self) -> list[web.RouteDef]:
        """The routes of sign-in and sign-out."""
        return [
            web.get("/sign-in", self.begin),
            web.get(CALLBACK, self.come_back),
            web.post("/sign-out", self.sign_out),
        ]

    async def begin(self, request: web.Request) -> web.Response:
        """Redirect to GitHub's sign-in page."""
        return self.leave(request.query.get("next", "/"))

    def leave(self, path: str, visitor: Visitor | None = None, job_id: str = "") -> web.Response:
        """Redirect to GitHub, and from there back to `path`. With `job_id`, keep a token for a note on that job."""
        trip = {
            "state": secrets.token_urlsafe(24),
            "verifier": secrets.token_urlsafe(48),
            "path": path if _PATH.fullmatch(path) else "/",
            "job": job_id,
        }
        login = (visitor and visitor.login) or ""
        url = self._oauth.authorize_url(trip["state"], trip["verifier"], self._redirect_uri, login)
        response = web.Response(status=303, headers={**HEADERS, "Location": url})
        self._deps.sessions.write_cookie(response, STATE_COOKIE, trip, STATE_COOKIE_LASTS)
        return response

    async def come_back(self, request: web.Request) -> web.Response:
        """Handle GitHub's redirect. It must belong to a sign-in of this browser. Each sign-in asks GitHub only once."""
        visitor, trip = (
            self._deps.sessions.read(request),
            self._deps.sessions.read_cookie(request, STATE_COOKIE, STATE_COOKIE_LASTS),
        )
        state, code = request.query.get("state", ""), request.query.get("code", "")
        if trip is None or not is_same(state, trip["state"]):
            return self._refuse(visitor, "This sign-in was not started in this browser, or has expired.")
        if state in self._used:
            return self._refuse_again(visitor)
        if not code:
            return self._refuse(visitor, "You did not authorize ptq-bot on GitHub.")
        # Only a request for which GitHub is asked takes a place, so a flood of invented sign-ins makes nobody wait.
        return await self._queue.make(request, lambda: self._ask(request, visitor, trip, code))

    async def _ask(self, request: web.Request, visitor: Visitor, trip: Mapping[str, str], code: str) -> web.Response:
        if trip["state"] in self._used:
            return self._refuse_again(visitor)
        self._used[trip["state"]] = True
        try:
            token = await self._oauth.redeem(code, trip["verifier"], self._redirect_uri)
            login = (await self._oauth.fetch_account(token)).login
        except OAuthFailed as failed:
            return self._refuse(visitor, str(failed))
        if not trip["job"]:
            await self._oauth.revoke(token)
            response = self._deps.redirect(trip["path"])
            self._deps.sessions.begin(response, login)
            log.info("dashboard.signed_in", login=login)
        elif login.casefold() == (visitor.login or "").casefold():
            await self._revoke_note_token(request)
            response = self._deps.redirect(trip["path"])
            self._deps.sessions.write_cookie(
                response,
                NOTE_COOKIE,
                {"token": token, "job": trip["job"], "login": visitor.login or ""},
                NOTE_COOKIE_LASTS,
            )
        else:
            await self._oauth.revoke(token)
            return self._refuse(visitor, "You're signed in to GitHub as a different user. Please sign out here first.")
        self._deps.sessions.drop_cookie(response, STATE_COOKIE)
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """End the session. A token for a note that was not posted is revoked."""
        try:
            await self._deps.sessions.read_form(request)
        except FormRefused as forged:
            return self._refuse(self._deps.sessions.read(request), str(forged))
        await self._revoke_note_token(request)
        response = self._deps.redirect("/")
        for purpose in (STATE_COOKIE, NOTE_COOKIE):
            self._deps.sessions.drop_cookie(response, purpose)
        self._deps.sessions.end(response)
        return response

    async def _revoke_note_token(self, request: web.Request) -> None:
        if kept := self._deps.sessions.read_cookie(request, NOTE_COOKIE, NOTE_COOKIE_LASTS):
            await self._oauth.revoke(kept["token"])

    @property
    def _redirect_uri(self) -> str:
        return f"{self._deps.context.public_url}{CALLBACK}"

    def _refuse_again(self, visitor: Visitor) -> web.Response:
        return self._refuse(visitor, "This sign-in was already used. Please sign in again.")

    def _refuse(self, visitor: Visitor, words: str) -> web.Response:
        response = self._deps.renderer.render_message(visitor, "Not signed in", words, 403)
        self._deps.sessions.drop_cookie(response, STATE_COOKIE)
        return response
