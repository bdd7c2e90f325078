"""The dependencies of all dashboard pages, and the checks that they share."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.cookies import CookieCipher
from bot.web.auth.oauth import GitHubOAuth
from bot.web.auth.sessions import Visit, Visits
from bot.web.auth.visibility import Sight
from bot.web.dashboard.rendering import HEADERS, Renderer
from handlers.context import Context
from runner.characters import make_storable
from runner.model.job import Job
from runner.rows import job_rows


@dataclass(frozen=True, slots=True)
class DashboardDeps:
    """The dependencies of the dashboard."""

    context: Context
    renderer: Renderer
    visits: Visits
    sight: Sight
    oauth: GitHubOAuth | None

    @classmethod
    def set_up(cls, context: Context, auth: AuthConfig) -> DashboardDeps:
        """Build them. The database must be open, because it holds the secret for cookies."""
        signs_in = auth.oauth is not None
        visits = Visits(
            CookieCipher(context.db.secret, context.now), context.public_url, auth.operators, may_sign_in=signs_in
        )
        sight = Sight(context, public=auth.public, by_address=not signs_in, lasts_s=auth.role_lasts_s)
        return cls(context, Renderer(context, auth.web_url), visits, sight, auth.oauth)

    async def find_job(self, request: web.Request, visit: Visit) -> Job:
        """The job in a page's address. A job that the visitor may not see looks like one that does not exist."""
        async with self.context.db.read() as connection:
            job = await job_rows.fetch_job(connection, make_storable(request.match_info["id"]))
        if job is None or not await self.sight.sees(visit, job):
            raise self.refuse(visit)
        return job

    def refuse(self, visit: Visit) -> web.HTTPException:
        """The answer for a page that does not exist or that the visitor may not see."""
        if not visit.may_sign_in:
            return web.HTTPNotFound(text="there is no such job\n", headers=HEADERS)
        page = self.renderer.render_page("missing.html", visit)
        return web.HTTPNotFound(text=page.text, content_type="text/html", headers=HEADERS)

    def require_operator(self, visit: Visit) -> None:
        """Raise the same answer for people who are not operators."""
        if not visit.is_operator:
            raise self.refuse(visit)
