"""What people ask for in the tests of orders of events: comments and labels, and the deliveries that tell of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from handlers.events import find_lane
from handlers.ports import Comment
from runner.model.job import FileChange, digest_of
from tests.support.jobs import NOON
from tests.support.model_machine import BASE

NAME = "octo/widgets"
CHANGES = {"A": FileChange("new.py", "100644", b"new = 1\n"), "B": FileChange("new.py", "100644", b"new = 2\n")}
DIGESTS = {name: digest_of(BASE, [change], b"secret") for name, change in CHANGES.items()}
NOTE = "I read the loop with care, and its last row was indeed left out until now."
NOTES = {
    "good A": ("A", NOTE),
    "good B": ("B", NOTE),
    "without a digest": ("", NOTE),
    "empty": ("A", ""),
    "too short": ("A", "lgtm!"),
    "quoted": ("A", f"> {NOTE}"),
    "of no diff": ("0", NOTE),
}
NEED_NO_PERMISSION = ("status", "help")
WORDS = ("fix", "diagnose", "retry", "cancel", "frobnicate", *NEED_NO_PERMISSION)


@dataclass(frozen=True)
class Request:
    """What somebody asked for, as it is on its way to us."""

    guid: str
    issue: int
    by: str
    kind: str
    """A command's word, `label`, or a kind of note."""
    which: int
    """The comment's id, or another that nothing else has."""
    payload: dict[str, Any]

    @property
    def event(self) -> str:
        """What GitHub calls it."""
        return "issue_comment" if "comment" in self.payload else "issues"

    @property
    def lane(self) -> str:
        return find_lane(self.payload)

    @property
    def body(self) -> bytes:
        return json.dumps(self.payload).encode()


def render_comment(kind: str) -> str:
    if kind not in NOTES:
        return f"/ptq {kind}"
    named, text = NOTES[kind]
    return f"/ptq pr {DIGESTS.get(named, named * 12)[:12]}\n\n{text}"


def render_payload(issue: int, by: str, at: datetime, **more: Any) -> dict[str, Any]:
    """As much of a delivery as we read."""
    return {
        **more,
        "issue": {
            "number": issue,
            "title": "It breaks",
            "created_at": NOON.isoformat(),
            "updated_at": at.isoformat(),
        },
        "repository": {"full_name": NAME, "private": False, "default_branch": "main", "clone_url": "https://git"},
        "sender": {"login": by, "type": "User"},
    }


def render_commented(issue: int, comment: Comment) -> dict[str, Any]:
    """The delivery that tells of a new comment."""
    told = {"id": comment.id, "body": comment.body, "html_url": comment.url, "user": {"login": comment.author}}
    told["created_at"] = comment.created_at.isoformat()
    return render_payload(issue, comment.author, comment.created_at, action="created", comment=told)


def name_answer(request: Request, *, may_write: bool) -> tuple[object, ...]:
    """What is to have one answer. Strangers are answered once for each thing that they may ask, and told no once."""
    if may_write:
        return "request", request.which
    if request.kind in NEED_NO_PERMISSION:
        return "stranger", request.kind, request.issue, request.by
    return "stranger", request.issue, request.by
