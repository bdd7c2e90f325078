"""What the handlers need from GitHub, as plain values and one protocol.

`bot.github` implements it over HTTP. This file refuses to know how a request travels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from handlers.events import Issue, Repository, User
from handlers.rules import Role
from runner.changes.base_files import BaseFile


class GitHubError(Exception):
    """GitHub answered, and the answer was no. `status` is the HTTP status code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"GitHub answered {status}: {message}")
        self.status = status
        self.message = message


class NotFound(GitHubError):  # noqa: N818
    """The thing does not exist, or the App may not see it (404, 410)."""


class NotInstalled(GitHubError):  # noqa: N818
    """The App is not installed on the repository, or may not do there what it must: no word about what is in it."""

    def __init__(self, status: int, repository: str) -> None:
        super().__init__(status, f"the App is not installed on {repository}, or not with all its permissions")


class GitHubUnavailable(Exception):  # noqa: N818
    """No usable answer (time-out, connection lost, 5xx, rate limit, our credentials refused).

    A write may or may not have happened.

    `retry_after_s` is how long GitHub asked to be left alone, in seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OverBudget(GitHubUnavailable):
    """The installation has written so much of late that this write would have to wait long. Nothing was sent."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"our own pace of writes: none of this worth for another {wait_s:.0f} s", wait_s)


