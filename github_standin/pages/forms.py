"""Actions of people in a browser: comment, label, close, open an issue, mark a pull request as ready and merge it.

Each form does the same as a call of the API, so the App receives its webhook.
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
class _ThreadForm:
    """A form on the page of an issue or pull request."""

    repository: Repository
    issue: Issue
    person: User
    rights: Rights
    fields: Mapping[str, str]

    @property
    def place(self) -> str:
        """The page that the form came from."""
        return path_to(self.repository, self.issue)


class Forms:
    """The handlers of every POST by people. Each answers with the page that shows the change."""

    def __init__(self, frame: Frame, pages: Pages, actions: Actions, limits: Limits) -> None:
        self._frame = frame
        self._pages = pages
        self._actions = actions
        self._limits = limits

    def add_routes(self, app: web.Application) -> None:
        """Add the forms to `app`."""
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
        form = await self._read(request)
        return _go_to(f"{form.place}#issuecomment-{self._comment(form).id}")

    def _comment(self, form: _ThreadForm) -> Comment:
        _require_right(form.rights.comment)
        body = _read_text(form.fields, "body", self._limits.body_characters)
        return self._actions.add_comment(form.repository, form.issue, body, form.person)

    async def label(self, request: web.Request) -> web.Response:
        """Add a label."""
        form = await self._read(request)
        _require_right(form.rights.label)
        name = _read_text(form.fields, "name", MAX_LABEL_CHARACTERS).strip()
        self._actions.add_label(form.repository, form.issue, name, form.person)
        return _go_to(form.place)

    async def unlabel(self, request: web.Request) -> web.Response:
        """Remove a label. Does nothing if the issue does not have it."""
        form = await self._read(request)
        _require_right(form.rights.label)
        on = {label.name: label for label in form.issue.labels}
        if label := on.get(form.fields.get("name", "")):
            self._actions.remove_label(form.repository, form.issue, label, form.person)
        return _go_to(form.place)

    async def set_state(self, request: web.Request) -> web.Response:
        """Close or reopen, with the comment of the form, if there is one."""
        form = await self._read(request)
        _require_right(form.rights.set_state)
        if form.fields.get("state") not in ("open", "closed"):
            raise web.HTTPBadRequest(text="state must be open or closed\n")
        if form.fields.get("body", "").strip():
            self._comment(form)
        self._actions.set_state(form.repository, form.issue, form.fields["state"], form.person)
        return _go_to(form.place)

    async def mark_ready(self, request: web.Request) -> web.Response:
        """End the draft state of a pull request."""
        form = await self._read(request)
        _require_right(form.rights.mark_ready)
        if isinstance(form.issue, Pull):
            self._actions.mark_ready(form.repository, form.issue, form.person)
        return _go_to(form.place)

    async def merge(self, request: web.Request) -> web.Response:
        """Merge a pull request with a merge commit; HTTP 409 if git cannot."""
        form = await self._read(request)
        _require_right(form.rights.merge)
        git, pull = form.repository.git, form.issue
        if isinstance(pull, Pull):
            base, now = f"refs/heads/{pull.base}", datetime.now(UTC)
            by = Signature(form.person.login, f"{form.person.login}@users.noreply.example", now)
            message = f"Merge pull request #{pull.number} from {pull.source.owner.login}/{pull.head}\n\n{pull.title}"
            try:
                was = await git.read_ref(base) or ZERO
                sha = await git.write_merge(was, pull.head_sha, by, message)
                await git.move_ref(base, sha, was)
            except GitFailed as error:
                raise web.HTTPConflict(text=f"git cannot merge this: {error}\n") from error
            self._actions.merge(form.repository, pull, sha, form.person)
        return _go_to(form.place)

    async def _read(self, request: web.Request) -> _ThreadForm:
        repository, issue = self._pages.find_issue(request)
        person, fields = await self._frame.read_signed_form(request)
        return _ThreadForm(repository, issue, person, rights_of(repository, issue, person), fields)


def _require_right(right: bool) -> None:
    if not right:
        raise web.HTTPForbidden(text="Your role on this repository does not allow this\n")


def _read_text(fields: Mapping[str, str], name: str, most: int, *, required: bool = True) -> str:
    """A field as the browser sent it, with CR LF as on GitHub. Raises HTTP 422, as GitHub does."""
    text = fields.get(name, "")
    if (required and not text.strip()) or len(text) > most:
        raise web.HTTPUnprocessableEntity(text=f"{name} must not be blank, and have at most {most} characters\n")
    return text


def _go_to(place: str) -> web.Response:
    return web.Response(status=303, headers={"Location": place})
