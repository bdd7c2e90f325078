"""GitHub's GraphQL API, as far as it does what the REST API cannot: fold a comment.

It reads no GraphQL. It knows one mutation by its name, with its argument in the variables.
Source: docs.github.com/en/graphql/reference/mutations#minimizecomment.
"""

from __future__ import annotations

from typing import Any

from github_standin.api.calls import Call
from github_standin.model.answers import Answer, forbidden, not_found
from github_standin.model.render import node_id
from github_standin.model.state import Comment, Pull, Repository

PATH = "/graphql"


async def answer_query(call: Call) -> Answer:
    """Answer a query. The status is 200 for refusals, too."""
    if "minimizeComment" not in call.text("query"):
        return Answer(200, {"data": {"__typename": "Query"}})
    wanted = str((call.fields.get("variables") or {}).get("id"))
    found = _find_comment(call, wanted)
    if found is None:
        return _refuse("NOT_FOUND", f"Could not resolve to a node with the global id of '{wanted}'.")
    repository, comment = found
    if not _may_fold(call, repository, comment):
        return _refuse("FORBIDDEN", forbidden().message)
    comment.minimized_as = "OUTDATED"
    return Answer(200, {"data": {"minimizeComment": {"minimizedComment": {"isMinimized": True}}}})


def _find_comment(call: Call, wanted: str) -> tuple[Repository, Comment] | None:
    if call.token is None:
        raise not_found()
    for repository in call.site.world.repositories.values():
        for comment in repository.all_comments() if call.token.reaches(repository) else ():
            if node_id("IssueComment", comment.id) == wanted:
                return repository, comment
    return None


def _may_fold(call: Call, repository: Repository, comment: Comment) -> bool:
    assert call.token
    is_on_pull = isinstance(repository.issues[comment.issue_number], Pull)
    return call.token.may("issues:write") or (is_on_pull and call.token.may("pull_requests:write"))


def _refuse(kind: str, message: str) -> Answer:
    error: dict[str, Any] = {"type": kind, "path": ["minimizeComment"], "message": message}
    return Answer(200, {"data": {"minimizeComment": None}, "errors": [error]})
