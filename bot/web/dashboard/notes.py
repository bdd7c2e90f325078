"""Opening the pull request: a note becomes the person's own comment in the thread, and the thread does the rest.

An App may write as somebody only by a token of theirs, which is asked for at that moment (`sign_in`), and given back to
GitHub once the comment is there. GitHub counts such a comment against the person's limits, so it takes no turn in the
installation's budget of writes:
https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#primary-rate-limit-for-authenticated-users

The note is judged here by the same function as in the thread: somebody who wrote too little reads that before
anything is posted.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from aiohttp import web

from bot.web.auth.oauth import GitHubOAuth, OAuthUnanswered
from bot.web.auth.sessions import Visit
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.forms import Denied, Fields, admit, answering
from bot.web.dashboard.sign_in import PEN, PEN_LASTS, SignIn
from handlers.cases import casebook
from handlers.cases.withheld import fetch_withheld
from handlers.commands.rights import Operation
from handlers.commands.table import Command, parse_commands
from handlers.pulls.note import MAX_NOTE, parse_note
from handlers.pulls.pulls import find_fault
from handlers.text.voice import NOTE_PLACEHOLDER
from runner.aside import run_aside
from runner.model.job import DIGEST_SHOWN, Job, Report
from runner.rows import job_rows
from runner.rows.claims import Claims

log = structlog.get_logger()

LATELY = timedelta(minutes=10)
"""How far back the thread is looked through for the same comment: a form may be sent twice."""

TRIES, TRY_AGAIN_S = 20, 0.25
"""How often somebody looks whether the same note is still being posted, and how many seconds apart."""

BACK = "back"
"""In the query of whoever comes from GitHub with a pen: without one then, there is no use in going again."""


class NotePages:
    """The handlers of the note's page."""

    def __init__(self, desk: DashboardDeps, oauth: GitHubOAuth, sign_in: SignIn) -> None:
        self._desk = desk
        self._oauth = oauth
        self._sign_in = sign_in
        self._claims = Claims(desk.context.db)

    def routes(self) -> list[web.RouteDef]:
        """Every address."""
        return [
            web.get("/jobs/{id}/note", self.show),
            web.post("/jobs/{id}/note", self.post),
        ]

    async def show(self, request: web.Request) -> web.Response:
        """The page on which a note is written; by way of GitHub, where that has not said for whom we may post."""
        visit = self._desk.visits.read(request)
        job = await self._desk.find_job(request, visit)
        if visit.login is None:
            raise self._desk.refuse(visit)
        report = await self._find_standing(job)
        if report is None:
            return self._desk.drawing.say(visit, "No note", "This job's diff does not wait for a note.", 409)
        if not self._find_token(request, visit, job):
            if BACK in request.query:
                return self._desk.drawing.say(visit, "No note", "Your browser keeps no cookies of ours.", 409)
            return self._sign_in.leave(f"/jobs/{job.id}/note?{BACK}", visit, job.id)
        return self._desk.drawing.render(
            "note.html",
            visit,
            job=job,
            digest=(report.digest or "")[:DIGEST_SHOWN],
            wanted=NOTE_PLACEHOLDER,
            longest=MAX_NOTE,
        )

    async def post(self, request: web.Request) -> web.Response:
        """Post a note as the person's own comment. The token is of no more use then."""
        response = await answering(self._desk, self._write)(request)
        if response.status == 303 and (pen := self._desk.visits.read_cookie(request, PEN, PEN_LASTS)):
            await self._oauth.revoke(pen["token"])
            self._desk.visits.drop_cookie(response, PEN)
        return response

    async def _write(self, request: web.Request, visit: Visit, fields: Fields) -> str:
        job = await self._desk.find_job(request, visit)
        await admit(self._desk, visit, job.repository, Operation.OPEN_PULL)
        token, report = self._find_token(request, visit, job), await self._find_standing(job)
        if report is None:
            raise Denied("This job's diff does not wait for a note any more.", 409)
        if not token:
            raise Denied("GitHub has to say once more that we may post for you: go back, copy your note, and reload.")
        body = render_note(fields.get("digest", ""), fields.get("title", ""), fields.get("note", ""))
        await run_aside(report.size, check_note, body, report)
        await self._post_once(token, visit.login or "", job, body)
        log.info("dashboard.noted", **job.log_context(), by=visit.login)
        return f"/jobs/{job.id}?posted"

    async def _post_once(self, token: str, login: str, job: Job, body: str) -> None:
        """Post a comment, unless it is there. Raises `Denied`, and `OAuthFailed`.

        A person who sends the form again waits for the first request to end, on any replica.
        """
        for _ in range(TRIES):
            async with self._claims.hold(f"note {job.id} {login}") as mine:
                if mine:
                    if not await self._is_there(login, job, body):
                        await self._comment(token, login, job, body)
                    return
            await asyncio.sleep(TRY_AGAIN_S)
        raise Denied("Your note is still being posted. Look at the thread in a moment.", 409)

    async def _comment(self, token: str, login: str, job: Job, body: str) -> None:
        try:
            await self._oauth.comment(token, job.repository, job.issue_number, body)
        except OAuthUnanswered:
            # It may have got through, or still get through: a second try now could post it twice.
            await asyncio.sleep(self._oauth.settles.total_seconds())
            if not await self._is_there(login, job, body):
                raise

    async def _is_there(self, login: str, job: Job, body: str) -> bool:
        since = self._desk.context.now() - LATELY
        lately = await self._desk.context.github.list_comments(job.repository, job.issue_number, since)
        return any(comment.author == login and comment.body.strip() == body for comment in lately)

    def _find_token(self, request: web.Request, visit: Visit, job: Job) -> str:
        pen = self._desk.visits.read_cookie(request, PEN, PEN_LASTS)
        fits = pen is not None and pen["job"] == job.id and pen["login"] == visit.login
        return pen["token"] if pen and fits else ""

    async def _find_standing(self, job: Job) -> Report | None:
        """The report of a job whose diff a note would approve."""
        async with self._desk.context.db.read() as connection:
            case = await casebook.fetch_case(connection, job.case_key) if job.thread is not None else None
            report = await job_rows.fetch_report(connection, job.id)
            withheld = await fetch_withheld(connection, job.id)
        stands = case is not None and case.standing_job_id == job.id and report is not None and report.digest
        return report if report and stands and not withheld else None


def render_note(digest: str, title: str, note: str) -> str:
    """The comment that somebody would have written by hand. Pure."""
    words = " ".join(title.replace('"', "'").split())
    option = f' --title "{words}"' if words else ""
    return f"/ptq pr {digest.strip()}{option}\n\n{note.replace(chr(13), '').strip()}".strip()


def check_note(body: str, report: Report) -> None:
    """Raise `Denied` for a note that the thread would refuse, or that says something else besides. Pure."""
    commands = parse_commands(body)
    if len(commands) != 1 or not isinstance(commands[0], Command) or commands[0].verb != "pr":
        raise Denied("A note holds no other command.", 409)
    if fault := find_fault(parse_note(commands[0]), report, []):
        raise Denied(fault, 409)