class Worth(Enum):
    """How much a write is worth to people, the most first.

    `percent` is how much of the installation's budget of writes may be used when one of this worth still goes.
    """

    REPORT = 100
    """What people wait for: the first word on a job, its report, and every step of a pull request."""
    REPLY = 90
    STATUS = 80
    """The last word of a status comment."""
    LIVE = 50
    """What is in between, reactions, and labels: lost or late without harm."""

    @property
    def percent(self) -> int:
        """See the class."""
        return int(self.value)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on an issue or pull request."""

    id: int
    author: str
    body: str
    created_at: datetime
    updated_at: datetime
    url: str
    by_bot: bool = False


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One path of a new tree: inline text, a blob made before, or (both None) a deletion."""

    path: str
    mode: str
    text: str | None = None
    blob_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Author:
    """Whom a commit names: `email` is the address that GitHub keeps for the account, and shows nobody's own."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request as far as we need it. `state` is `open` or `closed`."""

    number: int
    url: str
    state: str
    head_sha: str
    author: str
    body: str = ""
    head_repository: str = ""
    """Where its branch is; empty once that is gone."""
    base_branch: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One time that GitHub sent a delivery. All attempts at the same delivery share its `guid`."""

    id: int
    guid: str
    event: str
    action: str | None
    delivered_at: datetime
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Labelling:
    """That somebody put a label on an issue."""

    by: User
    at: datetime


@dataclass(frozen=True, slots=True)
class MentioningPull:
    """An open pull request that names an issue somewhere."""

    repository: str
    number: int
    author: str
    body: str


class GitHub(Protocol):
    """The calls that handlers make. Unless said otherwise each raises `GitHubError` or `GitHubUnavailable`.

    `repository` is always `owner/name`; the implementation finds the installation and its token.
    """

    async def own_login(self) -> str:
        """The login that our own comments carry, such as `ptq-bot[bot]`."""

    async def list_deliveries(self, since: datetime) -> list[DeliveryAttempt]:
        """Every attempt at or after `since` to deliver to our webhook, newest first. GitHub remembers three days."""

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        """What an attempt carried. Raises `NotFound` once GitHub has forgotten it."""

    async def fetch_repository(self, repository: str) -> Repository:
        """What a webhook would say of the repository."""

    async def fetch_role(self, repository: str, login: str) -> Role:
        """What `login` may do just now; nothing when GitHub says 404."""

    async def fetch_issue(self, repository: str, issue_number: int) -> Issue:
        """The issue as it is now, as a webhook would show it."""

    async def list_mentioning_pulls(self, repository: str, issue_number: int) -> list[MentioningPull]:
        """The open pull requests that name the issue, as far as its timeline tells."""

    async def list_comments(self, repository: str, issue_number: int, since: datetime | None = None) -> list[Comment]:
        """All comments of an issue, oldest first; with `since` those updated at or after it."""

    async def list_labelled_issues(self, repository: str, label: str, since: datetime) -> list[Issue]:
        """The open issues, pull requests among them, that carry `label` and were updated at or after `since`."""

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        """Each time that `label` was put on the issue, oldest first, as far as its timeline tells."""

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        """Who took `label` off the issue; None where it is on, or the timeline does not tell (it may lag)."""

    async def add_label(self, repository: str, issue_number: int, label: str) -> None:
        """Put a label on an issue, and make it where the repository lacks it. One that is there stays."""

    async def remove_label(self, repository: str, issue_number: int, label: str) -> None:
        """Take a label off an issue. One that is not there, or whose issue is gone, is off."""

    async def create_comment(
        self, repository: str, issue_number: int, body: str, worth: Worth = Worth.REPLY
    ) -> Comment:
        """Post a comment. Never retried inside: look for your own marker before you call it again."""

    async def fetch_comment(self, repository: str, comment_id: int) -> Comment:
        """The comment as it is now. Raises `NotFound` once it is deleted."""

    async def update_comment(self, repository: str, comment_id: int, body: str, worth: Worth = Worth.REPLY) -> Comment:
        """Replace a comment's body."""

    async def react_to_issue(self, repository: str, issue_number: int, content: str) -> None:
        """Add a reaction (`eyes`, `rocket`, `confused`). Best effort: never raises."""

    async def react_to_comment(self, repository: str, comment_id: int, content: str) -> None:
        """Add a reaction to a comment. Best effort: never raises."""

    async def fetch_file(self, repository: str, path: str, commit: str) -> bytes | None:
        """The content of a file at a commit; None when it is not there."""

    async def list_files(self, repository: str, folders: Sequence[str], commit: str) -> list[str]:
        """The paths of the files that lie directly in these folders of the first level (`""` is the root), in turn."""

    async def find_base_files(self, repository: str, paths: Collection[str], commit: str) -> dict[str, BaseFile]:
        """What a commit has at these paths and at the folders that they lie in, by path; no link is followed.

        What is absent is missing in the answer. It takes a call for each of these folders that is there.
        """

    async def fetch_blob(self, repository: str, sha: str) -> bytes:
        """The content of a file, or the target of a link, by the SHA of its git object."""

    async def create_blob(self, repository: str, content: bytes) -> str:
        """Store a blob and return its SHA."""

    async def create_tree(self, repository: str, base_commit: str, entries: Sequence[TreeEntry]) -> str:
        """Make a tree from `base_commit`'s with `entries` changed, and return its SHA."""

    async def fetch_author(self, repository: str, login: str) -> Author:
        """The account as commits in the repository name it."""

    async def list_public_keys(self, repository: str, login: str) -> list[str]:
        """The account's public SSH keys, the newest first, as its owner gave them; any of our tokens will do."""

    async def create_commit(
        self, repository: str, message: str, tree_sha: str, parents: Sequence[str], author: Author | None = None
    ) -> str:
        """Make a commit and return its SHA. Without an author it is the App's, and GitHub signs it."""

    async def create_branch(self, repository: str, branch: str, sha: str) -> bool:
        """Create `branch` at `sha`, atomically; False when the branch exists already."""

    async def move_branch(self, repository: str, branch: str, sha: str) -> bool:
        """Move `branch` forward to `sha`, atomically; False when it is not at an ancestor of that."""

    async def contains(self, repository: str, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is reached from `commit`."""

    async def fetch_branch_sha(self, repository: str, branch: str) -> str | None:
        """The commit that `branch` points at; None when there is no such branch."""

    async def list_pull_requests(
        self, repository: str, branch: str, head_repository: str | None = None
    ) -> list[PullRequest]:
        """The pull requests, in any state and of anybody, whose head is `branch` of this repository, or of a fork.

        The newest comes first.
        """

    async def fetch_pull_request(self, repository: str, number: int) -> PullRequest:
        """The pull request as it is now."""

    async def update_pull_request(self, repository: str, number: int, *, body: str, title: str | None = None) -> None:
        """Replace the body, and the title where there is one."""

    async def assign(self, repository: str, number: int, login: str) -> None:
        """Assign somebody to a pull request. Best effort: never raises."""

    async def list_own_open_pulls(self, repository: str) -> list[int]:
        """The numbers of the open pull requests that we opened."""

    async def create_draft_pull_request(
        self,
        repository: str,
        *,
        title: str,
        body: str,
        branch: str,
        base_branch: str,
        head_repository: str | None = None,
    ) -> PullRequest:
        """Open a draft pull request, from a branch of its own or of a fork.

        Never retried inside: look with `list_pull_requests` first.
        """
