"""The issue frozen as it was at the trigger: what an agent may know of it, and nothing that came later. Pure.

Every text in here was written by strangers, and is as a reader of the page saw it: `reveal`ed, and bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from handlers.ports import Comment
from handlers.text.hidden_text import reveal
from handlers.text.links import list_links
from handlers.text.repros import THE_ISSUE, ReproScript, extract_repros
from runner.characters import show_invisible

MAX_TITLE = 300
"""Characters, as are the other bounds. Together they keep a brief below 200,000."""

MAX_BODY = 40_000
MAX_COMMENT = 10_000
MAX_ALL_COMMENTS = 60_000
MAX_COMMENTS = 50
MAX_READ = 200_000
"""Characters of all comments, the newest first, that are looked at, however little of them readers see."""

MAX_LABELS = 50
MAX_LABEL = 100

_HIDING = (("<!--", "-->"), ("<", ">"), ("![", ")"))
"""How comments, tags and images begin and end."""


@dataclass(frozen=True, slots=True)
class SnapshotComment:
    """A comment as it stood at the trigger."""

    author: str
    created_at: datetime
    body: str
    by_bot: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An issue as it stood at `frozen_at`. Comments are oldest first."""

    repository: str
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
    """Where images and links of the texts above lead, each with what it is."""
    comments_left_out: int = 0
    """How many older comments were too much."""


def freeze_issue(
    *,
    repository: str,
    issue_number: int,
    title: str,
    author: str,
    body: str,
    labels: Iterable[str],
    created_at: datetime,
    comments: Sequence[Comment],
    frozen_at: datetime,
    own_login: str,
    trigger_comment_id: int | None,
    import_names: Sequence[str],
) -> Snapshot:
    """Freeze an issue at `frozen_at`.

    Title and body are those that came with the trigger. Of the comments those are left out that were written or edited
    later, our own, and the one that asked (its words are steering). Where there are too many, the newest win.
    """
    known = [
        comment
        for comment in comments
        if comment.updated_at <= frozen_at
        and comment.author.casefold() != own_login.casefold()
        and comment.id != trigger_comment_id
    ]
    kept = _keep_newest(known)
    shown_body = _bound(body, MAX_BODY)
    origins = [(THE_ISSUE, shown_body), *((f"comment by {comment.author}", comment.body) for comment in kept)]
    return Snapshot(
        repository=repository,
        issue_number=issue_number,
        title=_one_line(title, MAX_TITLE),
        author=author,
        body=shown_body,
        labels=tuple(_one_line(label, MAX_LABEL) for label in labels)[:MAX_LABELS],
        created_at=created_at,
        frozen_at=frozen_at,
        comments=kept,
        repros=extract_repros(origins, import_names),
        links=list_links(text for _, text in origins),
        comments_left_out=len(known) - len(kept),
    )


def _keep_newest(comments: Sequence[Comment]) -> tuple[SnapshotComment, ...]:
    kept: list[SnapshotComment] = []
    room, unread = MAX_ALL_COMMENTS, MAX_READ
    for comment in sorted(comments, key=lambda comment: (comment.created_at, comment.id), reverse=True)[:MAX_COMMENTS]:
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
    """The text revealed, and cut to `limit` characters with a notice."""
    # Revealing costs time: what is beyond twice the limit is not even looked at. What this would leave open, and so
    # make visible, goes with it.
    near = text[: 2 * limit]
    for opener, closer in _HIDING if len(near) < len(text) else ():
        if (opened := near.rfind(opener)) > near.rfind(closer):
            near = near[:opened]
    shown = reveal(near, whole=text)
    if len(shown) <= limit and len(near) == len(text):
        return shown
    notice = f"\n[cut here: the original has {len(text)} characters]"
    return shown[: limit - len(notice)] + notice
