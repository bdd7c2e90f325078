"""The dependencies of all dashboard pages, and the checks that they share."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from aiohttp import web

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.cookies import CookieCipher
from bot.web.auth.headers import HEADERS
from bot.web.auth.oauth import GitHubOAuth
from bot.web.auth.page_queue import PageQueue
from bot.web.auth.sessions import Sessions, Visitor
from bot.web.auth.visibility import Visibility
from bot.web.dashboard.rendering import Renderer
from handlers.context import Context
from handlers.jobs.history import settle_base_branch
from handlers.ports import GitHubError, GitHubUnavailable
from runner.characters import make_storable
from runner.model.job import Job
from runner.rows import job_rows

log = structlog.get_logger()

NO_SIGN_IN = (
    "This page is for operators. Nobody can sign in, because ptq.toml has no [dashboard] table. "
    "On the service's host, ptq-bot deliveries and ptq-bot costs show the same."
)


@dataclass(frozen=True, slots=True)
class DashboardDeps:
    """The dependencies of the dashboard."""

    context: Context
    renderer: Renderer
    sessions: Sessions
    visibility: Visibility
    oauth: GitHubOAuth | None
    queue: PageQueue
    """The queue in which requests for pages wait. To show a refused form again also takes a turn in it."""

    @classmethod
    def set_up(cls, context: Context, auth: AuthConfig) -> DashboardDeps:
        """Build the dependencies. The database must be open, because it holds the secret for cookies."""
        signs_in = auth.oauth is not None
        sessions = Sessions(
            CookieCipher(context.db.secret, context.now), context.public_url, auth.operators, may_sign_in=signs_in
        )
        visibility = Visibility(
            context,
            public=auth.public,
            by_address=not signs_in,
            lasts_s=auth.role_lasts_s,
            none_lasts_s=auth.none_lasts_s,
            list_left=auth.list_left,
            calls_of_person=auth.calls_of_person,
        )
        renderer = Renderer(context, auth.web_url, visibility.explain_not_asked)
        queue = PageQueue(lambda request: sessions.read(request).login)
        return cls(context, renderer, sessions, visibility, auth.oauth, queue)

    async def find_job(self, request: web.Request, visitor: Visitor) -> Job:
        """The job in a page's address. A job that the visitor may not see looks like one that does not exist."""
        async with self.context.db.read() as connection:
            job = await job_rows.fetch_job(connection, make_storable(request.match_info["id"]))
        if job is None or not await self.visibility.sees(visitor, job):
            raise self.refuse(visitor)
        return job

    async def aim(self, job: Job) -> Job:
        """The job with the branch that its pull request goes to. If GitHub does not answer, the job is unchanged."""
        rules = self.context.rules_for(job.repository)
        try:
            return await settle_base_branch(self.context.github, rules, job) if rules else job
        except (GitHubError, GitHubUnavailable) as error:
            log.warning("dashboard.base_branch_unknown", repository=job.repository, reason=str(error))
            return job

    def refuse(self, visitor: Visitor) -> web.HTTPException:
        """The answer for a page that does not exist or that the visitor may not see."""
        page = self.renderer.render_page("missing.html", visitor)
        return web.HTTPNotFound(text=page.text, content_type="text/html", headers=HEADERS)

    def redirect(self, path: str) -> web.Response:
        """The answer that leads a browser to one of our pages, as after a form was carried out."""
        return web.Response(status=303, headers={**HEADERS, "Location": f"{self.context.public_url}{path}"})

    def require_operator(self, visitor: Visitor) -> None:
        """Raise `HTTPNotFound` unless the visitor is an operator. If nobody can sign in, the page says so."""
        if not visitor.may_sign_in:
            page = self.renderer.render_message(visitor, "Nobody can sign in", NO_SIGN_IN, 404)
            raise web.HTTPNotFound(text=page.text, content_type="text/html", headers=HEADERS)
        if not visitor.is_operator:
            raise self.refuse(visitor)
