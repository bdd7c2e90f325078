"""What people do in a browser: comment, label, close, open an issue, mark a pull request as ready and merge it.

Each form does the same as a call of the API, so the App hears of it. It refuses to know what a page looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web

from github_standin.api.routes_issues import MAX_LABEL_CHARACTERS
from github_standin.model.actions import Actions
from github_standin.model.gitstore import ZERO, GitFailed, Signature
from github_standin.model.limits import Limits
from github_standin.model.rights import Rights, rights_of
from github_standin.model.state import Comment, Issue, Pull, Repository, User
from github_standin.pages.frame import Frame, path_to
from github_standin.pages.pages import ISSUE, Pages


@dataclass(frozen=True, slots=True)
class _Wish:
    """A form on the page of an issue or pull request."""

    repository: Repository
    issue: Issue
    person: User
    rights: Rights
    fields: Mapping[str, str]

    @property
    def place(self) -> str:
        """Where the form came from."""
        return path_to(self.repository, self.issue)


class Forms:
    """The handlers of every POST by people; each answers with the page that shows what was done."""

    def __init__(self, frame: Frame, pages: Pages, actions: Actions, limits: Limits) -> None:
        self._frame = frame
        self._pages = pages
        self._actions = actions
        self._limits = limits

    def add_routes(self, app: web.Application) -> None:
        """Put the forms into `app`."""
        app.router.add_post("/{owner}/{repo}/issues", self.open_issue)
        app.router.add_post(f"{ISSUE}/comments", self.comment)
        app.router.add_post(f"{ISSUE}/label", self.label)
        app.router.add_post(f"{ISSUE}/unlabel", self.unlabel)
        app.router.add_post(f"{ISSUE}/state", self.set_state)
        app.router.add_post(f"{ISSUE}/ready", self.mark_ready)
        app.router.add_post(f"{ISSUE}/merge", self.merge)

    async def open_issue(self, request: web.Request) -> web.Response:
        """Open an issue."""
        repository = self._pages.find_repository(request)
        person, fields = await self._frame.read_signed_form(request)
        title = _read_text(fields, "title", self._limits.title_characters)
        body = _read_text(fields, "body", self._limits.body_characters, required=False)
        issue = self._actions.open_issue(repository, title, body, person)
        return _go_to(path_to(repository, issue))

    async def comment(self, request: web.Request) -> web.Response:
        """Post a comment."""
        wish = await self._read(request)
        return _go_to(f"{wish.place}#issuecomment-{self._comment(wish).id}")

    def _comment(self, wish: _Wish) -> Comment:
        _insist(wish.rights.comment)
        body = _read_text(wish.fields, "body", self._limits.body_characters)
        return self._actions.add_comment(wish.repository, wish.issue, body, wish.person)

    async def label(self, request: web.Request) -> web.Response:
        """Put a label on."""
        wish = await self._read(request)
        _insist(wish.rights.label)
        name = _read_text(wish.fields, "name", MAX_LABEL_CHARACTERS).strip()
        self._actions.add_label(wish.repository, wish.issue, name, wish.person)
        return _go_to(wish.place)

    async def unlabel(self, request: web.Request) -> web.Response:
        """Take a label off; one that is off already stays so."""
        wish = await self._read(request)
        _insist(wish.rights.label)
        on = {label.name: label for label in wish.issue.labels}
        if label := on.get(wish.fields.get("name", "")):
            self._actions.remove_label(wish.repository, wish.issue, label, wish.person)
        return _go_to(wish.place)

    async def set_state(self, request: web.Request) -> web.Response:
        """Close or reopen, with the comment that stands in the same form, if any."""
        wish = await self._read(request)
        _insist(wish.rights.set_state)
        if wish.fields.get("state") not in ("open", "closed"):
            raise web.HTTPBadRequest(text="state is open or closed\n")
        if wish.fields.get("body", "").strip():
            self._comment(wish)
        self._actions.set_state(wish.repository, wish.issue, wish.fields["state"], wish.person)
        return _go_to(wish.place)

    async def mark_ready(self, request: web.Request) -> web.Response:
        """Take a pull request out of its draft state."""
        wish = await self._read(request)
        _insist(wish.rights.mark_ready)
        if isinstance(wish.issue, Pull):
            self._actions.mark_ready(wish.repository, wish.issue, wish.person)
        return _go_to(wish.place)

    async def merge(self, request: web.Request) -> web.Response:
        """Merge a pull request by a commit of its own; HTTP 409 where git cannot."""
        wish = await self._read(request)
        _insist(wish.rights.merge)
        git, pull = wish.repository.git, wish.issue
        if isinstance(pull, Pull):
            base, now = f"refs/heads/{pull.base}", datetime.now(UTC)
            by = Signature(wish.person.login, f"{wish.person.login}@users.noreply.example", now)
            message = f"Merge pull request #{pull.number} from {pull.source.owner.login}/{pull.head}\n\n{pull.title}"
            try:
                was = await git.read_ref(base) or ZERO
                sha = await git.write_merge(was, pull.head_sha, by, message)
                await git.move_ref(base, sha, was)
            except GitFailed as error:
                raise web.HTTPConflict(text=f"git cannot merge this: {error}\n") from error
            self._actions.merge(wish.repository, pull, sha, wish.person)
        return _go_to(wish.place)

    async def _read(self, request: web.Request) -> _Wish:
        repository, issue = self._pages.find_issue(request)
        person, fields = await self._frame.read_signed_form(request)
        return _Wish(repository, issue, person, rights_of(repository, issue, person), fields)


def _insist(right: bool) -> None:
    if not right:
        raise web.HTTPForbidden(text="GitHub lets only people with another role do this\n")


def _read_text(fields: Mapping[str, str], name: str, most: int, *, required: bool = True) -> str:
    """A field as the browser sent it: its lines end with CR LF, on GitHub, too. Raises HTTP 422 as GitHub would."""
    text = fields.get(name, "")
    if (required and not text.strip()) or len(text) > most:
        raise web.HTTPUnprocessableEntity(text=f"{name} must not be blank, and have at most {most} characters\n")
    return text


def _go_to(place: str) -> web.Response:
    return web.Response(status=303, headers={"Location": place})
