"""The port `handlers.ports.GitHub` over HTTP: one short method per call, each with the permissions that it needs.

This module does not know what comments and pull requests are for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import aiohttp
import structlog

from bot.github.calls import PAGE_SIZE, Calls
from bot.github.credentials import AppCredentials
from bot.github.limits import Left
from bot.github.pace import OwnBudget
from bot.github.payloads import (
    LabelChange,
    choose_labellings,
    choose_mentioning_pulls,
    choose_pull_numbers,
    choose_pull_requests,
    choose_remover,
    parse_attempts,
    parse_base_files,
    parse_blob,
    parse_comment,
    parse_comments,
    parse_home,
    parse_issues,
    parse_label_changes,
    parse_node_id,
    parse_own_login,
    parse_payload,
    parse_person,
    parse_public_keys,
    parse_pull_request,
    parse_repository,
    parse_role,
    parse_sha,
    parse_tree,
    read_answer,
    render_blob,
    render_time,
    render_tree_entry,
)
from bot.github.timings import Timings
from bot.github.tokens import Access, Grant
from handlers.cases.known_repositories import KnownRepositories, OwnRepositories
from handlers.effects.rate_limit import WriteBudget
from handlers.events import Issue, Repository, User
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
from runner.changes.base_files import FOLDER, BaseFile, list_folders

Value = TypeVar("Value")

_TIMELINE = "/issues/{number}/timeline{?per_page}"

log = structlog.get_logger(__name__)

MINIMIZE = """\
mutation ($id: ID!) {
  minimizeComment(input: {subjectId: $id, classifier: OUTDATED}) {
    minimizedComment { isMinimized }
  }
}
"""
"""Folds a comment. GitHub's REST API cannot do this.
https://docs.github.com/en/graphql/reference/mutations#minimizecomment"""


