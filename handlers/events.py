"""GitHub's webhook payloads as frozen values: the few fields we read, checked on the way in.

Field names are GitHub's (https://docs.github.com/en/webhooks/webhook-events-and-payloads).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gidgethub import sansio
from gidgethub.routing import Router
from pydantic import BaseModel, ConfigDict, Field, ValidationError

CANCEL_LANE = "/cancel"
"""What the name of a lane for cancels ends with; before it stands the lane of the issue."""

MAX_LANE = 290
"""Characters of a lane's name that come from a payload."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class User(_Value):
    """Who did or wrote something. GitHub sends null for an account that was deleted."""

    login: str = "ghost"
    type: str = "User"

    @property
    def is_bot(self) -> bool:
        """Whether this is an App or another automaton, ourselves included."""
        return self.type == "Bot" or self.login.endswith("[bot]")


class Repository(_Value):
    """Where it happened."""

    full_name: str
    private: bool
    default_branch: str
    clone_url: str


class IssueLabel(_Value):
    """A label of an issue."""

    name: str


class Issue(_Value):
    """The issue as it stood when the event was sent."""

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
    """Present when the "issue" is a pull request."""


class IssueComment(_Value):
    """A comment as it stood when the event was sent."""

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
    """Forwarders and other servers may leave it out."""

    @property
    def old_body(self) -> str:
        """The text before the edit; today's where the payload does not say."""
        edited = self.changes.body if self.changes else None
        return edited.value if edited else self.comment.body or ""


class IssueClosed(_Value):
    """`issues` with action `closed`."""

    issue: Issue
    repository: Repository
    sender: User


def is_from_bot(payload: Mapping[str, Any]) -> bool:
    """Whether an App caused an event, perhaps this one. Read first: what is ignored need not be well-formed."""
    try:
        return User.model_validate(payload.get("sender")).is_bot
    except ValidationError:
        return False


_HAS_COMMENT: Mapping[str, bool] = {"issues": False, "issue_comment": True}
"""Of each event that a handler works, whether its payload holds a comment beside the issue."""


def is_routed(router: Router, event: str, action: object) -> bool:
    """Whether a handler works events of this name and action."""
    data = {"action": action} if isinstance(action, str) else {}
    return bool(router.fetch(sansio.Event(data, event=event, delivery_id="")))


def fits(event: str, payload: Mapping[str, Any]) -> bool:
    """Whether a payload has the shape of this event.

    No signature covers the event's name, so one signed body could otherwise come under any number of names.
    """
    has_comment = isinstance(payload.get("comment"), Mapping)
    return isinstance(payload.get("issue"), Mapping) and _HAS_COMMENT.get(event) is has_comment


def find_time(payload: Mapping[str, Any]) -> datetime | None:
    """When an event happened: the newest of GitHub's times in its payload; None where there are none."""
    things = [payload.get(name) for name in ("issue", "comment", "pull_request")]
    texts = [thing.get(name) for thing in things if isinstance(thing, Mapping) for name in ("created_at", "updated_at")]
    return max(filter(None, map(_read_time, texts)), default=None)


def _read_time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time.replace(tzinfo=time.tzinfo or UTC) if time else None


_ASKS_TO_CANCEL = re.compile(r"/ptq\s+cancel", re.IGNORECASE)


def find_lane(payload: Mapping[str, Any]) -> str:
    """What a delivery is about, `owner/name#number` where it says so: deliveries of one lane keep their order.

    A comment that may hold `/ptq cancel` has a lane beside that of its issue. Being wrong about it only costs the lane:
    whether it is a command is found out later.
    """
    repository, subject = payload.get("repository"), payload.get("issue") or payload.get("pull_request")
    name = repository.get("full_name") if isinstance(repository, Mapping) else None
    number = subject.get("number") if isinstance(subject, Mapping) else None
    comment = payload.get("comment")
    body = comment.get("body") if isinstance(comment, Mapping) else None
    # Without its slash the search would take longer than everything else here.
    cancels = isinstance(body, str) and "/ptq" in body.lower() and _ASKS_TO_CANCEL.search(body)
    # PostgreSQL takes no NUL, and no database half a surrogate pair.
    lane = f"{name}#{number}"[:MAX_LANE].replace("\0", "").encode(errors="replace").decode()
    return lane + CANCEL_LANE if cancels else lane
