"""Every endpoint, and the permission that it needs.

Source: docs.github.com/rest/authentication/permissions-required-for-github-apps. Paths are written as in GitHub's
OpenAPI description.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from github_standin.api import graphql
from github_standin.api import routes_apps as apps
from github_standin.api import routes_git as git
from github_standin.api import routes_issues as issues
from github_standin.api import routes_oauth as oauth
from github_standin.api import routes_pulls as pulls
from github_standin.api.calls import Call
from github_standin.model.answers import Answer
from github_standin.model.render import API_ROOT, GRAPHQL_ADDRESS

Handler = Callable[[Call], Awaitable[Answer]]

APP = "app"
"""Needs the App's own JWT."""
TOKEN = "token"  # noqa: S105
"""Needs any installation token."""
PERSON = "person"
"""Needs the token of a person."""
ANYONE = "anyone"
"""Needs a token of either kind."""
NOTHING = "nothing"
"""Needs no token: the path holds the credential."""

_NUMBERS = frozenset({"issue_number", "comment_id", "pull_number", "installation_id", "delivery_id"})
_WITH_SLASHES = frozenset({"ref", "branch", "path", "name"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One line of the table."""

    method: str
    path: str
    handler: Handler
    needs: str
    creates_content: bool = False
    """Counts against the secondary rate limits."""

    @property
    def alternative(self) -> str:
        """The permission that is also enough if the issue is a pull request, or else the same one."""
        return self.needs.replace("issues:", "pull_requests:")


_R, _I, _C = (
    "/repos/{owner}/{repo}",
    "/repos/{owner}/{repo}/issues/{issue_number}",
    "/repos/{owner}/{repo}/issues/comments",
)
_G, _P = "/repos/{owner}/{repo}/git", "/repos/{owner}/{repo}/pulls"

ENDPOINTS = (
    Endpoint("GET", "/app", apps.get_app, APP),
    Endpoint("POST", "/app-manifests/{code}/conversions", apps.convert_manifest, NOTHING),
    Endpoint("GET", "/app/installations", apps.list_installations, APP),
    Endpoint("GET", "/app/hook/config", apps.get_hook, APP),
    Endpoint("GET", "/app/hook/deliveries", apps.list_deliveries, APP),
    Endpoint("GET", "/app/hook/deliveries/{delivery_id}", apps.get_delivery, APP),
    Endpoint("POST", "/app/hook/deliveries/{delivery_id}/attempts", apps.redeliver, APP),
    Endpoint("POST", "/app/installations/{installation_id}/access_tokens", apps.create_token, APP),
    Endpoint("DELETE", "/applications/{client_id}/token", oauth.delete_token, APP),
    Endpoint("GET", "/user", oauth.get_authenticated, PERSON),
    Endpoint("GET", f"{_R}/installation", apps.get_repository_installation, APP),
    Endpoint("GET", "/installation/repositories", apps.list_installation_repositories, TOKEN),
    Endpoint("GET", "/rate_limit", apps.get_rate_limit, ANYONE),
    Endpoint("POST", graphql.PATH, graphql.answer_query, ANYONE),
    Endpoint("GET", "/users/{username}", apps.get_user, TOKEN),
    Endpoint("GET", "/users/{username}/keys", apps.list_public_keys, TOKEN),
    Endpoint("GET", _R, issues.get_repository, "metadata:read"),
    Endpoint("GET", f"{_R}/labels/{{name}}", issues.get_label, "issues:read"),
    Endpoint("GET", f"{_R}/collaborators/{{username}}/permission", issues.get_permission, "metadata:read"),
    Endpoint("GET", f"{_R}/issues", issues.list_issues, "issues:read"),
    Endpoint("POST", f"{_R}/issues", issues.create_issue, "issues:write", creates_content=True),
    Endpoint("GET", _I, issues.get_issue, "issues:read"),
    Endpoint("PATCH", _I, issues.update_issue, "issues:write"),
    Endpoint("GET", f"{_I}/comments", issues.list_comments, "issues:read"),
    Endpoint("POST", f"{_I}/comments", issues.create_comment, "issues:write", creates_content=True),
    Endpoint("GET", f"{_C}/{{comment_id}}", issues.get_comment, "issues:read"),
    Endpoint("PATCH", f"{_C}/{{comment_id}}", issues.update_comment, "issues:write"),
    Endpoint("DELETE", f"{_C}/{{comment_id}}", issues.delete_comment, "issues:write"),
    Endpoint("GET", f"{_I}/reactions", issues.list_issue_reactions, "issues:read"),
    Endpoint("POST", f"{_I}/reactions", issues.react_to_issue, "issues:write"),
    Endpoint("GET", f"{_C}/{{comment_id}}/reactions", issues.list_comment_reactions, "issues:read"),
    Endpoint("POST", f"{_C}/{{comment_id}}/reactions", issues.react_to_comment, "issues:write"),
    Endpoint("GET", f"{_I}/timeline", issues.list_timeline, "issues:read"),
    Endpoint("GET", f"{_I}/labels", issues.list_labels, "issues:read"),
    Endpoint("POST", f"{_I}/labels", issues.add_labels, "issues:write"),
    Endpoint("DELETE", f"{_I}/labels/{{name}}", issues.remove_label, "issues:write"),
    Endpoint("POST", f"{_I}/assignees", issues.add_assignees, "issues:write"),
    Endpoint("POST", f"{_G}/blobs", git.create_blob, "contents:write"),
    Endpoint("GET", f"{_G}/blobs/{{file_sha}}", git.get_blob, "contents:read"),
    Endpoint("POST", f"{_G}/trees", git.create_tree, "contents:write"),
    Endpoint("GET", f"{_G}/trees/{{tree_sha}}", git.get_tree, "contents:read"),
    Endpoint("POST", f"{_G}/commits", git.create_commit, "contents:write"),
    Endpoint("GET", f"{_G}/commits/{{commit_sha}}", git.get_commit, "contents:read"),
    Endpoint("POST", f"{_G}/refs", git.create_ref, "contents:write"),
    Endpoint("GET", f"{_G}/ref/{{ref}}", git.get_ref, "contents:read"),
    Endpoint("PATCH", f"{_G}/refs/{{ref}}", git.update_ref, "contents:write"),
    Endpoint("DELETE", f"{_G}/refs/{{ref}}", git.delete_ref, "contents:write"),
    Endpoint("GET", f"{_R}/branches/{{branch}}", git.get_branch, "contents:read"),
    Endpoint("GET", f"{_R}/compare/{{basehead}}", git.compare, "contents:read"),
    Endpoint("GET", f"{_R}/contents/{{path}}", git.get_contents, "contents:read"),
    Endpoint("GET", _P, pulls.list_pulls, "pull_requests:read"),
    Endpoint("POST", _P, pulls.create_pull, "pull_requests:write", creates_content=True),
    Endpoint("GET", f"{_P}/{{pull_number}}", pulls.get_pull, "pull_requests:read"),
    Endpoint("PATCH", f"{_P}/{{pull_number}}", pulls.update_pull, "pull_requests:write"),
    Endpoint("GET", f"{_P}/{{pull_number}}/files", pulls.list_files, "pull_requests:read"),
)


def _compile(path: str) -> re.Pattern[str]:
    def group(match: re.Match[str]) -> str:
        name = match[1]
        shape = "[0-9]{1,18}" if name in _NUMBERS else ".+" if name in _WITH_SLASHES else "[^/]+"
        return f"(?P<{name}>{shape})"

    return re.compile(re.sub(r"\{(\w+)\}", group, path), re.DOTALL)


_PATTERNS = [(endpoint, _compile(endpoint.path)) for endpoint in ENDPOINTS]


def find_path(raw_path: str) -> str:
    """The path of a request below the API's root."""
    return graphql.PATH if raw_path == GRAPHQL_ADDRESS else raw_path.removeprefix(API_ROOT)


def find_endpoint(method: str, path: str) -> tuple[Endpoint, Mapping[str, str]] | None:
    """The endpoint of a request, and the decoded parts of its path; None if there is none."""
    for endpoint, pattern in _PATTERNS:
        if endpoint.method == method and (match := pattern.fullmatch(path)):
            return endpoint, {name: unquote(part) for name, part in match.groupdict().items()}
    return None