class AppGitHub:
    """GitHub as the App sees it. The caller owns the session, and closes it after the last call."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        api_url: str,
        app_id: str,
        private_key: str,
        now: Callable[[], datetime],
        timings: Timings | None = None,
        budget: WriteBudget | None = None,
        repositories: KnownRepositories | None = None,
    ) -> None:
        """`api_url` is the root of the API, `https://HOST/api/v3` on an Enterprise Server. `private_key` is PEM text.

        `now` returns an aware time in UTC. All clients that write as this App must share `budget` and
        `repositories`. If one of them is None, this client creates its own. Raises `ValueError` if the key cannot be
        read.
        """
        credentials = AppCredentials.from_pem(app_id, private_key)
        timings = timings or Timings()
        budget = budget or OwnBudget(timings.budget(), now)
        self._calls = Calls(session, api_url, credentials, timings, now, budget, repositories or OwnRepositories())
        self._own_login: str | None = None

    def list_left(self) -> list[tuple[str, Left]]:
        """The calls that GitHub's rate limits leave, by account, according to the latest answers.

        The App's own calls have `""` as account.
        """
        return self._calls.list_left()

    async def own_login(self) -> str:
        """The App's login as a user. It is requested once, and then cached."""
        if self._own_login is None:
            self._own_login = read_answer(parse_own_login, await self._calls.fetch_as_app("/app"))
        return self._own_login

    async def list_deliveries(self, since: datetime) -> list[DeliveryAttempt]:
        """Gets pages until a page reaches back to `since`. GitHub lists the newest attempts first."""
        attempts: list[DeliveryAttempt] = []
        async with aclosing(self._calls.list_as_app("/app/hook/deliveries{?per_page}")) as pages:
            async for page in pages:
                attempts += read_answer(parse_attempts, page)
                if attempts and attempts[-1].delivered_at < since:
                    break
        return [attempt for attempt in attempts if attempt.delivered_at >= since]

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        """The payload of one attempt. Raises `NotFound` if GitHub no longer has it."""
        delivery = await self._calls.fetch_as_app("/app/hook/deliveries/{id}", id=attempt_id)
        payload = read_answer(parse_payload, delivery)
        if payload is None:
            raise NotFound(410, f"the payload of delivery {attempt_id} is gone")
        return payload

    async def fetch_repository(self, repository: str) -> Repository:
        """The current repository, even if it was renamed."""
        return read_answer(parse_repository, await self._calls.fetch_repository(Access.READ_ISSUES, repository))

    async def grant_fetch(self, repository: str) -> Grant:
        """A token with which git can read this one repository, and do nothing else."""
        return await self._calls.tokens.fetch(repository, Access.FETCH_CODE)

    def forget_grant(self, grant: Grant) -> None:
        """Stop using a token that GitHub's git server rejects."""
        self._calls.tokens.forget(grant)

    async def fetch_role(self, repository: str, login: str) -> Role:
        """The current role of `login`. Bots have none, and neither has a user for whom GitHub answers 404."""
        if login.endswith("[bot]"):
            return Role.NONE
        path = "/collaborators/{login}/permission"
        try:
            answer = await self._calls.fetch(Access.READ_ISSUES, repository, path, login=login)
        except NotFound:
            return Role.NONE
        return read_answer(parse_role, answer)

    async def fetch_issue(self, repository: str, issue_number: int) -> Issue:
        """The current issue. Raises `NotFound` if it was transferred: GitHub then redirects to another repository."""
        answer = await self._calls.fetch(Access.READ_ISSUES, repository, "/issues/{number}", number=issue_number)
        issue, home = read_answer(Issue.model_validate, answer), read_answer(parse_home, answer)
        is_ours = issue.number == issue_number
        if is_ours and home.lower() != repository.lower():
            # The repository may have been renamed.
            is_ours = home.lower() == (await self.fetch_repository(repository)).full_name.lower()
        if not is_ours:
            raise NotFound(404, "the issue was transferred to another repository")
        return issue

    def list_mentioning_pulls(self, repository: str, issue_number: int) -> AsyncIterator[MentioningPull]:
        """Reads the timeline. Pull requests that the App cannot see are not in it."""
        return self._list(choose_mentioning_pulls, Access.READ_ISSUES, repository, _TIMELINE, number=issue_number)

    def list_comments(
        self, repository: str, issue_number: int, since: datetime | None = None
    ) -> AsyncIterator[Comment]:
        """GitHub's order is oldest first. `since` is rounded down to the second."""
        path = "/issues/{number}/comments{?since,per_page}"
        url_vars = {"number": issue_number, "since": None if since is None else render_time(since)}
        return self._list(parse_comments, Access.READ_ISSUES, repository, path, **url_vars)

    def list_labelled_issues(self, repository: str, label: str, since: datetime) -> AsyncIterator[Issue]:
        """`since` is rounded down to the second."""
        path = "/issues{?labels,state,since,per_page}"
        url_vars = {"labels": label, "state": "open", "since": render_time(since)}
        return self._list(parse_issues, Access.READ_ISSUES, repository, path, **url_vars)

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        """Reads the whole timeline, because GitHub lists the oldest events first, and the latest events matter."""
        return choose_labellings(await self._list_label_changes(repository, issue_number, label))

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        """Reads the whole timeline, like `list_labellings`."""
        return choose_remover(await self._list_label_changes(repository, issue_number, label))

    async def _list_label_changes(self, repository: str, issue_number: int, label: str) -> list[LabelChange]:
        parse = partial(parse_label_changes, label=label)
        changes = self._list(parse, Access.READ_ISSUES, repository, _TIMELINE, number=issue_number)
        return [change async for change in changes]

    async def _list(
        self, parse: Callable[[list[Any]], Iterable[Value]], access: Access, repository: str, path: str, **url_vars: Any
    ) -> AsyncIterator[Value]:
        """The values that `parse` finds in each page of a list. Each page is dropped before the next is requested."""
        async with aclosing(self._calls.list_pages(access, repository, path, **url_vars)) as pages:
            async for page in pages:
                for value in read_answer(parse, page):
                    yield value
                page.clear()

    async def add_label(self, repository: str, issue_number: int, label: str) -> None:
        """Add a label. The others stay."""
        path, data = "/issues/{number}/labels", {"labels": [label]}
        priority = WritePriority.LIVE
        await self._calls.send(Access.WRITE_ISSUES, repository, "POST", path, data, priority, number=issue_number)

    async def remove_label(self, repository: str, issue_number: int, label: str) -> None:
        """Remove one label. If the issue does not have it, GitHub answers 404, which is ignored."""
        path, url_vars = "/issues/{number}/labels/{label}", {"number": issue_number, "label": label}
        with suppress(NotFound):
            await self._calls.send(Access.WRITE_ISSUES, repository, "DELETE", path, b"", WritePriority.LIVE, **url_vars)

    async def create_comment(
        self, repository: str, issue_number: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        """Post a comment. The request is repeated only if GitHub certainly did not act on it."""
        path, data = "/issues/{number}/comments", {"body": body}
        answer = await self._calls.send(
            Access.WRITE_ISSUES, repository, "POST", path, data, priority, number=issue_number
        )
        return read_answer(parse_comment, answer)

    async def fetch_comment(self, repository: str, comment_id: int) -> Comment:
        """Get a comment by its id."""
        path = "/issues/comments/{id}"
        answer = await self._calls.fetch(Access.READ_ISSUES, repository, path, id=comment_id)
        return read_answer(parse_comment, answer)

    async def update_comment(
        self, repository: str, comment_id: int, body: str, priority: WritePriority = WritePriority.REPLY
    ) -> Comment:
        """Replace a comment's body."""
        path, data = "/issues/comments/{id}", {"body": body}
        answer = await self._calls.send(Access.WRITE_ISSUES, repository, "PATCH", path, data, priority, id=comment_id)
        return read_answer(parse_comment, answer)

    async def minimize_comment(self, repository: str, comment_id: int) -> None:
        """Needs two calls: GraphQL identifies a comment by its node id, which must be looked up first."""
        path = "/issues/comments/{id}"
        comment = await self._calls.fetch(Access.READ_ISSUES, repository, path, id=comment_id)
        variables = {"id": read_answer(parse_node_id, comment)}
        await self._calls.query(Access.WRITE_ISSUES, repository, MINIMIZE, variables, WritePriority.LIVE)

    async def react_to_issue(self, repository: str, issue_number: int, content: str) -> None:
        """Add a reaction to an issue. Best effort: never raises."""
        await self._react(repository, "/issues/{id}/reactions", issue_number, content)

    async def react_to_comment(self, repository: str, comment_id: int, content: str) -> None:
        """Add a reaction to a comment. Best effort: never raises."""
        await self._react(repository, "/issues/comments/{id}/reactions", comment_id, content)

    async def _react(self, repository: str, path: str, target: int, content: str) -> None:
        try:
            data = {"content": content}
            await self._calls.send(Access.WRITE_ISSUES, repository, "POST", path, data, WritePriority.LIVE, id=target)
        except (GitHubError, GitHubUnavailable) as error:
            log.debug("github.reaction_lost", repository=repository, target=target, reason=str(error))

    async def fetch_file(self, repository: str, path: str, commit: str | None) -> bytes | None:
        """Needs two calls, because `contents` returns bytes only up to 1 MB, but a blob has up to 100 MB."""
        where = "/contents{/file*}{?ref}"
        try:
            found = await self._calls.fetch(Access.READ_CODE, repository, where, file=path.split("/"), ref=commit)
        except NotFound:
            return None
        return await self.fetch_blob(repository, read_answer(parse_sha, found))

    async def fetch_blob(self, repository: str, sha: str) -> bytes:
        """Needs one call. GitHub returns blobs up to 100 MB."""
        blob = await self._calls.fetch(Access.READ_CODE, repository, "/git/blobs/{sha}", sha=sha)
        return read_answer(parse_blob, blob)

    async def find_base_files(self, repository: str, paths: Collection[str], commit: str) -> dict[str, BaseFile]:
        """Needs one call for the root and one for each existing folder, outer folders first."""
        found = dict[str, BaseFile]()
        folders = {folder for path in paths for folder in list_folders(path)}
        wanted = folders.union(paths)
        for folder in sorted({"", *folders}, key=lambda name: (name.count("/"), name)):
            there = found.get(folder)
            if folder and (there is None or there.mode != FOLDER):
                continue
            sha = there.sha if there else commit
            tree = await self._calls.fetch(Access.READ_CODE, repository, "/git/trees/{sha}", sha=sha)
            inside = read_answer(parse_base_files, tree)
            if inside is None:
                raise GitHubError(200, "the folder has too many files to be listed", repr(folder[:200]))
            prefix = f"{folder}/" if folder else ""
            found |= {prefix + name: file for name, file in inside.items() if prefix + name in wanted}
        return found

    async def list_files(self, repository: str, folders: Sequence[str], commit: str) -> list[str]:
        """Needs one call for the root and one for each existing folder."""
        path = "/git/trees/{sha}"
        root = read_answer(parse_tree, await self._calls.fetch(Access.READ_CODE, repository, path, sha=commit))
        found: list[str] = []
        for folder in folders:
            sha = next((sha for name, kind, sha in root if (name, kind) == (folder, "tree")), None)
            tree = await self._calls.fetch(Access.READ_CODE, repository, path, sha=sha) if sha else {"tree": []}
            inside = read_answer(parse_tree, tree) if folder else root
            found += [f"{folder}/{name}".lstrip("/") for name, kind, _ in inside if kind == "blob"]
        return found

    async def create_blob(self, repository: str, content: bytes) -> str:
        """Store bytes and return the blob's SHA."""
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/blobs", render_blob(content))
        return read_answer(parse_sha, answer)

    async def create_tree(self, repository: str, base_commit: str, entries: Sequence[TreeEntry]) -> str:
        """Needs two calls: `base_tree` must be the SHA of a tree, so the tree of the commit is looked up first."""
        commit = await self._calls.fetch(Access.WRITE_CODE, repository, "/git/commits/{sha}", sha=base_commit)
        base_tree = read_answer(lambda payload: parse_sha(payload["tree"]), commit)
        tree = {"base_tree": base_tree, "tree": [render_tree_entry(entry) for entry in entries]}
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/trees", tree)
        return read_answer(parse_sha, answer)

    async def fetch_author(self, repository: str, login: str) -> Author:
        """Any of the App's tokens works, because accounts are public."""
        return read_answer(parse_person, await self._calls.fetch_account(Access.READ_CODE, repository, login))

    async def fetch_account_id(self, repository: str, login: str) -> int:
        """Any of the App's tokens works, because accounts are public."""
        return read_answer(
            lambda payload: int(payload["id"]), await self._calls.fetch_account(Access.READ_CODE, repository, login)
        )

    async def list_public_keys(self, repository: str, login: str) -> list[str]:
        """Gets one page, which has up to 100 keys. Keys are public, like accounts."""
        path = "/keys{?per_page}"
        answer = await self._calls.fetch_account(Access.READ_ISSUES, repository, login, path, per_page=PAGE_SIZE)
        return read_answer(parse_public_keys, answer)

    async def create_commit(
        self, repository: str, message: str, tree_sha: str, parents: Sequence[str], author: Author | None = None
    ) -> str:
        """Without an author, GitHub uses the App as author and committer, and signs the commit.

        With an author, the App is set as committer, because GitHub would otherwise use the author.
        """
        commit: dict[str, Any] = {"message": message, "tree": tree_sha, "parents": [*parents]}
        if author:
            own = await self.fetch_author(repository, await self.own_login())
            commit |= {"author": asdict(author), "committer": asdict(own)}
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/commits", commit)
        return read_answer(parse_sha, answer)

    async def create_branch(self, repository: str, branch: str, sha: str) -> bool:
        """GitHub either creates the ref, or answers 422 "Reference already exists"."""
        ref = {"ref": f"refs/heads/{branch}", "sha": sha}
        try:
            await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/refs", ref)
        except GitHubError as refusal:
            if refusal.status == 422 and "already exists" in refusal.said.lower():
                return False
            raise
        return True

    async def move_branch(self, repository: str, branch: str, sha: str) -> bool:
        """Never forces the move. If `sha` is not a descendant of the branch's commit, GitHub answers 422."""
        path, ref = "/git/refs/heads{/branch*}", {"sha": sha, "force": False}
        try:
            await self._calls.send(Access.WRITE_CODE, repository, "PATCH", path, ref, branch=branch.split("/"))
        except GitHubError as refusal:
            if refusal.status == 422 and "not a fast forward" in refusal.said.lower():
                return False
            raise
        return True

    async def contains(self, repository: str, commit: str, ancestor: str) -> bool:
        """Gets a page with one commit, because only the `status` of the comparison is needed."""
        path, ends = "/compare/{basehead}{?per_page}", f"{ancestor}...{commit}"
        answer = await self._calls.fetch(Access.READ_CODE, repository, path, basehead=ends, per_page=1)
        return read_answer(lambda found: found["status"] in ("ahead", "identical"), answer)

    async def fetch_branch_sha(self, repository: str, branch: str) -> str | None:
        """The commit of a branch. None if there is no such branch. Slashes in the name stay slashes in the URL."""
        path = "/git/ref/heads{/branch*}"
        try:
            ref = await self._calls.fetch(Access.READ_CODE, repository, path, branch=branch.split("/"))
        except NotFound:
            return None
        return read_answer(lambda payload: parse_sha(payload["object"]), ref)

    async def list_pull_requests(
        self, repository: str, branch: str, head_repository: str | None = None
    ) -> list[PullRequest]:
        """All pull requests of this branch, by any author."""
        path = "/pulls{?head,state,per_page}"
        where = head_repository or repository
        head = f"{where.partition('/')[0]}:{branch}"
        choose = partial(choose_pull_requests, branch=branch, from_fork=where != repository)
        pulls = self._list(choose, Access.READ_CODE, repository, path, head=head, state="all")
        return sorted([pull async for pull in pulls], key=lambda pull: -pull.number)

    async def fetch_pull_request(self, repository: str, number: int) -> PullRequest:
        """One pull request."""
        path = "/pulls/{number}"
        return read_answer(
            parse_pull_request, await self._calls.fetch(Access.READ_CODE, repository, path, number=number)
        )

    async def update_pull_request(self, repository: str, number: int, *, body: str, title: str | None = None) -> None:
        """Sends only the given fields, so that the other fields stay as people left them."""
        pull = {"body": body} | ({"title": title} if title else {})
        await self._calls.send(Access.WRITE_CODE, repository, "PATCH", "/pulls/{number}", pull, number=number)

    async def assign(self, repository: str, number: int, login: str) -> None:
        """Assign a user. Best effort: never raises. GitHub silently ignores users who cannot be assigned."""
        path, data = "/issues/{number}/assignees", {"assignees": [login]}
        try:
            await self._calls.send(Access.WRITE_CODE, repository, "POST", path, data, number=number)
        except (GitHubError, GitHubUnavailable) as error:
            log.info("github.not_assigned", repository=repository, number=number, login=login, reason=str(error))

    async def list_own_open_pulls(self, repository: str) -> list[int]:
        """Lists issues, because GitHub can filter only issues by author. Its lists of issues include pull requests."""
        path, query = "/issues{?creator,state,per_page}", {"creator": await self.own_login(), "state": "open"}
        numbers = self._list(choose_pull_numbers, Access.READ_THREADS, repository, path, **query)
        return [number async for number in numbers]

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
        """Open a draft. The request is repeated only if GitHub certainly did not act on it."""
        pull: dict[str, Any] = {"title": title, "body": body, "head": branch, "base": base_branch, "draft": True}
        if head_repository and head_repository != repository:
            # The repository's token cannot write to the fork, so it cannot let maintainers write to it either.
            owner = head_repository.partition("/")[0]
            pull |= {"head": f"{owner}:{branch}", "maintainer_can_modify": False}
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/pulls", pull)
        return read_answer(parse_pull_request, answer)
