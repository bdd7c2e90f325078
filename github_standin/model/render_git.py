"""GitHub's JSON for git data, branches and pull requests: one function for each schema of its description.

Pure, like `render`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from github_standin.model.gitstore import Commit, Entry, Signature
from github_standin.model.render import (
    Links,
    node_id,
    render_association,
    render_issue,
    render_repository,
    render_time,
    render_user,
)
from github_standin.model.state import Pull, Repository

Json = dict[str, Any]

NOREPLY = "users.noreply.github.com"


def render_short_blob(links: Links, repository: Repository, sha: str) -> Json:
    """Schema `short-blob`."""
    return {"url": f"{links.repository(repository)}/git/blobs/{sha}", "sha": sha}


def render_blob(links: Links, repository: Repository, sha: str, content: bytes) -> Json:
    """Schema `blob`."""
    return render_short_blob(links, repository, sha) | {
        "content": base64.encodebytes(content).decode(),
        "encoding": "base64",
        "size": len(content),
        "node_id": node_id("Blob", sha),
    }


def render_tree(links: Links, repository: Repository, sha: str, entries: Sequence[Entry]) -> Json:
    """Schema `git-tree`."""
    git = f"{links.repository(repository)}/git"
    tree = [_render_entry(git, entry) for entry in entries]
    return {"sha": sha, "url": f"{git}/trees/{sha}", "tree": tree, "truncated": False}


def _render_entry(git: str, entry: Entry) -> Json:
    path = entry.path.encode(errors="replace").decode()
    facts: Json = {"path": path, "mode": entry.mode, "type": entry.kind, "sha": entry.sha}
    if entry.kind == "commit":
        return facts
    size = {} if entry.size is None else {"size": entry.size}
    return facts | size | {"url": f"{git}/{entry.kind}s/{entry.sha}"}


def _render_signature(signature: Signature) -> Json:
    return {"name": signature.name, "email": signature.email, "date": render_time(signature.at)}


def _render_verification(commit: Commit) -> Json:
    """GitHub signs an App's commit if it names no author. The stand-in has no key, and only says that it is signed."""
    verified = commit.committer.email == "noreply@github.com" and commit.author.email.endswith(f"[bot]@{NOREPLY}")
    reason = "valid" if verified else "unsigned"
    verified_at = render_time(commit.committer.at) if verified else None
    return {"verified": verified, "reason": reason, "signature": None, "payload": None, "verified_at": verified_at}


def render_git_commit(links: Links, repository: Repository, commit: Commit) -> Json:
    """Schema `git-commit`."""
    git, page = f"{links.repository(repository)}/git", f"{links.page(repository)}/commit"
    parents = [
        {"sha": parent, "url": f"{git}/commits/{parent}", "html_url": f"{page}/{parent}"} for parent in commit.parents
    ]
    return {
        "sha": commit.sha,
        "node_id": node_id("Commit", commit.sha),
        "url": f"{git}/commits/{commit.sha}",
        "html_url": f"{page}/{commit.sha}",
        "author": _render_signature(commit.author),
        "committer": _render_signature(commit.committer),
        "message": commit.message,
        "tree": {"sha": commit.tree, "url": f"{git}/trees/{commit.tree}"},
        "parents": parents,
        "verification": _render_verification(commit),
    }


def render_ref(links: Links, repository: Repository, ref: str, sha: str, kind: str) -> Json:
    """Schema `git-ref`."""
    git = f"{links.repository(repository)}/git"
    return {
        "ref": ref,
        "node_id": node_id("Ref", ref),
        "url": f"{git}/{ref}",
        "object": {"type": kind, "sha": sha, "url": f"{git}/{kind}s/{sha}"},
    }


def render_commit(links: Links, repository: Repository, commit: Commit) -> Json:
    """Schema `commit`."""
    api = links.repository(repository)
    git_commit = render_git_commit(links, repository, commit)
    inner = {key: git_commit[key] for key in ("url", "author", "committer", "message", "tree", "verification")}
    outer: Json = {
        "url": f"{api}/commits/{commit.sha}",
        "comments_url": f"{api}/commits/{commit.sha}/comments",
        "author": None,
        "committer": None,
        "commit": inner | {"comment_count": 0},
    }
    return {key: git_commit[key] for key in ("sha", "node_id", "html_url", "parents")} | outer


def render_comparison(links: Links, repository: Repository, status: str, ends: Sequence[Commit]) -> Json:
    """Schema `commit-comparison`, without the commits in between; `ends` are base, head and merge base."""
    base, head, parting = ends
    url = f"{links.repository(repository)}/compare/{base.sha}...{head.sha}"
    page = f"{links.page(repository)}/compare/{base.sha}...{head.sha}"
    counts = {"ahead_by": int(status in ("ahead", "diverged")), "behind_by": int(status in ("behind", "diverged"))}
    return {
        "url": url,
        "html_url": page,
        "permalink_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "base_commit": render_commit(links, repository, base),
        "merge_base_commit": render_commit(links, repository, parting),
        "status": status,
        "total_commits": counts["ahead_by"],
        "commits": [render_commit(links, repository, head)] if counts["ahead_by"] else [],
        **counts,
    }


