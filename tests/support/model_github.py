"""GitHub behind the handlers' port, in memory: one repository, whose answers get lost when a test says so.

For tests of orders of events, which the stand-in would take minutes for. It is as strict as GitHub where that matters:
a branch is made once, and a second open pull request from it is refused. It knows no duplicate comment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from handlers.events import Issue, IssueLabel, Repository, User
from handlers.ports import (
    Author,
    Comment,
    DeliveryAttempt,
    GitHubError,
    GitHubUnavailable,
    Labelling,
    MentioningPull,
    NotFound,
    PullRequest,
    TreeEntry,
    WritePriority,
)
from handlers.rules import Role
from runner.changes.base_files import BaseFile
from runner.model.job import FileChange, digest_of

OURS = "ptq-bot[bot]"
MISHAPS = ("refused", "lost", "crash before", "crash after")
"""What may happen to a call: it is not done; it is done, and its answer is lost; we die before or after it."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Opened:
    """A pull request, and the digest of what it changes."""

    pull: PullRequest
    branch: str
    body: str
    digest: str
    title: str = ""


class ModelGitHub:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.writers = set[str]()
        self.is_private = False
        self.threads = dict[int, list[Comment]]()
        """What stands on each issue."""
        self.posted = list[Comment]()
        """Whatever we have ever posted, also what was deleted."""
        self.fetched_comments = list[int]()
        self.roles_asked = list[str]()
        self.files = dict[str, bytes]()
        """What is on the default branch."""
        self.labellings = dict[int, list[Labelling]]()
        self.labels = dict[int, set[str]]()
        """What stands on each issue."""
        self.moved = set[int]()
        self.closed: set[int] = set()
        """Issues that were transferred to where we are not installed."""
        self.opened = list[Opened]()
        self.messages = list[str]()
        """Of commits."""
        self.mishaps = list[str]()
        """Of the next calls, one each; `none` is none."""
        self.absent = set[int]()
        """Comments that are not found by their ids although they are there."""
        self.rejects = ""
        """A comment with this text gets a 422."""
        self.loses_opened = False
        """Whether the next pull request opens, and its answer is lost."""
        self.before_opening: Callable[[], object] = lambda: None
        """What others do directly before a pull request opens."""
        self._branches = {"main": "f" * 40}
        self._objects = dict[str, Any]()
        self._last_id = 0

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def say(self, issue: int, author: str, body: str) -> Comment:
        number, now = self.next_id(), self._now()
        comment = Comment(number, author, body, now, now, f"https://github/issues/{issue}#issuecomment-{number}")
        self.threads.setdefault(issue, []).append(comment)
        return comment

    def delete(self, comment: Comment) -> None:
        for thread in self.threads.values():
            if comment.id in [standing.id for standing in thread]:
                thread[:] = [standing for standing in thread if standing.id != comment.id]

    def close_pull(self, which: int) -> None:
        opened = self.opened[which]
        self.opened[which] = replace(opened, pull=replace(opened.pull, state="closed"))

    async def _do(self, act: Callable[[], Value]) -> Value:
        mishap = self.mishaps.pop(0) if self.mishaps else "none"
        if mishap == "refused":
            raise GitHubUnavailable("GitHub answered 502")
        if mishap == "crash before":
            raise asyncio.CancelledError
        done = act()
        if mishap == "lost":
            raise GitHubUnavailable("the connection was lost")
        if mishap == "crash after":
            raise asyncio.CancelledError
        return done

    # The port.

    async def own_login(self) -> str:
        return OURS

    async def list_deliveries(self, since: datetime) -> list[DeliveryAttempt]:
        raise NotImplementedError

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        raise NotImplementedError

    async def fetch_repository(self, repository: str) -> Repository:
        where = Repository(full_name=repository, private=self.is_private, default_branch="main", clone_url="")
        return await self._do(lambda: where)

    def list_labelled_issues(self, repository: str, label: str, since: datetime) -> AsyncIterator[Issue]:
        raise NotImplementedError

    async def fetch_role(self, repository: str, login: str) -> Role:
        self.roles_asked.append(login)
        return await self._do(lambda: Role.WRITE if login in self.writers else Role.NONE)

    async def fetch_issue(self, repository: str, issue_number: int) -> Issue:
        return await self._do(lambda: self._show_issue(issue_number))

    def _show_issue(self, issue_number: int) -> Issue:
        self._thread(issue_number)
        labels, now = tuple(IssueLabel(name=name) for name in sorted(self.labels.get(issue_number, ()))), self._now()
        state = "closed" if issue_number in self.closed else "open"
        return Issue(number=issue_number, title="It breaks", labels=labels, created_at=now, updated_at=now, state=state)

    async def list_mentioning_pulls(self, repository: str, issue_number: int) -> AsyncIterator[MentioningPull]:
        for pull in await self._do(list[MentioningPull]):
            yield pull

    async def list_comments(
        self, repository: str, issue_number: int, since: datetime | None = None
    ) -> AsyncIterator[Comment]:
        for comment in await self._do(lambda: [*self._thread(issue_number)]):
            yield comment

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        return await self._do(lambda: [*self.labellings.get(issue_number, [])])

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        raise NotImplementedError

    async def add_label(self, repository: str, issue_number: int, label: str) -> None:
        await self._do(lambda: self.labels.setdefault(issue_number, set()).add(label))

    async def remove_label(self, repository: str, issue_number: int, label: str) -> None:
        await self._do(lambda: self.labels.setdefault(issue_number, set()).discard(label))

    async def create_comment(
        self, repository: str, issue_number: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        return await self._do(lambda: self._post(issue_number, body))

    def _post(self, issue_number: int, body: str) -> Comment:
        self._thread(issue_number)
        if self.rejects and self.rejects in body:
            raise GitHubError(422, "Body is too long")
        comment = self.say(issue_number, OURS, body)
        self.posted.append(comment)
        return comment

    def _thread(self, issue_number: int) -> list[Comment]:
        if issue_number in self.moved:
            raise NotFound(404, "Not Found")
        return self.threads.setdefault(issue_number, [])

    async def fetch_comment(self, repository: str, comment_id: int) -> Comment:
        self.fetched_comments.append(comment_id)
        return await self._do(lambda: self._find(comment_id))

    def _find(self, comment_id: int) -> Comment:
        self._require(comment_id)
        for issue_number, thread in self.threads.items():
            for comment in thread:
                if comment.id == comment_id and issue_number not in self.moved:
                    return comment
        raise NotFound(404, "Not Found")

    async def update_comment(
        self, repository: str, comment_id: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        return await self._do(lambda: self._edit(comment_id, body))

    def _require(self, comment_id: int) -> None:
        if comment_id in self.absent:
            raise NotFound(404, "Not Found")

    def _edit(self, comment_id: int, body: str) -> Comment:
        self._require(comment_id)
        for issue_number, thread in self.threads.items():
            for place, comment in enumerate(thread):
                if comment.id == comment_id and issue_number not in self.moved:
                    thread[place] = replace(comment, body=body)
                    return thread[place]
        raise NotFound(404, "Not Found")

    async def react_to_issue(self, repository: str, issue_number: int, content: str) -> None: ...

    async def react_to_comment(self, repository: str, comment_id: int, content: str) -> None: ...

    async def fetch_file(self, repository: str, path: str, commit: str | None) -> bytes | None:
        return await self._do(lambda: self.files.get(path) if commit is None else None)

    async def find_base_files(self, repository: str, paths: Collection[str], commit: str) -> dict[str, BaseFile]:
        return await self._do(lambda: {})

    async def fetch_blob(self, repository: str, sha: str) -> bytes:
        raise NotImplementedError

    async def list_files(self, repository: str, folders: Sequence[str], commit: str) -> list[str]:
        return []

    async def create_blob(self, repository: str, content: bytes) -> str:
        return await self._do(lambda: self._store(content))

    async def create_tree(self, repository: str, base_commit: str, entries: Sequence[TreeEntry]) -> str:
        return await self._do(lambda: self._store((base_commit, [*entries])))

    async def fetch_author(self, repository: str, login: str) -> Author:
        raise NotImplementedError

    async def fetch_account_id(self, repository: str, login: str) -> int:
        raise NotImplementedError

    async def list_public_keys(self, repository: str, login: str) -> list[str]:
        raise NotImplementedError

    async def create_commit(
        self, repository: str, message: str, tree_sha: str, parents: Sequence[str], author: Author | None = None
    ) -> str:
        self.messages.append(message)
        return await self._do(lambda: self._store(([*parents], tree_sha)))

    def _store(self, thing: object) -> str:
        sha = f"{self.next_id():040x}"
        self._objects[sha] = thing
        return sha

    async def create_branch(self, repository: str, branch: str, sha: str) -> bool:
        return await self._do(lambda: self._branches.setdefault(branch, sha) is sha)

    async def move_branch(self, repository: str, branch: str, sha: str) -> bool:
        return await self._do(lambda: self._move(branch, sha))

    def _move(self, branch: str, sha: str) -> bool:
        parents, _ = self._objects[sha]
        if self._branches[branch] not in (sha, *parents):
            return False
        self._branches[branch] = sha
        self._change_pulls(branch, lambda pull: replace(pull, head_sha=sha))
        return True

    def _change_pulls(self, branch: str, change: Callable[[PullRequest], PullRequest]) -> None:
        """Open pull requests of a branch follow it."""
        for place, opened in enumerate(self.opened):
            if opened.branch == branch and opened.pull.state == "open":
                pull = change(opened.pull)
                self.opened[place] = Opened(pull, branch, pull.body, self._digest(pull.head_sha))

    async def contains(self, repository: str, commit: str, ancestor: str) -> bool:
        return await self._do(lambda: True)

    async def fetch_branch_sha(self, repository: str, branch: str) -> str | None:
        return await self._do(lambda: self._branches.get(branch))

    async def list_pull_requests(
        self, repository: str, branch: str, head_repository: str | None = None
    ) -> list[PullRequest]:
        found = [opened.pull for opened in reversed(self.opened) if opened.branch == branch]
        return await self._do(lambda: found)

    async def fetch_pull_request(self, repository: str, number: int) -> PullRequest:
        return await self._do(lambda: next(opened.pull for opened in self.opened if opened.pull.number == number))

    async def update_pull_request(self, repository: str, number: int, *, body: str, title: str | None = None) -> None:
        (branch,) = [opened.branch for opened in self.opened if opened.pull.number == number]
        await self._do(lambda: self._change_pulls(branch, lambda pull: replace(pull, body=body)))

    async def assign(self, repository: str, number: int, login: str) -> None: ...

    async def list_own_open_pulls(self, repository: str) -> list[int]:
        open_ones = [opened.pull.number for opened in self.opened if opened.pull.state == "open"]
        return await self._do(lambda: open_ones)

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
        self.before_opening()
        if self.loses_opened:
            self.loses_opened, self.mishaps = False, ["lost"]
        return await self._do(lambda: self._open(branch, title, body, base_branch))

    def _open(self, branch: str, title: str, body: str, base_branch: str) -> PullRequest:
        if any(opened.branch == branch and opened.pull.state == "open" for opened in self.opened):
            raise GitHubError(422, "A pull request already exists")
        sha, number = self._branches[branch], self.next_id()
        pull = PullRequest(number, f"https://github/pull/{number}", "open", sha, OURS, body, base_branch=base_branch)
        self.opened.append(Opened(pull, branch, body, self._digest(sha), title))
        return pull

    def _digest(self, commit: str) -> str:
        """Of what the tree of a commit changes in the base that it was made from; empty for one that is not ours."""
        if commit not in self._objects:
            return ""
        _, tree = self._objects[commit]
        base, entries = self._objects[tree]
        changes = [FileChange(one.path, one.mode, (one.text or "").encode()) for one in entries]
        return digest_of(base, changes, b"secret")
