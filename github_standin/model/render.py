"""GitHub's JSON for people, Apps, repositories, issues and comments: one function for each schema of its description.

Pure: values in, JSON-ready dictionaries out.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from github_standin.model.state import App, Comment, Installation, Issue, Label, Pull, Reaction, Repository, User

Json = dict[str, Any]

API_ROOT = "/api/v3"
GRAPHQL_ADDRESS = "/api/graphql"
"""Beside the root of the REST API, as on an Enterprise Server."""

REACTIONS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


@dataclass(slots=True)
class Links:
    """The root of every address in an answer, known once the server listens; and the App."""

    app: App
    web: str = "http://127.0.0.1"

    @property
    def api(self) -> str:
        """The root of the REST API, as on a GitHub Enterprise Server."""
        return f"{self.web}{API_ROOT}"

    def repository(self, repository: Repository) -> str:
        """The repository's address in the API."""
        return f"{self.api}/repos/{repository.full_name}"

    def page(self, repository: Repository) -> str:
        """The repository's page."""
        return f"{self.web}/{repository.full_name}"


def render_time(at: datetime | None) -> str | None:
    """A time in GitHub's format."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if at else None


def node_id(kind: str, key: object) -> str:
    """An object's id in GitHub's GraphQL API. Every object has one."""
    return base64.b64encode(f"{kind}:{key}".encode()).decode()


def render_user(links: Links, user: User) -> Json:
    """Schema `simple-user`."""
    api = f"{links.api}/users/{quote(user.login)}"
    page = f"{links.web}/apps/{user.login.removesuffix('[bot]')}" if user.type == "Bot" else f"{links.web}/{user.login}"
    return {
        "login": user.login,
        "id": user.id,
        "node_id": node_id("User", user.id),
        "avatar_url": f"{links.web}/avatars/{user.id}",
        "gravatar_id": "",
        "url": api,
        "html_url": page,
        "followers_url": f"{api}/followers",
        "following_url": f"{api}/following{{/other_user}}",
        "gists_url": f"{api}/gists{{/gist_id}}",
        "starred_url": f"{api}/starred{{/owner}}{{/repo}}",
        "subscriptions_url": f"{api}/subscriptions",
        "organizations_url": f"{api}/orgs",
        "repos_url": f"{api}/repos",
        "events_url": f"{api}/events{{/privacy}}",
        "received_events_url": f"{api}/received_events",
        "type": user.type,
        "site_admin": False,
    }


_PROFILE = ("name", "company", "location", "email", "hireable", "bio", "twitter_username")


def render_account(links: Links, user: User) -> Json:
    """Schema `public-user`, with an empty profile."""
    counts = dict.fromkeys(("public_repos", "public_gists", "followers", "following"), 0)
    times = dict.fromkeys(("created_at", "updated_at"), render_time(links.app.created_at))
    profile = dict.fromkeys(_PROFILE) | {"blog": "", "user_view_type": "public"}
    return render_user(links, user) | profile | counts | times


def render_app(links: Links, installations: int | None = None) -> Json:
    """Schema `integration`."""
    app = links.app
    count = {} if installations is None else {"installations_count": installations}
    return count | {
        "id": int(app.id),
        "slug": app.slug,
        "node_id": node_id("App", app.id),
        "owner": render_user(links, app.owner),
        "name": app.slug,
        "description": "",
        "external_url": f"{links.web}/{app.owner.login}",
        "html_url": f"{links.web}/apps/{app.slug}",
        "created_at": render_time(app.created_at),
        "updated_at": render_time(app.created_at),
        "permissions": dict(app.permissions),
        "events": sorted(app.events),
    }


def render_author_app(links: Links, via_app: bool) -> Json | None:
    """Schema `nullable-integration`: the App that did it."""
    return render_app(links) if via_app else None


def render_installation(links: Links, installation: Installation) -> Json:
    """Schema `installation`."""
    api = f"{links.api}/app/installations/{installation.id}"
    return {
        "id": installation.id,
        "account": render_user(links, installation.account),
        "repository_selection": "selected",
        "access_tokens_url": f"{api}/access_tokens",
        "repositories_url": f"{links.api}/installation/repositories",
        "html_url": f"{links.web}/settings/installations/{installation.id}",
        "app_id": int(links.app.id),
        "app_slug": links.app.slug,
        "target_id": installation.account.id,
        "target_type": installation.account.type,
        "permissions": dict(links.app.permissions),
        "events": sorted(links.app.events),
        "created_at": render_time(installation.created_at),
        "updated_at": render_time(installation.created_at),
        "single_file_name": None,
        "suspended_by": None,
        "suspended_at": None,
    }


_FEATURES: Json = {
    "fork": False,
    "description": None,
    "mirror_url": None,
    "homepage": None,
    "language": None,
    "license": None,
    "archived": False,
    "disabled": False,
    "has_issues": True,
    "has_projects": False,
    "has_wiki": False,
    "has_pages": False,
    "has_downloads": True,
    "has_discussions": False,
    "is_template": False,
    "topics": [],
    "size": 0,
    "forks": 0,
    "watchers": 0,
    "forks_count": 0,
    "stargazers_count": 0,
    "watchers_count": 0,
    "subscribers_count": 0,
    "network_count": 0,
}
"""Features that no repository of the stand-in has."""

_PLAIN_PATHS = (
    *("contributors", "deployments", "downloads", "events", "forks", "hooks", "languages", "merges", "stargazers"),
    *("subscribers", "subscription", "tags", "teams"),
)

_TEMPLATE_PATHS = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "statuses_url": "/statuses/{sha}",
    "trees_url": "/git/trees{/sha}",
}


def render_repository(links: Links, repository: Repository) -> Json:
    """Schemas `full-repository`, `repository` and `minimal-repository`: this has the fields of all three."""
    api, page = links.repository(repository), links.page(repository)
    host = links.web.partition("://")[2]
    open_issues = sum(issue.state == "open" for issue in repository.issues.values())
    created_at = render_time(repository.created_at)
    return {
        "id": repository.id,
        "node_id": node_id("Repository", repository.id),
        "name": repository.name,
        "full_name": repository.full_name,
        "private": repository.private,
        "visibility": "private" if repository.private else "public",
        "owner": render_user(links, repository.owner),
        "url": api,
        "html_url": page,
        "clone_url": f"{page}.git",
        "git_url": f"git://{host}/{repository.full_name}.git",
        "ssh_url": f"git@{host}:{repository.full_name}.git",
        "svn_url": page,
        "default_branch": repository.default_branch,
        "open_issues": open_issues,
        "open_issues_count": open_issues,
        "created_at": created_at,
        "updated_at": created_at,
        "pushed_at": created_at,
        **{f"{name}_url": f"{api}/{name}" for name in _PLAIN_PATHS},
        **{name: f"{api}{path}" for name, path in _TEMPLATE_PATHS.items()},
        **_FEATURES,
        "fork": repository.fork_of is not None,
    }


def render_association(repository: Repository, user: User) -> str:
    """Schema `author-association`. It is not a permission: never grant anything because of it."""
    if user.id == repository.owner.id:
        return "OWNER"
    return "COLLABORATOR" if repository.roles.get(user.login.casefold(), "none") != "none" else "NONE"


def render_permission(links: Links, repository: Repository, user: User) -> Json:
    """Schema `repository-collaborator-permission`: `permission` has four values, `role_name` has every role."""
    role = repository.role_of(user)
    permission = {"maintain": "write", "triage": "read"}.get(role, role)
    return {"permission": permission, "role_name": role, "user": render_user(links, user) | {"role_name": role}}


def render_label(links: Links, repository: Repository, label: Label) -> Json:
    """Schema `label`."""
    return {
        "id": label.id,
        "node_id": node_id("Label", label.id),
        "url": f"{links.repository(repository)}/labels/{quote(label.name, safe='')}",
        "name": label.name,
        "description": "",
        "color": "ededed",
        "default": False,
    }


def render_reaction(links: Links, reaction: Reaction) -> Json:
    """Schema `reaction`."""
    return {
        "id": reaction.id,
        "node_id": node_id("Reaction", reaction.id),
        "user": render_user(links, reaction.user),
        "content": reaction.content,
        "created_at": render_time(reaction.created_at),
    }


def _render_rollup(url: str, reactions: Sequence[Reaction]) -> Json:
    counts = Counter(reaction.content for reaction in reactions)
    return {"url": f"{url}/reactions", "total_count": len(reactions), **{name: counts[name] for name in REACTIONS}}


def render_issue(links: Links, repository: Repository, issue: Issue) -> Json:
    """Schema `issue`; a pull request has one more field."""
    url = f"{links.repository(repository)}/issues/{issue.number}"
    kind = "pull" if isinstance(issue, Pull) else "issues"
    page = f"{links.page(repository)}/{kind}/{issue.number}"
    pull = _render_pull_facts(links, repository, issue) if isinstance(issue, Pull) else {}
    return pull | {
        "id": issue.id,
        "node_id": node_id("Issue", issue.id),
        "url": url,
        "repository_url": links.repository(repository),
        "labels_url": f"{url}/labels{{/name}}",
        "comments_url": f"{url}/comments",
        "events_url": f"{url}/events",
        "timeline_url": f"{url}/timeline",
        "html_url": page,
        "number": issue.number,
        "state": issue.state,
        "state_reason": "completed" if issue.closed_at else None,
        "title": issue.title,
        "body": issue.body or None,
        "user": render_user(links, issue.user),
        "labels": [render_label(links, repository, label) for label in issue.labels],
        "assignee": render_user(links, issue.assignees[0]) if issue.assignees else None,
        "assignees": [render_user(links, user) for user in issue.assignees],
        "milestone": None,
        "locked": False,
        "active_lock_reason": None,
        "comments": len(issue.comments),
        "created_at": render_time(issue.created_at),
        "updated_at": render_time(issue.updated_at),
        "closed_at": render_time(issue.closed_at),
        "author_association": render_association(repository, issue.user),
        "reactions": _render_rollup(url, issue.reactions),
        "performed_via_github_app": render_author_app(links, issue.via_app),
    }


def _render_pull_facts(links: Links, repository: Repository, pull: Pull) -> Json:
    page = f"{links.page(repository)}/pull/{pull.number}"
    addresses = {
        "url": f"{links.repository(repository)}/pulls/{pull.number}",
        "html_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "merged_at": render_time(pull.merge.at) if pull.merge else None,
    }
    return {"draft": pull.draft, "pull_request": addresses}


def render_comment(links: Links, repository: Repository, comment: Comment) -> Json:
    """Schema `issue-comment`."""
    api, issue = links.repository(repository), repository.issues[comment.issue_number]
    kind = "pull" if isinstance(issue, Pull) else "issues"
    url = f"{api}/issues/comments/{comment.id}"
    return {
        "id": comment.id,
        "node_id": node_id("IssueComment", comment.id),
        "url": url,
        "html_url": f"{links.page(repository)}/{kind}/{issue.number}#issuecomment-{comment.id}",
        "issue_url": f"{api}/issues/{issue.number}",
        "user": render_user(links, comment.user),
        "body": comment.body,
        "created_at": render_time(comment.created_at),
        "updated_at": render_time(comment.updated_at),
        "author_association": render_association(repository, comment.user),
        "reactions": _render_rollup(url, comment.reactions),
        "performed_via_github_app": render_author_app(links, comment.via_app),
    }
