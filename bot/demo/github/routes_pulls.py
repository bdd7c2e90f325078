"""Endpoints about pull requests within one repository.

Handlers: a `Call` in, an `Answer` out, `Refusal` for no. They refuse to know sockets and credentials.
"""

from __future__ import annotations

from functools import partial

from bot.demo.github.answers import Answer, Refusal, created, invalid
from bot.demo.github.calls import Call
from bot.demo.github.gitstore import GitFailed
from bot.demo.github.render_git import render_files, render_pull, render_pull_simple
from bot.demo.github.state import Pull


async def create_pull(call: Call) -> Answer:
    """Open a pull request, a draft if asked for. One branch has one open pull request at most."""
    title = call.content("title", "PullRequest", required=True) or ""
    body, draft = call.content("body", "PullRequest") or "", call.flag("draft")
    head, base = _own_branch(call, call.text("head")), call.text("base")
    git = call.repository.git
    head_sha, base_sha = await git.read_ref(f"refs/heads/{head}"), await git.read_ref(f"refs/heads/{base}")
    if base_sha is None:
        raise invalid("PullRequest", "base")
    if head_sha is None:
        raise invalid("PullRequest", "head")
    try:
        stat = await git.diff_stat(base_sha, head_sha)
    except GitFailed as error:
        raise _impossible(f"The {head} branch has no history in common with {base}") from error
    if not stat.commits:
        raise _impossible(f"No commits between {base} and {head}")
    if any((pull.head, pull.base, pull.state) == (head, base, "open") for pull in call.repository.pulls()):
        raise _impossible(f"A pull request already exists for {call.repository.owner.login}:{head}.")
    ends = ((head, head_sha), (base, base_sha))
    pull = call.site.actions.open_pull(call.repository, title, body, call.actor, ends=ends, draft=draft, stat=stat)
    return created(render_pull(call.site.links, call.repository, pull))


def _own_branch(call: Call, head: str) -> str:
    """The branch of `branch` or `owner:branch`; the stand-in has no forks."""
    owner, colon, branch = head.partition(":")
    if not colon:
        return head
    if owner.casefold() != call.repository.owner.login.casefold():
        raise invalid("PullRequest", "head")
    return branch


def _impossible(message: str) -> Refusal:
    return Refusal(422, "Validation Failed", [{"resource": "PullRequest", "code": "custom", "message": message}])


async def list_pulls(call: Call) -> Answer:
    """Pull requests that match the query, newest first. GitHub ignores a `head` without an owner."""
    state, base, head = call.choice("state", ("open", "closed", "all")), call.query.get("base"), call.query.get("head")
    owner, colon, branch = (head or "").partition(":")

    def matches(pull: Pull) -> bool:
        is_head = owner.casefold() == call.repository.owner.login.casefold() and branch == pull.head
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
