"""The state of the stand-in: people, repositories, issues, comments, pull requests.

These are plain values without rules: `actions` changes them, `render` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from github_standin.model.gitstore import DiffStat, GitStore

ROLES = ("none", "read", "triage", "write", "maintain", "admin")
"""The roles of people in a repository, weakest first."""

FIRST_ID = 3_000_000_000
"""GitHub's ids exceed 32 bits, so these do too."""


@dataclass(frozen=True, slots=True)
class User:
    """An account; `type` is `User`, `Organization` or `Bot`."""

    id: int
    login: str
    type: str


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An SSH key of an account."""

    id: int
    key: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a repository."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Reaction:
    """One person's reaction; GitHub keeps one per person and content."""

    id: int
    content: str
    user: User
    created_at: datetime


@dataclass(slots=True)
class Comment:
    """A comment in the thread of an issue or pull request."""

    id: int
    issue_number: int
    user: User
    body: str
    created_at: datetime
    updated_at: datetime
    via_app: bool = False
    reactions: list[Reaction] = field(default_factory=list)
    minimized_as: str | None = None
    """Why it is folded, such as `OUTDATED`; None while it is shown."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to an issue, other than a comment: `labeled`, `closed`, `renamed`, ..."""

    id: int
    event: str
    actor: User
    created_at: datetime
    via_app: bool
    label: Label | None = None
    rename: tuple[str, str] | None = None
    """The title before and after."""
    assignee: User | None = None


@dataclass(slots=True, kw_only=True)
class Issue:
    """An issue and its thread."""

    id: int
    number: int
    title: str
    body: str
    user: User
    created_at: datetime
    updated_at: datetime
    via_app: bool = False
    closed_at: datetime | None = None
    labels: list[Label] = field(default_factory=list)
    assignees: list[User] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    reactions: list[Reaction] = field(default_factory=list)
    timeline: list[TimelineEvent] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`open` or `closed`."""
        return "closed" if self.closed_at else "open"


@dataclass(frozen=True, slots=True)
class Merge:
    """The merge of a pull request."""

    sha: str
    by: User
    at: datetime


@dataclass(slots=True, kw_only=True)
class Pull(Issue):
    """A pull request, which is an issue with two branches."""

    source: Repository
    """The repository of its head branch: its own repository or a fork."""
    head: str
    head_sha: str
    base: str
    base_sha: str
    draft: bool
    stat: DiffStat
    merge: Merge | None = None


@dataclass(slots=True)
class Repository:
    """A repository: its git data, its issues and the roles of people."""

    id: int
    owner: User
    name: str
    git: GitStore
    default_branch: str
    private: bool
    installed: bool
    created_at: datetime
    fork_of: Repository | None = None
    roles: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    issues: dict[int, Issue] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """`owner/name`."""
        return f"{self.owner.login}/{self.name}"

    def role_of(self, user: User) -> str:
        """The role of `user`: the granted one, or the one that everybody has."""
        if user.id == self.owner.id:
            return "admin"
        everybody = "none" if self.private or user.type == "Bot" else "read"
        return self.roles.get(user.login.casefold(), everybody)

    def may_be_assigned(self, user: User) -> bool:
        """Whether `user` can be assigned to an issue: people with a role, and the owner."""
        has_role = self.roles.get(user.login.casefold(), "none") != "none"
        return user.type == "User" and (has_role or user.id == self.owner.id)

    def all_comments(self) -> Iterator[Comment]:
        """Every comment of every issue."""
        return (comment for issue in self.issues.values() for comment in issue.comments)

    def pulls(self) -> list[Pull]:
        """Every pull request, oldest first."""
        return [issue for issue in self.issues.values() if isinstance(issue, Pull)]


@dataclass(frozen=True, slots=True)
class Installation:
    """The App on one account. It covers the account's repositories that are `installed`."""

    id: int
    account: User
    created_at: datetime


@dataclass(slots=True)
class App:
    """The GitHub App that talks to the stand-in."""

    id: str
    slug: str
    public_key: str
    """PEM."""
    webhook_secret: str
    client_id: str
    client_secret: str
    permissions: Mapping[str, str]
    events: frozenset[str]
    bot: User
    owner: User
    created_at: datetime


class World:
    """The whole state. Logins and repository names ignore case, as on GitHub."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self._last_id = FIRST_ID
        self.users: dict[str, User] = {}
        self.public_keys: dict[User, list[PublicKey]] = {}
        self.repositories: dict[str, Repository] = {}
        self.former: dict[str, Repository] = {}
        """Former name -> repository."""
        self.installations: dict[int, Installation] = {}

    def next_id(self) -> int:
        """A new unique id."""
        self._last_id += 1
        return self._last_id

    def now(self) -> datetime:
        """The time in UTC, in whole seconds, as GitHub's times."""
        return self.clock().astimezone(UTC).replace(microsecond=0)

    def add_user(self, login: str, kind: str = "User") -> User:
        """The account `login`. It is created if there is none."""
        return self.users.setdefault(login.casefold(), User(self.next_id(), login, kind))

    def repository(self, full_name: str) -> Repository:
        """The repository `full_name`. Raises KeyError."""
        return self.repositories[full_name.casefold()]

    def label(self, repository: Repository, name: str) -> Label:
        """The label `name` of `repository`. It is created if there is none."""
        return repository.labels.setdefault(name.casefold(), Label(self.next_id(), name))

    def installation_on(self, account: User) -> Installation:
        """The App's installation on `account`. It is created if there is none."""
        for installation in self.installations.values():
            if installation.account == account:
                return installation
        installation = Installation(self.next_id(), account, self.now())
        self.installations[installation.id] = installation
        return installation

    def repositories_of(self, installation: Installation) -> Collection[Repository]:
        """The repositories that `installation` covers."""
        return [
            repository
            for repository in self.repositories.values()
            if repository.owner == installation.account and repository.installed
        ]