def render_branch(links: Links, repository: Repository, name: str, commit: Commit) -> Json:
    """Schema `branch-with-protection`."""
    api, page = links.repository(repository), links.page(repository)
    return {
        "name": name,
        "commit": render_commit(links, repository, commit),
        "_links": {"html": f"{page}/tree/{name}", "self": f"{api}/branches/{name}"},
        "protected": False,
        "protection": {"enabled": False},
        "protection_url": f"{api}/branches/{name}/protection",
    }


_KINDS = {"040000": "dir", "120000": "symlink", "160000": "submodule"}


def render_content(links: Links, repository: Repository, ref: str, entry: Entry) -> Json:
    """An item of schema `content-directory`."""
    api, page, path = links.repository(repository), links.page(repository), quote(entry.path)
    ref = quote(ref)
    url, html = f"{api}/contents/{path}?ref={ref}", f"{page}/blob/{ref}/{path}"
    git = f"{api}/git/{entry.kind}s/{entry.sha}"
    return {
        "type": _KINDS.get(entry.mode, "file"),
        "size": entry.size or 0,
        "name": entry.path.rpartition("/")[2],
        "path": entry.path,
        "sha": entry.sha,
        "url": url,
        "git_url": git,
        "html_url": html,
        "download_url": f"{page}/raw/{ref}/{path}" if entry.kind == "blob" else None,
        "_links": {"self": url, "git": git, "html": html},
    }


def render_file(links: Links, repository: Repository, ref: str, entry: Entry, content: bytes) -> Json:
    """Schema `content-file` (or `content-symlink`)."""
    rendered = render_content(links, repository, ref, entry)
    if rendered["type"] == "symlink":
        return rendered | {"target": content.decode(errors="replace")}
    return rendered | {"encoding": "base64", "content": base64.encodebytes(content).decode()}


_SAME_AS_ISSUE = (
    *("number", "state", "locked", "title", "user", "body", "labels", "milestone", "assignee"),
    *("assignees", "created_at", "updated_at", "closed_at"),
)


def render_pull_simple(links: Links, repository: Repository, pull: Pull) -> Json:
    """Schema `pull-request-simple`."""
    api, issue = links.repository(repository), render_issue(links, repository, pull)
    url, html = f"{api}/pulls/{pull.number}", issue["html_url"]
    addresses = {
        "commits": f"{url}/commits",
        "review_comments": f"{url}/comments",
        "review_comment": f"{api}/pulls/comments{{/number}}",
        "comments": issue["comments_url"],
        "statuses": f"{api}/statuses/{pull.head_sha}",
        "issue": issue["url"],
    }
    return {
        "id": pull.id,
        "node_id": node_id("PullRequest", pull.id),
        "url": url,
        "html_url": html,
        "diff_url": f"{html}.diff",
        "patch_url": f"{html}.patch",
        **{f"{name}_url": address for name, address in addresses.items()},
        **{name: issue[name] for name in _SAME_AS_ISSUE},
        "requested_reviewers": [],
        "requested_teams": [],
        "active_lock_reason": None,
        "draft": pull.draft,
        "merged_at": render_time(pull.merge.at) if pull.merge else None,
        "merge_commit_sha": pull.merge.sha if pull.merge else None,
        "head": _render_end(links, pull.source, pull.head, pull.head_sha),
        "base": _render_end(links, repository, pull.base, pull.base_sha),
        "_links": {name: {"href": address} for name, address in (addresses | {"html": html, "self": url}).items()},
        "author_association": render_association(repository, pull.user),
        "auto_merge": None,
    }


def _render_end(links: Links, repository: Repository, branch: str, sha: str) -> Json:
    return {
        "label": f"{repository.owner.login}:{branch}",
        "ref": branch,
        "sha": sha,
        "user": render_user(links, repository.owner),
        "repo": render_repository(links, repository),
    }


def render_pull(links: Links, repository: Repository, pull: Pull) -> Json:
    """Schema `pull-request`."""
    return render_pull_simple(links, repository, pull) | {
        "merged": pull.merge is not None,
        "mergeable": True,
        "rebaseable": True,
        "mergeable_state": "draft" if pull.draft else "clean",
        "merged_by": render_user(links, pull.merge.by) if pull.merge else None,
        "comments": len(pull.comments),
        "review_comments": 0,
        "maintainer_can_modify": False,
        "commits": pull.stat.commits,
        "additions": pull.stat.additions,
        "deletions": pull.stat.deletions,
        "changed_files": len(pull.stat.files),
    }


def render_files(links: Links, repository: Repository, pull: Pull) -> list[Json]:
    """Schema `diff-entry`, without the patches."""
    page, api, sha = links.page(repository), links.repository(repository), pull.head_sha
    return [
        {
            "sha": None,
            "filename": file.path,
            "status": file.status,
            "additions": file.additions,
            "deletions": file.deletions,
            "changes": file.additions + file.deletions,
            "blob_url": f"{page}/blob/{sha}/{quote(file.path)}",
            "raw_url": f"{page}/raw/{sha}/{quote(file.path)}",
            "contents_url": f"{api}/contents/{quote(file.path)}?ref={sha}",
        }
        for file in pull.stat.files
    ]
