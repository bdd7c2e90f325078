"""Endpoints of the Git Data API, branches and contents, on a real repository.

Each handler returns an `Answer` or raises `Refusal`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from github_standin.api.calls import Call
from github_standin.model.answers import Answer, Refusal, created, forbidden, invalid, not_found
from github_standin.model.gitstore import ZERO, Change, GitFailed, Signature
from github_standin.model.render_git import (
    NOREPLY,
    render_blob,
    render_branch,
    render_comparison,
    render_content,
    render_file,
    render_git_commit,
    render_ref,
    render_short_blob,
    render_tree,
)
from github_standin.model.state import Pull, Repository

MODES = {"100644": "blob", "100755": "blob", "120000": "blob", "040000": "tree", "160000": "commit"}
WORKFLOWS = ".github/workflows/"


async def create_blob(call: Call) -> Answer:
    """Store a blob from text or base64."""
    text, encoding = call.text("content"), call.optional_text("encoding") or "utf-8"
    if encoding not in ("utf-8", "base64"):
        raise invalid("Blob", "encoding")
    try:
        content = base64.b64decode("".join(text.split()), validate=True) if encoding == "base64" else text.encode()
    except (binascii.Error, ValueError) as error:
        raise Refusal(422, "content is not valid Base64") from error
    sha = await _store_blob(call, content)
    return created(render_short_blob(call.site.links, call.repository, sha))


async def get_blob(call: Call) -> Answer:
    """A blob, in base64."""
    sha = await _expect(call, call.params["file_sha"], "blob")
    content = await call.repository.git.read_blob(sha)
    return Answer(200, render_blob(call.site.links, call.repository, sha, content))


async def create_tree(call: Call) -> Answer:
    """Create a tree from another one and a list of changes."""
    if "tree" not in call.fields:
        raise Refusal(422, 'Invalid request.\n\n"tree" wasn\'t supplied.')
    lines: list[dict[str, Any]] = call.items("tree", dict)
    if not 0 < len(lines) <= call.site.limits.tree_entries:
        raise Refusal(422, "Invalid tree info")
    git, base = call.repository.git, call.optional_text("base_tree")
    if base is not None and await git.kind_of(base) not in ("tree", "commit"):
        raise Refusal(422, f"base_tree {base[:60]} is not a valid tree")
    present = {entry.path for entry in await git.list_tree(base, recursive=True)} if base else set()
    changes = [await _read_change(call, line, present) for line in lines]
    try:
        sha = await git.write_tree(base, changes)
    except GitFailed as error:
        raise Refusal(422, "GitRPC::BadObjectState") from error
    return created(render_tree(call.site.links, call.repository, sha, await git.list_tree(sha)))


async def _read_change(call: Call, line: Mapping[str, Any], present: set[str]) -> Change:
    """Read one entry of the request, with GitHub's checks in GitHub's order."""
    path, mode, sha, content = (line.get(name) for name in ("path", "mode", "sha", "content"))
    if not isinstance(path, str) or not _is_sound(path):
        raise Refusal(422, "tree.path contains a malformed path component")
    if path.startswith(WORKFLOWS) and call.token and not call.token.may("workflows:write"):
        raise forbidden()
    if mode not in MODES:
        raise Refusal(422, "Must supply a valid tree.mode")
    if line.get("type", MODES[mode]) != MODES[mode]:
        raise Refusal(422, "tree.type does not match tree.mode")
    if ("sha" in line) == ("content" in line):
        raise Refusal(422, "Must supply either tree.sha or tree.content, and not both")
    if isinstance(content, str) and MODES[mode] == "blob":
        return Change(path, mode, await _store_blob(call, content.encode()))
    if "sha" in line and sha is None:
        if path not in present:
            raise Refusal(422, "GitRPC::BadObjectState")
        return Change(path, mode, None)
    if mode != "160000" and (not isinstance(sha, str) or await call.repository.git.kind_of(sha) != MODES[mode]):
        raise Refusal(422, f"tree.sha {sha!s:.60} is not a valid {MODES[mode]}")
    return Change(path, mode, str(sha))


def _is_sound(path: str) -> bool:
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") or part.casefold() == ".git" for part in parts)


async def get_tree(call: Call) -> Answer:
    """The entries of a tree, or of the tree of a commit or branch."""
    name = call.params["tree_sha"]
    sha = name if await call.repository.git.kind_of(name) in ("tree", "commit") else await _commit_at(call, name)
    entries = await call.repository.git.list_tree(sha, recursive="recursive" in call.query)
    return Answer(200, render_tree(call.site.links, call.repository, sha, entries))


async def create_commit(call: Call) -> Answer:
    """Create a commit. Without an author it belongs to the App, and GitHub signs it."""
    message, tree, git = call.text("message"), call.text("tree"), call.repository.git
    parents = call.items("parents", str)
    if await git.kind_of(tree) != "tree":
        raise Refusal(422, "Tree SHA does not exist")
    for parent in parents:
        if await git.kind_of(parent) != "commit":
            raise Refusal(422, "Parent SHA does not exist or is not a commit object")
    if not message or "\0" in message:
        raise invalid("Commit", "message")
    now, bot = call.site.world.now(), call.actor
    own = Signature(bot.login, f"{bot.id}+{bot.login}@{NOREPLY}", now)
    author = _read_signature(call, "author", own)
    web_flow = Signature("GitHub", "noreply@github.com", now)
    committer = _read_signature(call, "committer", web_flow if author is own else author)
    sha = await git.write_commit(tree, parents, author, committer, message)
    return created(render_git_commit(call.site.links, call.repository, await git.read_commit(sha)))


def _read_signature(call: Call, name: str, default: Signature) -> Signature:
    given = call.fields.get(name)
    if given is None:
        return default
    if not isinstance(given, dict):
        raise invalid("Commit", name)
    person, email, date = given.get("name"), given.get("email"), given.get("date")
    if not isinstance(person, str) or not isinstance(email, str) or set(person + email) & set("<>\n\0"):
        raise invalid("Commit", name)
    try:
        at = datetime.fromisoformat(date).astimezone(UTC) if date is not None else default.at
        at.timestamp()
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid("Commit", name) from error
    if at.year < 1970:
        raise invalid("Commit", name)
    return Signature(person, email, at)


async def get_commit(call: Call) -> Answer:
    """One commit."""
    sha = await _expect(call, call.params["commit_sha"], "commit")
    return Answer(200, render_git_commit(call.site.links, call.repository, await call.repository.git.read_commit(sha)))


async def create_ref(call: Call) -> Answer:
    """Create a branch or tag. Git lets only one caller create it."""
    ref, sha, git = call.text("ref"), call.text("sha"), call.repository.git
    if not ref.startswith("refs/") or ref.count("/") < 2:
        raise Refusal(422, "Reference name must start with 'refs/' and contain at least two slashes.")
    if not ref.startswith(("refs/heads/", "refs/tags/")) or not await git.valid_ref(ref):
        raise Refusal(422, f"{ref[:200]} is not a valid ref name.")
    kind = await git.kind_of(sha)
    if kind is None or (kind != "commit" and ref.startswith("refs/heads/")):
        raise Refusal(422, "Object does not exist" if kind is None else "Reference cannot point at that object")
    try:
        await git.move_ref(ref, sha, was=ZERO)
    except GitFailed as error:
        taken = await git.read_ref(ref) is not None
        raise Refusal(422, "Reference already exists" if taken else "Reference update failed") from error
    return created(render_ref(call.site.links, call.repository, ref, sha, kind))


async def get_ref(call: Call) -> Answer:
    """One ref, by its exact name without `refs/`."""
    ref, sha = await _find_ref(call, not_found())
    kind = await call.repository.git.kind_of(sha) or "commit"
    return Answer(200, render_ref(call.site.links, call.repository, ref, sha, kind))


async def update_ref(call: Call) -> Answer:
    """Move a ref, only forward without `force`. Pull requests from that branch follow."""
    sha, force, git = call.text("sha"), call.flag("force"), call.repository.git
    ref, was = await _find_ref(call, Refusal(422, "Reference does not exist"))
    if await git.kind_of(sha) != "commit":
        raise Refusal(422, "Object does not exist")
    if not force and not await git.contains(sha, was):
        raise Refusal(422, "Update is not a fast forward")
    try:
        await git.move_ref(ref, sha, was)
    except GitFailed as error:
        raise Refusal(422, "Reference update failed") from error
    for target, pull in _open_pulls_from(call, ref):
        if target is not call.repository:
            await target.git.run("fetch", "--quiet", str(git.git_dir.resolve()), sha)
        stat = await target.git.diff_stat(pull.base_sha, sha)
        call.site.actions.update_head(target, pull, sha, stat, call.actor)
    return Answer(200, render_ref(call.site.links, call.repository, ref, sha, "commit"))


async def delete_ref(call: Call) -> Answer:
    """Delete a ref. Pull requests from that branch are closed."""
    ref, was = await _find_ref(call, Refusal(422, "Reference does not exist"))
    try:
        await call.repository.git.delete_ref(ref, was)
    except GitFailed as error:
        raise Refusal(422, "Reference update failed") from error
    for target, pull in _open_pulls_from(call, ref):
        call.site.actions.set_state(target, pull, "closed", call.actor)
    return Answer(204)


async def get_branch(call: Call) -> Answer:
    """One branch and its newest commit."""
    name = call.params["branch"]
    sha = await call.repository.git.read_ref(f"refs/heads/{name}")
    if sha is None:
        raise Refusal(404, "Branch not found")
    commit = await call.repository.git.read_commit(sha)
    return Answer(200, render_branch(call.site.links, call.repository, name, commit))


async def compare(call: Call) -> Answer:
    """Compare two commits. Only the last commit in between is shown."""
    git = call.repository.git
    base, head = [await _commit_at(call, name) for name in call.params["basehead"].partition("...")[::2]]
    ahead, behind = await git.contains(head, base), await git.contains(base, head)
    words = {(True, True): "identical", (True, False): "ahead", (False, True): "behind", (False, False): "diverged"}
    try:
        parting = (await git.run("merge-base", base, head)).decode().strip()
    except GitFailed:
        raise not_found() from None  # "No common ancestor"
    ends = [await git.read_commit(sha) for sha in (base, head, parting)]
    return Answer(200, render_comparison(call.site.links, call.repository, words[ahead, behind], ends))


async def get_contents(call: Call) -> Answer:
    """A file, or the entries of a folder."""
    links, git, repository = call.site.links, call.repository.git, call.repository
    path, ref = call.params["path"].strip("/"), call.query.get("ref") or repository.default_branch
    commit = await _commit_at(call, ref)
    if path and not _is_sound(path):
        raise not_found()
    found = await git.list_tree(commit, path)
    if path and not found:
        raise not_found()
    if path and found[0].kind == "blob":
        return Answer(200, render_file(links, repository, ref, found[0], await git.read_blob(found[0].sha)))
    listed = await git.list_tree(commit, f"{path}/") if path else found
    return Answer(200, [render_content(links, repository, ref, entry) for entry in listed])


async def _store_blob(call: Call, content: bytes) -> str:
    if len(content) > call.site.limits.blob_bytes:
        raise Refusal(422, "Sorry, the blob is too large.")
    return await call.repository.git.write_blob(content)


async def _expect(call: Call, sha: str, kind: str) -> str:
    if await call.repository.git.kind_of(sha) != kind:
        raise not_found()
    return sha


async def _find_ref(call: Call, otherwise: Refusal) -> tuple[str, str]:
    ref = f"refs/{call.params['ref']}"
    sha = await call.repository.git.read_ref(ref)
    if sha is None:
        raise otherwise
    return ref, sha


async def _commit_at(call: Call, name: str) -> str:
    """The commit that a branch, a tag or a SHA names."""
    git = call.repository.git
    for ref in (f"refs/heads/{name}", f"refs/tags/{name}"):
        if sha := await git.read_ref(ref):
            return sha
    return await _expect(call, name, "commit")


def _open_pulls_from(call: Call, ref: str) -> list[tuple[Repository, Pull]]:
    """The open pull requests from this branch, with the repository that each is in."""
    targets = [call.repository, *([call.repository.fork_of] if call.repository.fork_of else [])]
    return [
        (target, pull)
        for target in targets
        for pull in target.pulls()
        if pull.state == "open" and pull.source is call.repository and ref == f"refs/heads/{pull.head}"
    ]
