"""Handles every form: checks its CSRF token, asks GitHub for the sender's permission, and shows refusals."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog
from aiohttp import web

from bot.web.auth.oauth import OAuthFailed
from bot.web.auth.sessions import FormRefused, Visitor
from bot.web.dashboard.deps import DashboardDeps
from handlers.commands.permissions import identify
from handlers.commands.rights import NotPermitted, Operation, Person, Surface
from handlers.events import Repository
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.tasks import Refused
from handlers.ports import GitHubError, GitHubUnavailable
from handlers.rules import Role

log = structlog.get_logger()

Fields = Mapping[str, str]
FormAction = Callable[[web.Request, Visitor, Fields], Awaitable[str]]
"""Carries out a form for a signed-in person. Returns the path of the next page."""

REQUEST_KEY = "occasion"
"""The field that makes a repeated form harmless: two forms with the same value count as one request."""

TOO_MANY = "You have sent very many forms, or looked at very many pages. Please try again in an hour."

ABSENT_AFTER_S = 2.0
"""The seconds after which a form is refused because its repository is not found. GitHub is asked only about configured
repositories, and has usually answered by then. So the time of the answer does not reveal which are configured."""

_REQUEST_KEY = re.compile(r"[A-Za-z0-9_-]{8,40}")


@dataclass(frozen=True, slots=True)
class FormRefusal:
    """Why a form was not carried out."""

    words: str
    status: int
    field: str = ""
    """The name of the field that the refusal is about. Empty if it is not about one field."""


Redraw = Callable[[web.Request, Visitor, Fields, FormRefusal], Awaitable[web.Response]]
"""Shows a form again, with the typed text and the reason."""

TYPED = {"note": "Your note", "title": "Title of the pull request", "advice": "Instructions"}
"""Field -> its name for people. No page may lose the text of these fields."""


class ActionRefused(Exception):  # noqa: N818
    """The action is refused. The message says why, in sentences."""

    def __init__(self, words: str, status: int = 403, field: str = "") -> None:
        """`field` is the form's field that the refusal is about."""
        super().__init__(words)
        self.refusal = FormRefusal(words, status, field)


FAILURES = (
    *(FormRefused, ActionRefused, NotPermitted, NotStarted, Refused),
    *(OAuthFailed, GitHubError, GitHubUnavailable),
)
"""The exceptions that mean that a form is not carried out. `describe` gives the reason."""


