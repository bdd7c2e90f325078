"""Endpoints about pull requests within one repository.

Each handler returns an `Answer` or raises `Refusal`.
"""

from __future__ import annotations

from functools import partial

from github_standin.api.calls import Call
from github_standin.model.answers import Answer, Refusal, created, invalid
from github_standin.model.gitstore import GitFailed
from github_standin.model.render_git import render_files, render_pull, render_pull_simple
from github_standin.model.state import Pull, Repository


async def create_pull(call: Call) -> Answer:
    """Open a pull request, as a draft if requested. A branch has at most one open pull request."""
    title = call.content("title", "PullRequest", required=True) or ""
    body, draft = call.content("body", "PullRequest") or "", call.flag("draft")
    (source, head), base = _find_branch(call, call.text("head")), call.text("base")
    git = call.repository.git
    head_sha, base_sha = await source.git.read_ref(f"refs/heads/{head}"), await git.read_ref(f"refs/heads/{base}")
    if base_sha is None:
        raise invalid("PullRequest", "base")
    if head_sha is None:
        raise invalid("PullRequest", "head")
    if source is not call.repository:
        if call.fields.get("maintainer_can_modify", True):
            raise _impossible("fork_collab Fork collab can't be granted by someone without permission")
        await git.run("fetch", "--quiet", str(source.git.git_dir.resolve()), head_sha)
    try:
        stat = await git.diff_stat(base_sha, head_sha)
    except GitFailed as error:
        raise _impossible(f"The {head} branch has no history in common with {base}") from error
    if not stat.commits:
        raise _impossible(f"No commits between {base} and {head}")
    standing = [(pull.source.id, pull.head, pull.base, pull.state) for pull in call.repository.pulls()]
    if (source.id, head, base, "open") in standing:
        raise _impossible(f"A pull request already exists for {source.owner.login}:{head}.")
    ends = ((head, head_sha), (base, base_sha))
    given = (call.repository, title, body, call.actor)
    pull = call.site.actions.open_pull(*given, source=source, ends=ends, draft=draft, stat=stat)
    return created(render_pull(call.site.links, call.repository, pull))


def _find_branch(call: Call, head: str) -> tuple[Repository, str]:
    """The repository and branch of `branch` or `owner:branch`. The owner has the repository, or a fork of it."""
    owner, colon, branch = head.partition(":")
    if not colon:
        return call.repository, head
    for repository in (call.repository, *call.site.world.repositories.values()):
        is_theirs = repository.owner.login.casefold() == owner.casefold()
        if is_theirs and call.repository in (repository, repository.fork_of):
            return repository, branch
    raise invalid("PullRequest", "head")


def _impossible(message: str) -> Refusal:
    return Refusal(422, "Validation Failed", [{"resource": "PullRequest", "code": "custom", "message": message}])


async def list_pulls(call: Call) -> Answer:
    """Pull requests that match the query, newest first. GitHub ignores a `head` without an owner."""
    state, base, head = call.choice("state", ("open", "closed", "all")), call.query.get("base"), call.query.get("head")
    owner, colon, branch = (head or "").partition(":")

    def matches(pull: Pull) -> bool:
        is_head = owner.casefold() == pull.source.owner.login.casefold() and branch == pull.head
        return state in ("all", pull.state) and base in (None, pull.base) and (not colon or is_head)

    matching = [pull for pull in call.repository.pulls() if matches(pull)]
    if call.choice("direction", ("desc", "asc")) == "desc":
        matching.reverse()
    return call.page_of(matching, partial(render_pull_simple, call.site.links, call.repository))


async def get_pull(call: Call) -> Answer:
    """One pull request."""
    return Answer(200, render_pull(call.site.links, call.repository, call.pull()))


async def update_pull(call: Call) -> Answer:
    """Change title, body or state."""
    pull = call.pull()
    title, body = call.content("title", "PullRequest"), call.content("body", "PullRequest")
    state = call.optional_text("state")
    if state not in (None, "open", "closed"):
        raise invalid("PullRequest", "state")
    call.site.actions.edit_issue(call.repository, pull, call.actor, title, body)
    if state:
        call.site.actions.set_state(call.repository, pull, state, call.actor)
    return Answer(200, render_pull(call.site.links, call.repository, pull))


async def list_files(call: Call) -> Answer:
    """The files that a pull request changes."""
    files = render_files(call.site.links, call.repository, call.pull())
    return call.page_of(files, lambda file: file)
