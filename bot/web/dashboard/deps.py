"""What every page of the dashboard works with, in one frozen value, and what they all say alike."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.cookies import Seal
from bot.web.auth.oauth import GitHubOAuth
from bot.web.auth.sessions import Visit, Visits
from bot.web.auth.visibility import Sight
from bot.web.dashboard.drawing import HEADERS, Drawing
from handlers.context import Context
from runner.characters import make_storable
from runner.model.job import Job
from runner.rows import job_rows


@dataclass(frozen=True, slots=True)
class DashboardDeps:
    """See the module."""

    context: Context
    drawing: Drawing
    visits: Visits
    sight: Sight
    oauth: GitHubOAuth | None

    @classmethod
    def set_up(cls, context: Context, auth: AuthConfig) -> DashboardDeps:
        """The database is open already: what seals cookies is in it."""
        signs_in = auth.oauth is not None
        visits = Visits(Seal(context.db.secret, context.now), context.public_url, auth.operators, may_sign_in=signs_in)
        sight = Sight(context, public=auth.public, by_address=not signs_in, lasts_s=auth.role_lasts_s)
        return cls(context, Drawing(context, auth.web_url), visits, sight, auth.oauth)

    async def find_job(self, request: web.Request, visit: Visit) -> Job:
        """The job of a page's address. One that they may not see is as absent as one that never was."""
        async with self.context.db.read() as connection:
            job = await job_rows.fetch_job(connection, make_storable(request.match_info["id"]))
        if job is None or not await self.sight.sees(visit, job):
            raise self.refuse(visit)
        return job

    def refuse(self, visit: Visit) -> web.HTTPException:
        """What stands in place of a page that is not there for them."""
        if not visit.may_sign_in:
            return web.HTTPNotFound(text="there is no such job\n", headers=HEADERS)
        page = self.drawing.render("missing.html", visit)
        return web.HTTPNotFound(text=page.text, content_type="text/html", headers=HEADERS)

    def require_operator(self, visit: Visit) -> None:
        """Pages that are for operators alone are absent for others."""
        if not visit.is_operator:
            raise self.refuse(visit)
