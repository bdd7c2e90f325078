"""GitHub's webhook payloads as frozen, validated values with only the fields that we need.

Field names are GitHub's (https://docs.github.com/en/webhooks/webhook-events-and-payloads).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
from gidgethub import sansio
from gidgethub.routing import Router
from pydantic import BaseModel, ConfigDict, Field, ValidationError

CANCEL_LANE = "/cancel"
"""The suffix of a lane for cancels, after the name of the issue's lane."""

MAX_LANE = 290
"""The most characters of a lane's name that come from a payload."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class User(_Value):
    """The author or sender. GitHub sends null for a deleted account."""

    login: str = "ghost"
    type: str = "User"

    @property
    def is_bot(self) -> bool:
        """Whether this is an App or another bot, including ours."""
        return self.type == "Bot" or self.login.endswith("[bot]")


class Repository(_Value):
    """The repository of an event."""

    full_name: str
    private: bool
    default_branch: str
    clone_url: str


class IssueLabel(_Value):
    """A label of an issue."""

    name: str


class Issue(_Value):
    """The issue at the time of the event."""

    number: int
    title: str
    body: str | None = None
    user: User | None = None
    labels: tuple[IssueLabel, ...] = ()
    created_at: datetime
    updated_at: datetime
    state: str = "open"
    """`open` or `closed`."""
    assignees: tuple[User, ...] = ()
    pull_request: Mapping[str, Any] | None = None
    """Present if the "issue" is a pull request."""


class IssueComment(_Value):
    """The comment at the time of the event."""

    id: int
    body: str | None = None
    user: User | None = None
    created_at: datetime
    html_url: str


class IssueLabeled(_Value):
    """`issues` with action `labeled`."""

    issue: Issue
    label: IssueLabel
    repository: Repository
    sender: User


class IssueUnlabeled(IssueLabeled):
    """`issues` with action `unlabeled`."""


class IssueCommentCreated(_Value):
    """`issue_comment` with action `created`."""

    issue: Issue
    comment: IssueComment
    repository: Repository
    sender: User


class _OldText(_Value):
    value: str = Field("", alias="from")


class _Edits(_Value):
    body: _OldText | None = None


class IssueCommentEdited(IssueCommentCreated):
    """`issue_comment` with action `edited`."""

    changes: _Edits | None = None
    """Forwarders and other servers may omit it."""

    @property
    def old_body(self) -> str:
        """The text before the edit, or the current one if the payload does not have it."""
        edited = self.changes.body if self.changes else None
        return edited.value if edited else self.comment.body or ""


class IssueClosed(_Value):
    """`issues` with action `closed`."""

    issue: Issue
    repository: Repository
    sender: User


def is_from_bot(payload: Mapping[str, Any]) -> bool:
    """Whether an App caused the event, such as ours. Checked first, because ignored events need not be valid."""
    try:
        return User.model_validate(payload.get("sender")).is_bot
    except ValidationError:
        return False


class _Subject(TypedDict, total=False):
    """Parts of an issue, a pull request or a comment."""

    number: Any
    created_at: Any
    updated_at: Any
    body: Any


class _RepositoryName(TypedDict, total=False):
    full_name: Any


class _Excerpt(TypedDict, total=False):
    """The parts of a payload that `is_routed`, `fits`, `find_time` and `find_lane` use."""

    action: Any
    issue: _Subject | None
    pull_request: _Subject | None
    comment: _Subject | None
    repository: _RepositoryName | None


_EXCERPTS = msgspec.json.Decoder(_Excerpt)


def parse_excerpt(body: bytes) -> Any:
    """The parts of a payload that decide whether and where it is stored, or all of it if msgspec cannot read it.

    To parse all of it takes three times as long. Raises `ValueError` or `RecursionError` for a body that is not JSON.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec does not check the encoding of what it skips.
        return _EXCERPTS.decode(body)
    except (ValueError, RecursionError):  # `json` also accepts half of a surrogate pair, which people can write.
        return json.loads(body)


_HAS_COMMENT: Mapping[str, bool] = {"issues": False, "issue_comment": True}
"""Event -> whether its payload has a comment."""


def is_routed(router: Router, event: str, action: object) -> bool:
    """Whether there is a handler for this event and action."""
    data = {"action": action} if isinstance(action, str) else {}
    return bool(router.fetch(sansio.Event(data, event=event, delivery_id="")))


def fits(event: str, payload: Mapping[str, Any]) -> bool:
    """Whether a payload fits this event.

    The signature does not cover the event's name, so one signed body could be sent under other names.
    """
    has_comment = isinstance(payload.get("comment"), Mapping)
    return isinstance(payload.get("issue"), Mapping) and _HAS_COMMENT.get(event) is has_comment


def find_private_repository(payload: Mapping[str, Any]) -> str | None:
    """The name of the event's repository, if the payload shows it as private."""
    try:
        repository = Repository.model_validate(payload.get("repository"))
    except ValidationError:
        return None
    return repository.full_name if repository.private else None


def find_repository(payload: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name of the event's repository, and GitHub's id of it: empty, and None, if they are missing."""
    repository = payload.get("repository")
    found = repository if isinstance(repository, Mapping) else {}
    name, number = found.get("full_name"), found.get("id")
    return name if isinstance(name, str) else "", number if isinstance(number, int) else None


def find_time(payload: Mapping[str, Any]) -> datetime | None:
    """When an event happened: the newest time in its payload; None if there is none."""
    things = [payload.get(name) for name in ("issue", "comment", "pull_request")]
    texts = [thing.get(name) for thing in things if isinstance(thing, Mapping) for name in ("created_at", "updated_at")]
    return max(filter(None, map(_read_time, texts)), default=None)


def _read_time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time


_ASKS_TO_CANCEL = re.compile(r"/ptq\s+cancel", re.IGNORECASE)


def find_lane(payload: Mapping[str, Any]) -> str:
    """The lane of a delivery, usually `owner/name#number`: deliveries of one lane keep their order.

    A comment that may contain `/ptq cancel` gets a separate lane. A wrong guess does no harm: the comment is parsed
    later.
    """
    repository, issue = payload.get("repository"), payload.get("issue")
    subject = issue if isinstance(issue, Mapping) else payload.get("pull_request")
    name = repository.get("full_name") if isinstance(repository, Mapping) else None
    number = subject.get("number") if isinstance(subject, Mapping) else None
    comment = payload.get("comment")
    body = comment.get("body") if isinstance(comment, Mapping) else None
    # Searching without the slash would take longer than everything else here.
    cancels = isinstance(body, str) and "/ptq" in body.lower() and _ASKS_TO_CANCEL.search(body)
    # PostgreSQL refuses NUL, and every database refuses lone surrogates.
    lane = f"{name}#{number}"[:MAX_LANE].replace("\0", "").encode(errors="replace").decode()
    return lane + CANCEL_LANE if cancels else lane
