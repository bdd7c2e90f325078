"""Pages for people: repositories, issues, threads, and the commits and diff of a pull request.

All content is untrusted: templates escape it, or `markdown` makes it harmless.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from github_standin.model.gitstore import SHA, Commit, GitFailed
from github_standin.model.render_timeline import find_references
from github_standin.model.rights import may_see, rights_of
from github_standin.model.state import Issue, Pull, Repository, World
from github_standin.pages.diffs import FileDiff, parse_patch
from github_standin.pages.frame import Frame, path_to

ISSUE = "/{owner}/{repo}/{kind:issues|pull}/{number:[0-9]{1,9}}"
"""The path of an issue or pull request."""

SHOWN_FILES = 200
"""The most files of a repository that its page lists."""

_NOSNIFF = {"X-Content-Type-Options": "nosniff"}


class Pages:
    """The handlers of every GET. Private repositories are shown only to people with a role in them."""

    def __init__(self, world: World, frame: Frame) -> None:
        self._world = world
        self._frame = frame

    def add_routes(self, app: web.Application) -> None:
        """Add the pages to `app`."""
        app.router.add_get("/", self.show_repositories)
        app.router.add_get("/{owner}/{repo}", self.show_repository)
        app.router.add_get("/{owner}/{repo}/{kind:issues|pulls}", self.show_issues)
        app.router.add_get("/{owner}/{repo}/issues/new", self.show_new_issue)
        app.router.add_get(ISSUE, self.show_thread)
        app.router.add_get("/{owner}/{repo}/pull/{number:[0-9]{1,9}}.diff", self.show_diff)
        app.router.add_get("/{owner}/{repo}/commit/{sha}", self.show_commit)
        app.router.add_get("/{owner}/{repo}/blob/{sha}/{path:.+}", self.show_file)

    async def show_repositories(self, request: web.Request) -> web.Response:
        """The start page, with all repositories."""
        person = self._frame.person(request)
        found = [repository for repository in self._world.repositories.values() if may_see(repository, person)]
        return self._frame.render(request, "repositories.html", title="Repositories", repositories=found)

    async def show_repository(self, request: web.Request) -> web.Response:
        """The files on the default branch, and the README."""
        repository = self.find_repository(request)
        branch = repository.default_branch
        try:
            commit = await repository.git.read_commit(f"refs/heads/{branch}")
            entries = await repository.git.list_tree(commit.sha, recursive=True)
            files = [entry for entry in entries if entry.kind == "blob"]
            readme = [await repository.git.read_blob(file.sha) for file in files if file.path.lower() == "readme.md"]
        except GitFailed as error:
            raise web.HTTPNotFound(text=f"git cannot show it: {error}\n", headers=_NOSNIFF) from error
        text = readme[0].decode(errors="replace") if readme else ""
        values: dict[str, Any] = {"commit": commit, "files": files[:SHOWN_FILES], "branch": branch, "readme": text}
        title = repository.full_name
        return self._frame.render(request, "repository.html", title=title, repository=repository, here="", **values)

    async def show_issues(self, request: web.Request) -> web.Response:
        """The issues or pull requests of a repository, newest first; by default the open ones."""
        repository, kind = self.find_repository(request), request.match_info["kind"]
        state = "closed" if request.query.get("state") == "closed" else "open"
        of_kind = [issue for issue in repository.issues.values() if isinstance(issue, Pull) == (kind == "pulls")]
        counts = {word: sum(issue.state == word for issue in of_kind) for word in ("open", "closed")}
        shown = [issue for issue in reversed(of_kind) if issue.state == state]
        title = f"{'Pull requests' if kind == 'pulls' else 'Issues'} · {repository.full_name}"
        values: dict[str, Any] = {
            "repository": repository,
            "here": kind,
            "issues": shown,
            "counts": counts,
            "state": state,
        }
        return self._frame.render(request, "issues.html", title=title, **values)

    async def show_new_issue(self, request: web.Request) -> web.Response:
        """The form to open an issue."""
        repository = self.find_repository(request)
        title = f"New issue · {repository.full_name}"
        return self._frame.render(request, "new_issue.html", title=title, repository=repository, here="issues")

    async def show_thread(self, request: web.Request) -> web.Response:
        """One issue or pull request. The other kind's address redirects to it, as on GitHub."""
        repository, issue = self.find_issue(request)
        if (request.match_info["kind"] == "pull") != isinstance(issue, Pull):
            raise web.HTTPFound(path_to(repository, issue))
        things: list[tuple[str, Any]] = [("comment", comment) for comment in issue.comments]
        things += [("event", event) for event in issue.timeline]
        things += [("reference", other) for other in find_references(repository, issue)]
        values: dict[str, Any] = {
            "repository": repository,
            "here": "pulls" if isinstance(issue, Pull) else "issues",
            "issue": issue,
            "thread": sorted(things, key=lambda pair: pair[1].id),
            "rights": rights_of(repository, issue, self._frame.person(request)),
        }
        if isinstance(issue, Pull):
            values["commits"], values["files"] = await _read_change(repository, issue)
        title = f"{issue.title} · #{issue.number} · {repository.full_name}"
        return self._frame.render(request, "thread.html", title=title, **values)

    async def show_diff(self, request: web.Request) -> web.Response:
        """The patch of a pull request, as text."""
        repository, pull = self.find_issue(request)
        if not isinstance(pull, Pull):
            raise web.HTTPNotFound
        try:
            patch = await repository.git.diff(pull.base_sha, pull.head_sha)
        except GitFailed as error:
            patch = f"git cannot show it: {error}"
        return web.Response(text=patch, headers=_NOSNIFF)

    async def show_commit(self, request: web.Request) -> web.Response:
        """One commit: its message and its changes."""
        repository = self.find_repository(request)
        commit = await _find_commit(repository, request.match_info["sha"])
        patch = await repository.git.diff(commit.parents[0], commit.sha) if commit.parents else ""
        title = f"{commit.message.splitlines()[0]} · {repository.full_name}"
        values: dict[str, Any] = {"repository": repository, "here": "", "commit": commit, "files": parse_patch(patch)}
        return self._frame.render(request, "commit.html", title=title, **values)

    async def show_file(self, request: web.Request) -> web.Response:
        """One file at a commit."""
        repository, path = self.find_repository(request), request.match_info["path"]
        commit = await _find_commit(repository, request.match_info["sha"])
        try:
            content = await repository.git.run("cat-file", "blob", f"{commit.sha}:{path}")
        except GitFailed as error:
            raise web.HTTPNotFound from error
        values: dict[str, Any] = {"repository": repository, "here": "", "path_in_tree": path, "commit": commit}
        text = content.decode(errors="replace")
        return self._frame.render(request, "file.html", title=f"{path} · {repository.full_name}", text=text, **values)

    def find_repository(self, request: web.Request) -> Repository:
        """The repository that the path names; raises HTTP 404."""
        name = f"{request.match_info['owner']}/{request.match_info['repo']}"
        repository = self._world.repositories.get(name.casefold())
        if repository is None or not may_see(repository, self._frame.person(request)):
            raise web.HTTPNotFound
        return repository

    def find_issue(self, request: web.Request) -> tuple[Repository, Issue]:
        """The issue or pull request that the path names; raises HTTP 404."""
        repository = self.find_repository(request)
        issue = repository.issues.get(int(request.match_info["number"]))
        if issue is None:
            raise web.HTTPNotFound
        return repository, issue


async def _find_commit(repository: Repository, sha: str) -> Commit:
    if not SHA.fullmatch(sha) or await repository.git.kind_of(sha) != "commit":
        raise web.HTTPNotFound
    return await repository.git.read_commit(sha)


async def _read_change(repository: Repository, pull: Pull) -> tuple[list[Commit], list[FileDiff]]:
    """The commits and files of a pull request; none if git cannot tell, for example because its base was deleted."""
    try:
        patch = await repository.git.diff(pull.base_sha, pull.head_sha)
        return await repository.git.list_commits(pull.base_sha, pull.head_sha), parse_patch(patch)
    except GitFailed:
        return [], []
