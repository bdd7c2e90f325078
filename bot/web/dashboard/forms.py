"""Handles every form: checks its CSRF token, asks GitHub for the sender's permission, and shows refusals."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping

import structlog
from aiohttp import web

from bot.web.auth.oauth import OAuthFailed
from bot.web.auth.sessions import FormRefused, Visitor
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.rendering import HEADERS
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

_REQUEST_KEY = re.compile(r"[A-Za-z0-9_-]{8,40}")


class ActionRefused(Exception):  # noqa: N818
    """The action is refused. The message says why, in sentences."""

    def __init__(self, words: str, status: int = 403) -> None:
        super().__init__(words)
        self.status = status


FAILURES = (
    *(FormRefused, ActionRefused, NotPermitted, NotStarted, Refused),
    *(OAuthFailed, GitHubError, GitHubUnavailable),
)
"""What keeps a form from being carried out. `describe` gives the reason."""


def handle_form(deps: DashboardDeps, act: FormAction) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of a form."""

    async def handle(request: web.Request) -> web.Response:
        try:
            visitor, fields = await deps.sessions.read_form(request)
            path = await act(request, visitor, fields)
        except FAILURES as error:
            visitor = deps.sessions.read(request)
            if isinstance(error, NotPermitted):
                log.info("dashboard.refused", by=visitor.login, repository=error.rules.name)
            words, status = describe(error)
            return deps.renderer.render_message(visitor, "Not accepted", words, status)
        return web.Response(status=303, headers={**HEADERS, "Location": f"{deps.context.public_url}{path}"})

    return handle


def describe(error: Exception) -> tuple[str, int]:
    """The reason for people, and the HTTP status. Pure."""
    if isinstance(error, ActionRefused):
        return str(error), error.status
    if isinstance(error, NotPermitted):
        least = error.right.find_role(error.rules).word
        return f"You need {least} access to {error.rules.name} for this.", 403
    if isinstance(error, NotStarted):
        return error.reply, 409
    if isinstance(error, Refused):
        clause = str(error)
        return f"{clause[0].upper()}{clause[1:]}.", 409
    if isinstance(error, FormRefused):
        return f"{error} Reload the page and try again.", 403
    if isinstance(error, OAuthFailed):
        return str(error), 502
    return "GitHub did not answer as expected. Please try again.", 503


async def admit(deps: DashboardDeps, visitor: Visitor, name: str, operation: Operation) -> tuple[Person, Repository]:
    """Check with GitHub that the visitor may do this in a repository. Returns them, and the repository.

    Raises `ActionRefused`, `NotPermitted`, and what `handlers.ports.GitHub` raises.
    """
    absent = ActionRefused("Repository not found, or you don't have access.", 404)
    # First, so that the answer is the same for a repository that is not configured.
    if visitor.login and not deps.visibility.may_send_form(visitor.login, name):
        raise ActionRefused(TOO_MANY, 503)
    rules = deps.context.rules_for(name)
    if rules is None or visitor.login is None:
        raise absent
    repository = await deps.context.github.fetch_repository(rules.name)
    person = await identify(deps.context, rules, visitor.login, Surface.PAGE, operation)
    if person.role < Role.READ:
        raise absent
    person.require(operation, rules.name)
    deps.visibility.note_allowed(visitor.login, name)
    return person, repository


def derive_request_key(visitor: Visitor, fields: Fields) -> str:
    """The key of a form: the same if the same person sends it twice."""
    given = fields.get(REQUEST_KEY, "")
    return f"dashboard {visitor.login} {given if _REQUEST_KEY.fullmatch(given) else new_request_key()}"


def new_request_key() -> str:
    """A unique key for a new form."""
    return secrets.token_urlsafe(12)
