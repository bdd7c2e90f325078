"""The port `handlers.ports.GitHub` over HTTP: one short method per call, each with the access that it needs.

It refuses to know what comments and pull requests are for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import aiohttp
import structlog

from bot.github.calls import PAGE_SIZE, Calls
from bot.github.credentials import AppCredentials
from bot.github.limits import Left
from bot.github.pace import OwnBudget
from bot.github.payloads import (
    choose_labellings,
    choose_mentioning_pulls,
    choose_pull_requests,
    choose_remover,
    parse_attempts,
    parse_base_files,
    parse_blob,
    parse_comment,
    parse_comments,
    parse_issues,
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
    Worth,
)
from handlers.rules import Role
from runner.changes.base_files import FOLDER, BaseFile, list_folders

log = structlog.get_logger(__name__)


class AppGitHub:
    """GitHub as the App sees it. The session is the caller's, who closes it after the last call."""

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
    ) -> None:
        """`api_url` is the root of the API, `https://HOST/api/v3` on an Enterprise Server; `private_key` is PEM text.

        `now` gives the time, aware and in UTC; `budget` is shared by all who write as this App, None for a client that
        is alone. Raises ValueError when the key cannot be read.
        """
        credentials = AppCredentials.from_pem(app_id, private_key)
        timings = timings or Timings()
        budget = budget or OwnBudget(timings.budget(), now)
        self._calls = Calls(session, api_url, credentials, timings, now, budget)
        self._own_login: str | None = None

    def list_left(self) -> list[tuple[str, Left]]:
        """What the newest answers say is left of GitHub's rate limits, by account; none for the App's own calls."""
        return self._calls.list_left()

    async def own_login(self) -> str:
        """The App's login as a user; asked once."""
        if self._own_login is None:
            self._own_login = read_answer(parse_own_login, await self._calls.fetch_as_app("/app"))
        return self._own_login

    async def list_deliveries(self, since: datetime) -> list[DeliveryAttempt]:
        """As many pages as reach back so far: GitHub lists the newest first."""
        attempts: list[DeliveryAttempt] = []
        async with aclosing(self._calls.list_as_app("/app/hook/deliveries{?per_page}")) as pages:
            async for page in pages:
                attempts += read_answer(parse_attempts, page)
                if attempts and attempts[-1].delivered_at < since:
                    break
        return [attempt for attempt in attempts if attempt.delivered_at >= since]

    async def fetch_payload(self, attempt_id: int) -> Mapping[str, Any]:
        """The payload of one attempt."""
        delivery = await self._calls.fetch_as_app("/app/hook/deliveries/{id}", id=attempt_id)
        payload = read_answer(parse_payload, delivery)
        if payload is None:
            raise NotFound(410, f"the payload of delivery {attempt_id} is gone")
        return payload

    async def fetch_repository(self, repository: str) -> Repository:
        """The repository as it is now."""
        return read_answer(parse_repository, await self._calls.fetch(Access.READ_ISSUES, repository, ""))

    async def grant_fetch(self, repository: str) -> Grant:
        """A token with which git may fetch this one repository, and do nothing else."""
        return await self._calls.fetch_grant(Access.FETCH_CODE, repository)

    def forget_grant(self, grant: Grant) -> None:
        """Use a token no more that git's side of GitHub does not take."""
        self._calls.forget_grant(grant)

    async def fetch_role(self, repository: str, login: str) -> Role:
        """What somebody may do, asked live: nothing for a bot, and for whom GitHub does not know here."""
        if login.endswith("[bot]"):
            return Role.NONE
        path = "/collaborators/{login}/permission"
        try:
            answer = await self._calls.fetch(Access.READ_ISSUES, repository, path, login=login)
        except NotFound:
            return Role.NONE
        return read_answer(parse_role, answer)

    async def fetch_issue(self, repository: str, issue_number: int) -> Issue:
        """The issue as it is now."""
        answer = await self._calls.fetch(Access.READ_ISSUES, repository, "/issues/{number}", number=issue_number)
        return read_answer(Issue.model_validate, answer)

    async def list_mentioning_pulls(self, repository: str, issue_number: int) -> list[MentioningPull]:
        """From the whole timeline; a pull request that we may not see is not in it."""
        path = "/issues/{number}/timeline{?per_page}"
        events = await self._calls.fetch_all(Access.READ_ISSUES, repository, path, number=issue_number)
        return read_answer(choose_mentioning_pulls, events)

    async def list_comments(self, repository: str, issue_number: int, since: datetime | None = None) -> list[Comment]:
        """All comments in GitHub's order, oldest first; `since` is rounded down to the second."""
        path = "/issues/{number}/comments{?since,per_page}"
        since_text = None if since is None else render_time(since)
        items = await self._calls.fetch_all(Access.READ_ISSUES, repository, path, number=issue_number, since=since_text)
        return read_answer(parse_comments, items)

    async def list_labelled_issues(self, repository: str, label: str, since: datetime) -> list[Issue]:
        """All pages; `since` is rounded down to the second."""
        path, query = "/issues{?labels,state,since,per_page}", {"labels": label, "state": "open"}
        items = await self._calls.fetch_all(Access.READ_ISSUES, repository, path, since=render_time(since), **query)
        return read_answer(parse_issues, items)

    async def list_labellings(self, repository: str, issue_number: int, label: str) -> list[Labelling]:
        """From the whole timeline: GitHub gives the oldest events first, and we need the last."""
        path = "/issues/{number}/timeline{?per_page}"
        events = await self._calls.fetch_all(Access.READ_ISSUES, repository, path, number=issue_number)
        return read_answer(lambda found: choose_labellings(found, label), events)

    async def find_remover(self, repository: str, issue_number: int, label: str) -> User | None:
        """From the whole timeline, like `list_labellings`."""
        path = "/issues/{number}/timeline{?per_page}"
        events = await self._calls.fetch_all(Access.READ_ISSUES, repository, path, number=issue_number)
        return read_answer(lambda found: choose_remover(found, label), events)

    async def add_label(self, repository: str, issue_number: int, label: str) -> None:
        """Add a label to those that are there."""
        path, data = "/issues/{number}/labels", {"labels": [label]}
        worth = Worth.LIVE
        await self._calls.send(Access.WRITE_ISSUES, repository, "POST", path, data, worth, number=issue_number)

    async def remove_label(self, repository: str, issue_number: int, label: str) -> None:
        """Take one label off: GitHub answers 404 where it is not there."""
        path, url_vars = "/issues/{number}/labels/{label}", {"number": issue_number, "label": label}
        with suppress(NotFound):
            await self._calls.send(Access.WRITE_ISSUES, repository, "DELETE", path, b"", Worth.LIVE, **url_vars)

    async def create_comment(
        self, repository: str, issue_number: int, body: str, worth: Worth = Worth.REPLY
    ) -> Comment:
        """Post a comment, once."""
        path, data = "/issues/{number}/comments", {"body": body}
        answer = await self._calls.send(Access.WRITE_ISSUES, repository, "POST", path, data, worth, number=issue_number)
        return read_answer(parse_comment, answer)

    async def fetch_comment(self, repository: str, comment_id: int) -> Comment:
        """One comment, by its id alone."""
        path = "/issues/comments/{id}"
        answer = await self._calls.fetch(Access.READ_ISSUES, repository, path, id=comment_id)
        return read_answer(parse_comment, answer)

    async def update_comment(self, repository: str, comment_id: int, body: str, worth: Worth = Worth.REPLY) -> Comment:
        """Replace a comment's body."""
        path, data = "/issues/comments/{id}", {"body": body}
        answer = await self._calls.send(Access.WRITE_ISSUES, repository, "PATCH", path, data, worth, id=comment_id)
        return read_answer(parse_comment, answer)

    async def react_to_issue(self, repository: str, issue_number: int, content: str) -> None:
        """Add a reaction, or not."""
        await self._react(repository, "/issues/{id}/reactions", issue_number, content)

    async def react_to_comment(self, repository: str, comment_id: int, content: str) -> None:
        """Add a reaction to a comment, or not."""
        await self._react(repository, "/issues/comments/{id}/reactions", comment_id, content)

    async def _react(self, repository: str, path: str, target: int, content: str) -> None:
        try:
            data = {"content": content}
            await self._calls.send(Access.WRITE_ISSUES, repository, "POST", path, data, Worth.LIVE, id=target)
        except (GitHubError, GitHubUnavailable) as error:
            log.debug("github.reaction_lost", repository=repository, target=target, reason=str(error))

    async def fetch_file(self, repository: str, path: str, commit: str) -> bytes | None:
        """Two calls: contents come with their bytes only up to 1 MB, blobs up to 100 MB."""
        where = "/contents{/file*}{?ref}"
        try:
            found = await self._calls.fetch(Access.READ_CODE, repository, where, file=path.split("/"), ref=commit)
        except NotFound:
            return None
        return await self.fetch_blob(repository, read_answer(parse_sha, found))

    async def fetch_blob(self, repository: str, sha: str) -> bytes:
        """One call; GitHub gives blobs up to 100 MB."""
        blob = await self._calls.fetch(Access.READ_CODE, repository, "/git/blobs/{sha}", sha=sha)
        return read_answer(parse_blob, blob)

    async def find_base_files(self, repository: str, paths: Collection[str], commit: str) -> dict[str, BaseFile]:
        """One call for the root, and one for each folder that there is, the outer ones first."""
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
        """One call for the root, and one for each folder that there is."""
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
        """Two calls: `base_tree` wants the SHA of a tree, so the commit's is looked up first."""
        commit = await self._calls.fetch(Access.WRITE_CODE, repository, "/git/commits/{sha}", sha=base_commit)
        base_tree = read_answer(lambda payload: parse_sha(payload["tree"]), commit)
        tree = {"base_tree": base_tree, "tree": [render_tree_entry(entry) for entry in entries]}
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/trees", tree)
        return read_answer(parse_sha, answer)

    async def fetch_author(self, repository: str, login: str) -> Author:
        """By any of our tokens: accounts are public."""
        return read_answer(parse_person, await self._calls.fetch_account(Access.READ_CODE, repository, login))

    async def list_public_keys(self, repository: str, login: str) -> list[str]:
        """One page: nobody has a hundred. Like accounts, they are public."""
        path = "/keys{?per_page}"
        answer = await self._calls.fetch_account(Access.READ_ISSUES, repository, login, path, per_page=PAGE_SIZE)
        return read_answer(parse_public_keys, answer)

    async def create_commit(
        self, repository: str, message: str, tree_sha: str, parents: Sequence[str], author: Author | None = None
    ) -> str:
        """With no author and no date GitHub fills in the App and signs; without a committer it would be the author."""
        commit: dict[str, Any] = {"message": message, "tree": tree_sha, "parents": [*parents]}
        if author:
            own = await self.fetch_author(repository, await self.own_login())
            commit |= {"author": asdict(author), "committer": asdict(own)}
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/commits", commit)
        return read_answer(parse_sha, answer)

    async def create_branch(self, repository: str, branch: str, sha: str) -> bool:
        """GitHub creates a ref or answers 422 "Reference already exists"; there is nothing in between."""
        ref = {"ref": f"refs/heads/{branch}", "sha": sha}
        try:
            await self._calls.send(Access.WRITE_CODE, repository, "POST", "/git/refs", ref)
        except GitHubError as refusal:
            if refusal.status == 422 and "already exists" in refusal.said.lower():
                return False
            raise
        return True

    async def move_branch(self, repository: str, branch: str, sha: str) -> bool:
        """Never by force: GitHub then moves a ref only along its own history, or answers 422."""
        path, ref = "/git/refs/heads{/branch*}", {"sha": sha, "force": False}
        try:
            await self._calls.send(Access.WRITE_CODE, repository, "PATCH", path, ref, branch=branch.split("/"))
        except GitHubError as refusal:
            if refusal.status == 422 and "not a fast forward" in refusal.said.lower():
                return False
            raise
        return True

    async def contains(self, repository: str, commit: str, ancestor: str) -> bool:
        """One page of one commit: only the verdict is of interest."""
        path, ends = "/compare/{basehead}{?per_page}", f"{ancestor}...{commit}"
        answer = await self._calls.fetch(Access.READ_CODE, repository, path, basehead=ends, per_page=1)
        return read_answer(lambda found: found["status"] in ("ahead", "identical"), answer)

    async def fetch_branch_sha(self, repository: str, branch: str) -> str | None:
        """The commit of a branch; its slashes are slashes of the path."""
        path = "/git/ref/heads{/branch*}"
        try:
            ref = await self._calls.fetch(Access.READ_CODE, repository, path, branch=branch.split("/"))
        except NotFound:
            return None
        return read_answer(lambda payload: parse_sha(payload["object"]), ref)

    async def list_pull_requests(
        self, repository: str, branch: str, head_repository: str | None = None
    ) -> list[PullRequest]:
        """All of this branch, whoever opened them."""
        path = "/pulls{?head,state,per_page}"
        where = head_repository or repository
        head = f"{where.partition('/')[0]}:{branch}"
        pulls = await self._calls.fetch_all(Access.READ_CODE, repository, path, head=head, state="all")
        return read_answer(lambda found: choose_pull_requests(found, branch, from_fork=where != repository), pulls)

    async def fetch_pull_request(self, repository: str, number: int) -> PullRequest:
        """One pull request."""
        path = "/pulls/{number}"
        return read_answer(
            parse_pull_request, await self._calls.fetch(Access.READ_CODE, repository, path, number=number)
        )

    async def update_pull_request(self, repository: str, number: int, *, body: str, title: str | None = None) -> None:
        """Only what is given is sent, so that the rest stays as people left it."""
        pull = {"body": body} | ({"title": title} if title else {})
        await self._calls.send(Access.WRITE_CODE, repository, "PATCH", "/pulls/{number}", pull, number=number)

    async def assign(self, repository: str, number: int, login: str) -> None:
        """Assign somebody, or not: GitHub leaves out whoever cannot be, and says nothing."""
        path, data = "/issues/{number}/assignees", {"assignees": [login]}
        try:
            await self._calls.send(Access.WRITE_CODE, repository, "POST", path, data, number=number)
        except (GitHubError, GitHubUnavailable) as error:
            log.info("github.not_assigned", repository=repository, number=number, login=login, reason=str(error))

    async def list_own_open_pulls(self, repository: str) -> list[int]:
        """Asked for as issues: only those can be listed by their author."""
        path, query = "/issues{?creator,state,per_page}", {"creator": await self.own_login(), "state": "open"}
        items = await self._calls.fetch_all(Access.READ_THREADS, repository, path, **query)
        return [issue.number for issue in read_answer(parse_issues, items) if issue.pull_request is not None]

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
        """Open a draft, once."""
        pull: dict[str, Any] = {"title": title, "body": body, "head": branch, "base": base_branch, "draft": True}
        if head_repository and head_repository != repository:
            # Our token for the repository may not write to the fork, and so cannot let others write there.
            owner = head_repository.partition("/")[0]
            pull |= {"head": f"{owner}:{branch}", "maintainer_can_modify": False}
        answer = await self._calls.send(Access.WRITE_CODE, repository, "POST", "/pulls", pull)
        return read_answer(parse_pull_request, answer)
