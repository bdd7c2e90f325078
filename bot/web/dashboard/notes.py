"""Opens a pull request with a person's note.

On a job of an issue, the note is posted as the person's own comment in the thread. The comment is then handled like any
other. A job without an issue has no thread, so the note is stored here, with the id of the person's account.

Both need a token of the person. The token is requested just before (`sign_in`), and revoked after the note was
accepted. So GitHub itself says whose note it is at that moment. The session alone would only say who signed in, perhaps
hours ago. GitHub counts the comment against the person's limits, so it does not use the installation's write budget:
https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#primary-rate-limit-for-authenticated-users

The note is checked first, with the same function as in the thread. So a note that is too short is not posted.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from types import MappingProxyType

import structlog
from aiohttp import web

from bot.web.auth.oauth import GitHubOAuth, OAuthUnanswered
from bot.web.auth.page_queue import run_for_page
from bot.web.auth.sessions import Visitor
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.forms import ActionRefused, Fields, FormRefusal, admit, handle_form
from bot.web.dashboard.sign_in import NOTE_COOKIE, NOTE_COOKIE_LASTS, SignIn
from handlers.cases import casebook
from handlers.cases.withheld import fetch_withheld
from handlers.commands.rights import Operation, Person
from handlers.commands.table import Command, find_command_with_mail, parse_commands
from handlers.pulls.note import DOUBLE_QUOTES, MAX_NOTE, MIN_LETTERS, NOTE_EXAMPLE, NoteText, parse_note
from handlers.pulls.pulls import NotApproved, approve_on_page, find_fault
from handlers.text.voice import NOTE_PLACEHOLDER
from handlers.words.report_comment import approvable, find_secrets
from runner.aside import run_aside
from runner.model.job import DIGEST_SHOWN, Job, Report
from runner.rows import job_rows
from runner.rows.claims import Claims

log = structlog.get_logger()

LATELY = timedelta(minutes=10)
"""How far back the thread is searched for the same comment, because a form may be sent twice."""

TRIES, TRY_AGAIN_S = 20, 0.25
"""How often to try again while another request posts the same note, and the seconds between two attempts."""

BACK = "back"
"""A word in the query after a redirect from GitHub. If there is still no token, another redirect would not help."""


class NotePages:
    """The handlers of the note page."""

    def __init__(self, deps: DashboardDeps, oauth: GitHubOAuth, sign_in: SignIn) -> None:
        self._deps = deps
        self._oauth = oauth
        self._sign_in = sign_in
        self._claims = Claims(deps.context.db)

    def routes(self) -> list[web.RouteDef]:
        """The routes of the note page."""
        return [
            web.get("/jobs/{id}/note", self.show),
            web.post("/jobs/{id}/note", self.post),
        ]

    async def show(self, request: web.Request) -> web.Response:
        """The form for a note, with the diff. A visitor without a token is redirected to GitHub first.

        The report's comment links to this page, so people who are not signed in are asked to sign in. That happens even
        if the job does not exist.
        """
        visitor = self._deps.sessions.read(request)
        if visitor.login is None:
            return self._sign_in.leave(request.path)
        job = await self._find_job(request, visitor)
        report, updates = await self._find_standing(job)
        if report is None:
            return self._deps.renderer.render_message(visitor, "No note", await self._explain_no_form(job), 409)
        if not self._find_token(request, visitor, job):
            if BACK in request.query:
                return self._deps.renderer.render_message(
                    visitor, "No note", "Your browser does not accept our cookies.", 409
                )
            return self._sign_in.leave(f"/jobs/{job.id}/note?{BACK}", visitor, job.id)
        return await run_for_page(self._draw, visitor, job, report, updates)

    async def _show_again(
        self, request: web.Request, visitor: Visitor, fields: Fields, refusal: FormRefusal
    ) -> web.Response:
        """The form of a refused note. Its digest is that of the diff that is now shown next to it."""
        job = await self._find_job(request, visitor)
        report, updates = await self._find_standing(job)
        if report is None:
            raise self._deps.refuse(visitor)
        has_token = bool(self._find_token(request, visitor, job))
        return await run_for_page(self._draw, visitor, job, report, updates, fields, refusal, has_token=has_token)

    async def _find_job(self, request: web.Request, visitor: Visitor) -> Job:
        """The job in the address, with the branch that its pull request goes to."""
        return await self._deps.aim(await self._deps.find_job(request, visitor))

    async def _explain_no_form(self, job: Job) -> str:
        """Why a note on this job's diff would not be accepted."""
        async with self._deps.context.db.read() as connection:
            report = await job_rows.fetch_report(connection, job.id)
            withheld = await fetch_withheld(connection, job.id)
        if report and report.digest and not withheld:
            secrets = await run_aside(report.size, find_secrets, report, self._deps.context.secrets)
            if secrets:
                return f"This diff adds a possible secret in {secrets[0]}, so it cannot become a pull request."
        return "There's no diff of this job that waits for a note. The job's page says what became of it."

    def _draw(
        self,
        visitor: Visitor,
        job: Job,
        report: Report,
        updates: int | None,
        fields: Fields = MappingProxyType({}),
        refusal: FormRefusal | None = None,
        *,
        has_token: bool = True,
    ) -> web.Response:
        return self._deps.renderer.render_page(
            "note.html",
            visitor,
            refusal.status if refusal else 200,
            job=job,
            report=report,
            updates=updates,
            digest=(report.digest or "")[:DIGEST_SHOWN],
            given={name: fields.get(name, "") for name in ("note", "title")},
            refusal=refusal,
            has_token=has_token,
            wanted=NOTE_PLACEHOLDER,
            example=NOTE_EXAMPLE,
            least=MIN_LETTERS,
            longest=MAX_NOTE,
            splits=False,
        )

    async def post(self, request: web.Request) -> web.Response:
        """Accept a note, and revoke the token."""
        response = await handle_form(self._deps, self._write, self._show_again, "/jobs/{id}/note")(request)
        if response.status == 303 and (
            cookie := self._deps.sessions.read_cookie(request, NOTE_COOKIE, NOTE_COOKIE_LASTS)
        ):
            await self._oauth.revoke(cookie["token"])
            self._deps.sessions.drop_cookie(response, NOTE_COOKIE)
        return response

    async def _write(self, request: web.Request, visitor: Visitor, fields: Fields) -> str:
        job = await self._deps.find_job(request, visitor)
        person, _ = await admit(self._deps, visitor, job.repository, Operation.OPEN_PULL)
        token, (report, _) = self._find_token(request, visitor, job), await self._find_standing(job)
        path = f"/jobs/{job.id}?posted={visitor.sign(job.id)}"
        if report is None:
            if await self._was_accepted(person, job, fields):
                return path
            raise ActionRefused(
                "This diff is no longer waiting for a note: the job's page says what became of it.", 409
            )
        if not token:
            raise ActionRefused("Your GitHub authorization has expired. Your text is kept.")
        body = render_note(fields.get("digest", ""), fields.get("title", ""), fields.get("note", ""))
        note = await run_aside(report.size, check_note, body, report)
        # If the form was sent twice, the second request waits for the first one, on any replica.
        for _ in range(TRIES):
            async with self._claims.hold(f"note {job.id} {person.name}") as mine:
                if mine:
                    if job.thread is not None:
                        await self._post_once(token, person.name, job, body)
                    elif not await self._was_accepted(person, job, fields):
                        await self._approve(token, person, job, note)
                    log.info("dashboard.noted", **job.log_context(), by=person.name)
                    return path
            await asyncio.sleep(TRY_AGAIN_S)
        raise ActionRefused("Your note is still being sent. Look at the job's page in a moment.", 409)

    async def _was_accepted(self, person: Person, job: Job, fields: Fields) -> bool:
        """Whether this note on a job without an issue was accepted before."""
        async with self._deps.context.db.read() as connection:
            pull = await casebook.fetch_pull(connection, job.id) if job.thread is None else None
        is_theirs = pull is not None and pull.approver.casefold() == person.name.casefold() and not pull.abandoned
        return is_theirs and pull is not None and pull.note == _read_text(fields.get("note", ""))

    async def _approve(self, token: str, person: Person, job: Job, note: NoteText) -> None:
        """Store the note on a job without an issue. Raises `ActionRefused`, and other errors of `FAILURES`."""
        account = await self._oauth.fetch_account(token)
        if account.login.casefold() != person.name.casefold():
            raise ActionRefused("You're signed in to GitHub as a different user. Please sign out here first.")
        try:
            await approve_on_page(self._deps.context, person, account.id, job, note)
        except NotApproved as refused:
            raise ActionRefused(str(refused), 409, refused.field) from None

    async def _post_once(self, token: str, login: str, job: Job, body: str) -> None:
        """Post a comment unless it exists. Raises `OAuthFailed`."""
        if not await self._is_there(login, job, body):
            await self._comment(token, login, job, body)

    async def _comment(self, token: str, login: str, job: Job, body: str) -> None:
        # With the person's token, the comment could also go to another repository that has the name now.
        repository = await self._deps.context.github.fetch_repository(job.repository)
        try:
            await self._oauth.comment(token, repository.full_name, job.issue_number, body)
        except OAuthUnanswered:
            # The comment may exist, or may still be created: another attempt could post it twice.
            await asyncio.sleep(self._oauth.settles.total_seconds())
            if not await self._is_there(login, job, body):
                raise

    async def _is_there(self, login: str, job: Job, body: str) -> bool:
        since = self._deps.context.now() - LATELY
        lately = self._deps.context.github.list_comments(job.repository, job.issue_number, since)
        return bool([one.id async for one in lately if one.author == login and one.body.strip() == body])

    def _find_token(self, request: web.Request, visitor: Visitor, job: Job) -> str:
        cookie = self._deps.sessions.read_cookie(request, NOTE_COOKIE, NOTE_COOKIE_LASTS)
        fits = cookie is not None and cookie["job"] == job.id and cookie["login"] == visitor.login
        return cookie["token"] if cookie and fits else ""

    async def _find_standing(self, job: Job) -> tuple[Report | None, int | None]:
        """The report of a job whose diff a note would approve, and the number of the pull request that it would update.

        Both are None if a note would approve nothing. The number is None if the note would open a pull request.
        """
        async with self._deps.context.db.read() as connection:
            report = await casebook.fetch_awaiting_note(connection, job)
            updatable = await casebook.fetch_updatable(connection, job)
        secrets = self._deps.context.secrets
        if report is None or not await run_aside(report.size, approvable, job, report, secrets):
            return None, None
        return report, updatable[0].number if updatable else None


def render_note(digest: str, title: str, note: str) -> str:
    """The comment that the person would write in the thread. Pure."""
    words = " ".join(re.sub(DOUBLE_QUOTES, "'", title).split())
    option = f' --title "{words}"' if words else ""
    return f"/ptq pr {digest.strip()}{option}\n\n{_read_text(note)}".strip()


def _read_text(note: str) -> str:
    return note.replace("\r", "").strip()


def check_note(body: str, report: Report) -> NoteText:
    """Parse a note. Raises `ActionRefused` if the thread would refuse it, or if it has another command. Pure."""
    if find_command_with_mail(body):
        raise ActionRefused("A note cannot contain an e-mail from GitHub. Put a > before each line of it.", 409, "note")
    commands = parse_commands(body)
    if len(commands) != 1 or not isinstance(commands[0], Command) or commands[0].verb != "pr":
        raise ActionRefused("A note cannot contain other commands, such as /ptq cancel.", 409, "note")
    note = parse_note(commands[0])
    if fault := find_fault(note, report, []):
        raise ActionRefused(fault.on_page, 409, "note")
    return note
