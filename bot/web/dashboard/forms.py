"""How every form is answered: it is really theirs, GitHub says just now that they may, and what is refused is said.

It refuses to know what a form does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping

import structlog
from aiohttp import web

from bot.web.auth.oauth import OAuthFailed
from bot.web.auth.sessions import Forged, Visit
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.drawing import HEADERS
from handlers.commands.permissions import identify
from handlers.commands.rights import NotPermitted, Operation, Person, Surface
from handlers.events import Repository
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.tasks import Refused
from handlers.ports import GitHubError, GitHubUnavailable
from handlers.rules import Role

log = structlog.get_logger()

Fields = Mapping[str, str]
Act = Callable[[web.Request, Visit, Fields], Awaitable[str]]
"""Does what a form asks for, by a person who has signed in. The path of the page to show next."""

OCCASION = "occasion"
"""The field that names what is asked for: a form that is sent twice asks once."""

_OCCASION = re.compile(r"[A-Za-z0-9_-]{8,40}")


class Denied(Exception):  # noqa: N818
    """Nothing is done; the message says why, as sentences."""

    def __init__(self, words: str, status: int = 403) -> None:
        super().__init__(words)
        self.status = status


FAILURES = (
    *(Forged, Denied, NotPermitted, NotStarted, Refused),
    *(OAuthFailed, GitHubError, GitHubUnavailable),
)
"""What keeps a form from being carried out: `describe` says why."""


def answering(desk: DashboardDeps, act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of a form."""

    async def handle(request: web.Request) -> web.Response:
        try:
            visit, fields = await desk.visits.read_form(request)
            path = await act(request, visit, fields)
        except FAILURES as error:
            reader = desk.visits.read(request)
            if isinstance(error, NotPermitted):
                log.info("dashboard.refused", by=reader.login, repository=error.rules.name)
            words, status = describe(error)
            return desk.drawing.say(reader, "Nothing was done", words, status)
        return web.Response(status=303, headers={**HEADERS, "Location": f"{desk.context.public_url}{path}"})

    return handle


def describe(error: Exception) -> tuple[str, int]:
    """Why nothing was done, in words, and the status that says it. Pure."""
    if isinstance(error, Denied):
        return str(error), error.status
    if isinstance(error, NotPermitted):
        least = error.right.find_role(error.rules).word
        return f"This takes {least} access to {error.rules.name}, as the same command in a thread does.", 403
    if isinstance(error, NotStarted):
        return error.reply, 409
    if isinstance(error, Refused):
        clause = str(error)
        return f"{clause[0].upper()}{clause[1:]}.", 409
    if isinstance(error, Forged):
        return f"{error} Please load the page again.", 403
    if isinstance(error, OAuthFailed):
        return str(error), 502
    return "GitHub could not be asked, or did not answer as it should. Please try again.", 503


async def admit(desk: DashboardDeps, visit: Visit, name: str, operation: Operation) -> tuple[Person, Repository]:
    """The person who is there, if they may do this in a repository, as GitHub says just now; and the repository.

    Raises `Denied`, `NotPermitted`, and what `handlers.ports.GitHub` raises.
    """
    absent = Denied("There is no such repository here, or you may not see it.", 404)
    rules = desk.context.rules_for(name)
    if rules is None or visit.login is None:
        raise absent
    repository = await desk.context.github.fetch_repository(rules.name)
    person = await identify(desk.context, rules, repository, visit.login, Surface.PAGE, operation)
    if person.role < Role.READ:
        raise absent
    person.require(operation, rules.name)
    return person, repository


def name_occasion(visit: Visit, fields: Fields) -> str:
    """What names a form among all: of the same person, and sent twice, it has the same one."""
    given = fields.get(OCCASION, "")
    return f"dashboard {visit.login} {given if _OCCASION.fullmatch(given) else make_occasion()}"


def make_occasion() -> str:
    """A name that no other form has."""
    return secrets.token_urlsafe(12)