def handle_form(
    deps: DashboardDeps, act: FormAction, redraw: Redraw | None = None, page: str = "/"
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of a form. If the form is not carried out, the page with the reason also shows the typed text.

    `redraw` shows the form again. `page` is the path of the page with the form. People return to it after they have
    signed in.
    """

    async def handle(request: web.Request) -> web.Response:
        fields: Fields = {}
        try:
            visitor, fields = await deps.sessions.read_form(request)
            path = await act(request, visitor, fields)
        except FAILURES as error:
            visitor = deps.sessions.read(request)
            if isinstance(error, NotPermitted):
                log.info("dashboard.refused", by=visitor.login, repository=error.rules.name)
            fields, refusal = error.fields if isinstance(error, FormRefused) else fields, describe(error)
            may_send = visitor.login is not None and not isinstance(error, NotPermitted)
            if redraw and fields and may_send:
                with suppress(web.HTTPException):  # The visitor may not see the job any more, or the wait was too long.
                    return await deps.queue.make(request, lambda: redraw(request, visitor, fields, refusal))
            return _show_refusal(deps, visitor, fields, refusal, page.format(**request.match_info))
        return deps.redirect(path)

    return handle


def _show_refusal(
    deps: DashboardDeps, visitor: Visitor, fields: Fields, refusal: FormRefusal, page: str
) -> web.Response:
    """A page with the reason and the typed text, without the form."""
    signs_in_again = visitor.login is None and bool(fields)
    typed = {label: fields[name] for name, label in TYPED.items() if fields.get(name, "").strip()}
    words = refusal.words
    if signs_in_again:
        words = f"Your session has ended.{' Your text is below.' if typed else ''} Sign in to continue."
    return deps.renderer.render_message(
        visitor, "Not accepted", words, refusal.status, typed=typed, back=page, signs_in=signs_in_again
    )


def describe(error: Exception) -> FormRefusal:
    """Why a form was not carried out, for people. Pure."""
    if isinstance(error, ActionRefused):
        return error.refusal
    if isinstance(error, NotPermitted):
        least = error.right.find_role(error.rules).word
        return FormRefusal(f"You need {least} access to {error.rules.name} for this.", 403)
    if isinstance(error, NotStarted):
        return FormRefusal(error.on_page.words, 409, error.on_page.field)
    if isinstance(error, Refused):
        clause = str(error)
        return FormRefusal(f"{clause[0].upper()}{clause[1:]}.", 409, error.field)
    if isinstance(error, FormRefused):
        return FormRefusal(f"{error} Check the form, and send it again.", 403)
    if isinstance(error, OAuthFailed):
        return FormRefusal(str(error), 502)
    return FormRefusal("GitHub did not answer as expected. Please try again.", 503)


async def admit(
    deps: DashboardDeps, visitor: Visitor, name: str, operation: Operation, *, is_typed: bool = False
) -> tuple[Person, Repository]:
    """Check with GitHub that the visitor may do this in a repository. Returns their `Person`, and the repository.

    `is_typed` says that the visitor typed the name. Otherwise it is the repository of a job that they may see. Raises
    `ActionRefused`, `NotPermitted`, and the errors of `handlers.ports.GitHub`.
    """
    absent = ActionRefused("Repository not found, or you don't have access.", 404, "repository")
    answers_at = asyncio.get_running_loop().time() + (ABSENT_AFTER_S if is_typed else 0.0)
    try:
        return await _admit(deps, visitor, name, operation, absent, is_typed=is_typed)
    except ActionRefused as refused:
        if refused is absent:
            await asyncio.sleep(answers_at - asyncio.get_running_loop().time())
        raise


async def _admit(
    deps: DashboardDeps, visitor: Visitor, name: str, operation: Operation, absent: ActionRefused, *, is_typed: bool
) -> tuple[Person, Repository]:
    # This is checked first, so that the answer is the same for a repository that is not configured.
    if visitor.login and not deps.visibility.may_send_form(visitor.login, name):
        raise ActionRefused(TOO_MANY, 503)
    rules = deps.context.rules_for(name)
    if rules is None or visitor.login is None:
        raise absent
    try:
        repository = await deps.context.github.fetch_repository(rules.name)
        person = await identify(deps.context, rules, visitor.login, Surface.PAGE, operation)
    except (GitHubError, GitHubUnavailable) as error:
        # GitHub is asked only about configured repositories. So an error of GitHub would tell a stranger that this
        # repository is configured.
        if not is_typed or deps.visibility.has_known_role(visitor.login, name):
            raise
        log.warning("dashboard.role_unknown", repository=rules.name, reason=str(error))
        raise absent from None
    if person.role < Role.READ:
        raise absent
    person.require(operation, rules.name)
    deps.visibility.note_allowed(visitor.login, name)
    return person, repository


def derive_request_key(visitor: Visitor, fields: Fields) -> str:
    """The key of a request. It is the same if the same person sends a form twice."""
    return f"dashboard {visitor.login} {keep_request_key(fields)}"


def keep_request_key(fields: Fields) -> str:
    """The key of a form that was sent, or a new key if it has none. A form that is shown again keeps its key.

    So it still counts as one request if it is sent twice.
    """
    given = fields.get(REQUEST_KEY, "")
    return given if _REQUEST_KEY.fullmatch(given) else new_request_key()


def new_request_key() -> str:
    """A unique key for a new form."""
    return secrets.token_urlsafe(12)
