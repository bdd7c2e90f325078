"""The issue as it was at the trigger. An agent learns nothing that came later. Pure.

Every text is untrusted. It is shortened, and shown as a reader of the page saw it (`reveal`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush

from handlers.events import Issue
from handlers.ports import Comment
from handlers.text.hidden_text import reveal
from handlers.text.links import list_links
from handlers.text.repros import THE_ISSUE, ReproScript, extract_repros
from runner.characters import show_invisible

MAX_TITLE = 300
"""The most characters of a title. This limit and those below keep a brief under 200,000 characters."""

MAX_BODY = 40_000
MAX_COMMENT = 10_000
MAX_ALL_COMMENTS = 60_000
MAX_COMMENTS = 50
MAX_READ = 200_000
"""The most characters of all comments that are read, newest first, including those that readers do not see."""

MAX_LABELS = 50
MAX_LABEL = 100

_HIDING = (("<!--", "-->"), ("<", ">"), ("![", ")"))
"""The delimiters of comments, tags and images."""


@dataclass(frozen=True, slots=True)
class SnapshotComment:
    """A comment at the trigger."""

    author: str
    created_at: datetime
    body: str
    by_bot: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An issue at `frozen_at`. Comments are oldest first."""

    issue_number: int
    title: str
    author: str
    body: str
    labels: tuple[str, ...]
    created_at: datetime
    frozen_at: datetime
    comments: tuple[SnapshotComment, ...]
    repros: tuple[ReproScript, ...]
    links: tuple[str, ...] = ()
    """The targets of images and links in the texts above, each with its kind."""
    comments_left_out: int = 0
    """The number of older comments that did not fit."""


class NewestComments:
    """Collects the comments that an agent may see while GitHub lists them. Keeps only the newest, but counts all.

    Comments are omitted if they were written or edited after `frozen_at`, if they are our own, or if they are the
    request itself (its text is the advice). No more than `MAX_COMMENTS` are in memory.
    """

    def __init__(self, frozen_at: datetime, own_login: str, trigger_comment_id: int | None) -> None:
        self.frozen_at = frozen_at
        self.count = 0
        self._own_login, self._trigger_comment_id = own_login.casefold(), trigger_comment_id
        self._newest: list[tuple[datetime, int, int, Comment]] = []

    def add(self, comment: Comment) -> None:
        """Add a comment. Comments can be added in any order."""
        is_known = comment.updated_at <= self.frozen_at and comment.id != self._trigger_comment_id
        if not is_known or comment.author.casefold() == self._own_login:
            return
        self.count += 1
        heappush(self._newest, (comment.created_at, comment.id, self.count, comment))
        if len(self._newest) > MAX_COMMENTS:
            heappop(self._newest)

    def __iter__(self) -> Iterator[Comment]:
        """The newest first."""
        return (comment for *_, comment in sorted(self._newest, reverse=True))


def freeze_issue(issue: Issue, comments: NewestComments, import_names: Sequence[str]) -> Snapshot:
    """Freeze an issue at the same time as its comments. Title and body come with the trigger."""
    kept = _shorten(comments)
    shown_body = _bound(issue.body or "", MAX_BODY)
    origins = [(THE_ISSUE, shown_body), *((f"comment by {comment.author}", comment.body) for comment in kept)]
    return Snapshot(
        issue_number=issue.number,
        title=_one_line(issue.title, MAX_TITLE),
        author=issue.user.login if issue.user else "ghost",
        body=shown_body,
        labels=tuple(_one_line(label.name, MAX_LABEL) for label in issue.labels)[:MAX_LABELS],
        created_at=issue.created_at,
        frozen_at=comments.frozen_at,
        comments=kept,
        repros=extract_repros(origins, import_names),
        links=list_links(text for _, text in origins),
        comments_left_out=comments.count - len(kept),
    )


def _shorten(comments: Iterable[Comment]) -> tuple[SnapshotComment, ...]:
    """As many of the newest comments as there is room for, oldest first."""
    kept: list[SnapshotComment] = []
    room, unread = MAX_ALL_COMMENTS, MAX_READ
    for comment in comments:
        unread -= min(len(comment.body), 2 * MAX_COMMENT)
        if unread < 0:
            break
        body = _bound(comment.body, MAX_COMMENT)
        room -= len(body)
        if room < 0:
            break
        kept.append(SnapshotComment(comment.author, comment.created_at, body, comment.by_bot))
    return tuple(reversed(kept))


def _one_line(text: str, limit: int) -> str:
    return show_invisible(" ".join(text.split()))[:limit]


def _bound(text: str, limit: int) -> str:
    """The revealed text, cut to `limit` characters with a notice."""
    # Revealing is slow, so text beyond twice the limit is cut off first. If the cut leaves a comment, a tag or an image
    # open, that is cut off, too, because it would become visible.
    near = text[: 2 * limit]
    for opener, closer in _HIDING if len(near) < len(text) else ():
        if (opened := near.rfind(opener)) > near.rfind(closer):
            near = near[:opened]
    shown = reveal(near, whole=text)
    if len(shown) <= limit and len(near) == len(text):
        return shown
    notice = f"\n[cut here: the original has {len(text)} characters]"
    return shown[: limit - len(notice)] + notice
