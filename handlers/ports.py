"""The handlers' interface to GitHub: plain values and one protocol, which `bot.github` implements over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from handlers.events import Issue, Repository, User
from handlers.rules import Role
from runner.changes.base_files import BaseFile


class GitHubError(Exception):
    """GitHub refused a request. `status` is the HTTP status code.


    `said` is GitHub's own message. `message` also names the request, whose path may contain strangers' words.
    """

    def __init__(self, status: int, said: str, asked_for: str = "") -> None:
        self.status = status
        self.said = said
        self.message = f"{said} ({asked_for})" if asked_for else said
        super().__init__(f"GitHub answered {status}: {self.message}")


class NotFound(GitHubError):  # noqa: N818
    """The object does not exist, or the App may not see it (404, 410)."""


class NotInstalled(GitHubError):  # noqa: N818
    """The App is not installed on the repository, or lacks permissions there. Says nothing about the repository's
    content."""

    def __init__(self, status: int, repository: str) -> None:
        super().__init__(status, f"the App is not installed on {repository}, or not with all its permissions")


class TooLong(GitHubError):  # noqa: N818
    """A list has more pages than we read, and trying again does not change that."""

    def __init__(self, what: str, pages: int) -> None:
        super().__init__(200, f"the list has more than {pages} pages", what)


class GitHubUnavailable(Exception):  # noqa: N818
    """No usable answer (time-out, lost connection, 5xx, rate limit, refused credentials).

    A write may or may not have happened.

    `retry_after_s` is the wait that GitHub has asked for, in seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OverBudget(GitHubUnavailable):
    """This write would have to wait long, because of the installation's write budget. Nothing was sent."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"our write budget is used up: wait {wait_s:.0f} s", wait_s)


class WritePriority(Enum):
    """The priority of a write, the highest first.

    `percent` is the share of the installation's write budget that may be used up when such a write is still allowed.
    """

    REPORT = 100
    """What people wait for: the first status of a job, its report, and every step of a pull request."""
    REPLY = 90
    STATUS = 80
    """The final status of a job."""
    LIVE = 50
    """Status updates in between, reactions, and labels: they may be late or lost."""

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
    """One path of a new tree: inline text, an existing blob, or (both None) a deletion."""

    path: str
    mode: str
    text: str | None = None
    blob_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a commit. `email` is the account's noreply address at GitHub."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The fields of a pull request that we need. `state` is `open` or `closed`."""

    number: int
    url: str
    state: str
    head_sha: str
    author: str
    body: str = ""
    head_repository: str = ""
    """The repository of its branch; empty if it was deleted."""
    base_branch: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One attempt of GitHub to send a delivery. All attempts at the same delivery share its `guid`."""

    id: int
    guid: str
    event: str
    action: str | None
    delivered_at: datetime
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Labelling:
    """A labeled event of an issue."""

    by: User
    at: datetime


@dataclass(frozen=True, slots=True)
class MentioningPull:
    """An open pull request that mentions an issue."""

    repository: str
    number: int
    author: str
    body: str


class GitHub(Protocol):
    """The requests of handlers. By default each raises `GitHubError` or `GitHubUnavailable`.

    `repository` is always `owner/name`; the implementation finds the installation and its token. A list with texts of
    strangers may have a gigabyte. So it arrives while it is read, and the caller keeps what it needs.
    """

    async def own_login(self) -> str:
        """The login of our own comments, such as `ptq-bot[bot]`."""

    async def list_deliveries(self, since: datetime) -> list[DeliveryAttempt]:
        """All delivery attempts to our webhook since then, newest first. GitHub keeps them for three days."""

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        """The payload of an attempt. Raises `NotFound` if GitHub no longer has it."""

    async def fetch_repository(self, repository: str) -> Repository:
        """The repository, as in a webhook."""

    async def fetch_role(self, repository: str, login: str) -> Role:
        """The current role of `login`; none if GitHub answers 404."""

    async def fetch_issue(self, repository: str, issue_number: int) -> Issue:
        """The current issue, as in a webhook."""

    def list_mentioning_pulls(self, repository: str, issue_number: int) -> AsyncIterator[MentioningPull]:
        """The open pull requests that mention the issue, according to its timeline."""

    def list_comments(
        self, repository: str, issue_number: int, since: datetime | None = None
    ) -> AsyncIterator[Comment]:
        """All comments of an issue, oldest first; with `since` those updated at or after it."""

    def list_labelled_issues(self, repository: str, label: str, since: datetime) -> AsyncIterator[Issue]:
        """The open issues and pull requests that have `label` and were updated since then."""

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        """The times when `label` was added to the issue, oldest first, according to its timeline."""

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        """Who removed `label` from the issue; None if it is on, or if the timeline does not tell (it may lag)."""

    async def add_label(self, repository: str, issue_number: int, label: str) -> None:
        """Add a label to an issue, and create it in the repository if necessary. Does nothing if the issue has it."""

    async def remove_label(self, repository: str, issue_number: int, label: str) -> None:
        """Remove a label from an issue. Does nothing if the label or the issue is gone."""

    async def create_comment(
        self, repository: str, issue_number: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        """Post a comment. Never retried inside: look for our marker before calling it again."""

    async def fetch_comment(self, repository: str, comment_id: int) -> Comment:
        """The current comment. Raises `NotFound` if it was deleted."""

    async def update_comment(
        self, repository: str, comment_id: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        """Replace a comment's body."""

    async def minimize_comment(self, repository: str, comment_id: int) -> None:
        """Fold a comment as outdated. Does nothing if it is folded already."""

    async def react_to_issue(self, repository: str, issue_number: int, content: str) -> None:
        """Add a reaction (`eyes`, `rocket`, `confused`). Best effort: never raises."""

    async def react_to_comment(self, repository: str, comment_id: int, content: str) -> None:
        """Add a reaction to a comment. Best effort: never raises."""

    async def fetch_file(self, repository: str, path: str, commit: str | None) -> bytes | None:
        """The content of a file at a commit (None: on the default branch as it is now); None if it does not exist."""

    async def list_files(self, repository: str, folders: Sequence[str], commit: str) -> list[str]:
        """The paths of the files directly in these top-level folders (`""` is the root), folder by folder."""

    async def find_base_files(self, repository: str, paths: Collection[str], commit: str) -> dict[str, BaseFile]:
        """Path -> what a commit has there, for these paths and their folders. No link is followed.

        Paths that do not exist are missing in the answer. It needs a request for each existing folder.
        """

    async def fetch_blob(self, repository: str, sha: str) -> bytes:
        """The content of a file, or the target of a link, by the SHA of its git object."""

    async def create_blob(self, repository: str, content: bytes) -> str:
        """Store a blob and return its SHA."""

    async def create_tree(self, repository: str, base_commit: str, entries: Sequence[TreeEntry]) -> str:
        """Create a tree from that of `base_commit` with `entries` changed, and return its SHA."""

    async def fetch_author(self, repository: str, login: str) -> Author:
        """The account as the author of a commit."""

    async def fetch_account_id(self, repository: str, login: str) -> int:
        """GitHub's id of the account that has this login now. Raises `NotFound` if there is none."""

    async def list_public_keys(self, repository: str, login: str) -> list[str]:
        """The account's public SSH keys, newest first. Any of our tokens can read them."""

    async def create_commit(
        self, repository: str, message: str, tree_sha: str, parents: Sequence[str], author: Author | None = None
    ) -> str:
        """Create a commit and return its SHA. Without an author it belongs to the App, and GitHub signs it."""

    async def create_branch(self, repository: str, branch: str, sha: str) -> bool:
        """Create `branch` at `sha`, atomically; False if the branch exists."""

    async def move_branch(self, repository: str, branch: str, sha: str) -> bool:
        """Move `branch` forward to `sha`, atomically; False if it is not at an ancestor of `sha`."""

    async def contains(self, repository: str, commit: str, ancestor: str) -> bool:
        """Whether `ancestor` is an ancestor of `commit`."""

    async def fetch_branch_sha(self, repository: str, branch: str) -> str | None:
        """The commit of `branch`; None if there is no such branch."""

    async def list_pull_requests(
        self, repository: str, branch: str, head_repository: str | None = None
    ) -> list[PullRequest]:
        """The pull requests, in any state and by anybody, whose head is `branch` of this repository or of a fork,
        newest first."""

    async def fetch_pull_request(self, repository: str, number: int) -> PullRequest:
        """The current pull request."""

    async def update_pull_request(self, repository: str, number: int, *, body: str, title: str | None = None) -> None:
        """Replace the body, and optionally the title."""

    async def assign(self, repository: str, number: int, login: str) -> None:
        """Assign somebody to a pull request. Best effort: never raises."""

    async def list_own_open_pulls(self, repository: str) -> list[int]:
        """The numbers of our own open pull requests."""

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
        """Open a draft pull request from a branch of the repository or of a fork.

        Never retried inside: look with `list_pull_requests` first.
        """
