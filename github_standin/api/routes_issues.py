"""Endpoints about repositories, issues, comments, reactions, labels and permissions.

Each handler returns an `Answer` or raises `Refusal`.
"""

from __future__ import annotations

from functools import partial

from github_standin.api.calls import Call
from github_standin.model.answers import Answer, Refusal, created, invalid, not_found
from github_standin.model.render import (
    REACTIONS,
    Json,
    render_comment,
    render_issue,
    render_label,
    render_permission,
    render_reaction,
    render_repository,
)
from github_standin.model.render_timeline import render_timeline
from github_standin.model.state import Comment, Issue

MAX_LABEL_CHARACTERS = 50


async def get_repository(call: Call) -> Answer:
    """The repository."""
    return Answer(200, render_repository(call.site.links, call.repository))


async def get_permission(call: Call) -> Answer:
    """A person's permission. 404 for an unknown user."""
    user = call.site.world.users.get(call.params["username"].casefold())
    if user is None:
        raise Refusal(404, f"{call.params['username']} is not a user")
    return Answer(200, render_permission(call.site.links, call.repository, user))


async def get_label(call: Call) -> Answer:
    """One label of the repository. Labels ignore case."""
    label = call.repository.labels.get(call.params["name"].casefold())
    if label is None:
        raise not_found()
    return Answer(200, render_label(call.site.links, call.repository, label))


async def list_issues(call: Call) -> Answer:
    """Issues and pull requests that match the query."""
    state, since = call.choice("state", ("open", "closed", "all")), call.since()
    wanted = {name.casefold() for name in call.query.get("labels", "").split(",") if name}
    creator = call.query.get("creator", "").casefold()

    def matches(issue: Issue) -> bool:
        return (
            state in ("all", issue.state)
            and wanted <= {label.name.casefold() for label in issue.labels}
            and (since is None or issue.updated_at >= since)
            and creator in ("", issue.user.login.casefold())
        )

    matching = [issue for issue in call.repository.issues.values() if matches(issue)]
    if call.choice("sort", ("created", "updated", "comments")) == "updated":
        matching.sort(key=lambda issue: (issue.updated_at, issue.number))
    if call.choice("direction", ("desc", "asc")) == "desc":
        matching.reverse()
    return call.page_of(matching, partial(render_issue, call.site.links, call.repository))


async def create_issue(call: Call) -> Answer:
    """Open an issue as the App."""
    title = call.content("title", "Issue", required=True) or ""
    body, labels = call.content("body", "Issue") or "", call.items("labels", str)
    issue = call.site.actions.open_issue(call.repository, title, body, call.actor)
    for name in labels:
        call.site.actions.add_label(call.repository, issue, name, call.actor)
    return created(render_issue(call.site.links, call.repository, issue))


async def get_issue(call: Call) -> Answer:
    """One issue or pull request."""
    return Answer(200, render_issue(call.site.links, call.repository, call.issue()))


async def update_issue(call: Call) -> Answer:
    """Change title, body or state."""
    issue = call.issue()
    title, body, state = call.content("title", "Issue"), call.content("body", "Issue"), call.optional_text("state")
    if state not in (None, "open", "closed"):
        raise invalid("Issue", "state")
    call.site.actions.edit_issue(call.repository, issue, call.actor, title, body)
    if state:
        call.site.actions.set_state(call.repository, issue, state, call.actor)
    return Answer(200, render_issue(call.site.links, call.repository, issue))


async def list_comments(call: Call) -> Answer:
    """The comments of one issue, oldest first; `since` compares the time of the last change."""
    since = call.since()
    comments = [comment for comment in call.issue().comments if since is None or comment.updated_at >= since]
    return call.page_of(comments, partial(render_comment, call.site.links, call.repository))


async def create_comment(call: Call) -> Answer:
    """Post a comment as the App."""
    body = call.content("body", "IssueComment", required=True) or ""
    comment = call.site.actions.add_comment(call.repository, call.issue(), body, call.actor)
    return created(_render_comment(call, comment))


async def get_comment(call: Call) -> Answer:
    """One comment."""
    return Answer(200, _render_comment(call, call.comment()))


async def update_comment(call: Call) -> Answer:
    """Replace a comment's body."""
    body, comment = call.content("body", "IssueComment", required=True) or "", call.comment()
    call.site.actions.edit_comment(call.repository, comment, body, call.actor)
    return Answer(200, _render_comment(call, comment))


async def delete_comment(call: Call) -> Answer:
    """Delete a comment."""
    call.site.actions.delete_comment(call.repository, call.comment(), call.actor)
    return Answer(204)


async def react_to_issue(call: Call) -> Answer:
    """React to an issue: 201, or 200 if the reaction exists."""
    return _react(call, call.issue())


async def react_to_comment(call: Call) -> Answer:
    """React to a comment: 201, or 200 if the reaction exists."""
    return _react(call, call.comment())


async def list_issue_reactions(call: Call) -> Answer:
    """The reactions to an issue."""
    return _list_reactions(call, call.issue())


async def list_comment_reactions(call: Call) -> Answer:
    """The reactions to a comment."""
    return _list_reactions(call, call.comment())


async def list_timeline(call: Call) -> Answer:
    """Everything that happened to an issue, oldest first."""
    events = render_timeline(call.site.links, call.repository, call.issue())
    return call.page_of(events, lambda event: event)


async def list_labels(call: Call) -> Answer:
    """The labels of an issue."""
    return call.page_of(call.issue().labels, partial(render_label, call.site.links, call.repository))


async def add_labels(call: Call) -> Answer:
    """Add labels to an issue. The answer lists all its labels."""
    issue, names = call.issue(), call.items("labels", str)
    for name in names:
        if not name.strip() or len(name) > MAX_LABEL_CHARACTERS:
            raise invalid("Label", "name")
    for name in names:
        call.site.actions.add_label(call.repository, issue, name, call.actor)
    return _label_answer(call, issue)


async def remove_label(call: Call) -> Answer:
    """Remove a label from an issue. The answer lists the others."""
    issue = call.issue()
    for label in issue.labels:
        if label.name.casefold() == call.params["name"].casefold():
            call.site.actions.remove_label(call.repository, issue, label, call.actor)
            return _label_answer(call, issue)
    raise Refusal(404, "Label does not exist")


async def add_assignees(call: Call) -> Answer:
    """Assign people to an issue. People who cannot be assigned are skipped silently."""
    issue, users = call.issue(), call.site.world.users
    for user in (users.get(login.casefold()) for login in call.items("assignees", str)):
        if user and call.repository.may_be_assigned(user):
            call.site.actions.assign(call.repository, issue, user, call.actor)
    return created(render_issue(call.site.links, call.repository, issue))


def _label_answer(call: Call, issue: Issue) -> Answer:
    return Answer(200, [render_label(call.site.links, call.repository, label) for label in issue.labels])


def _render_comment(call: Call, comment: Comment) -> Json:
    return render_comment(call.site.links, call.repository, comment)


def _react(call: Call, thing: Issue | Comment) -> Answer:
    content = call.text("content")
    if content not in REACTIONS:
        raise invalid("Reaction", "content")
    reaction, new = call.site.actions.react(thing, content, call.actor)
    return Answer(201 if new else 200, render_reaction(call.site.links, reaction))


def _list_reactions(call: Call, thing: Issue | Comment) -> Answer:
    content = call.query.get("content")
    reactions = [reaction for reaction in thing.reactions if content in (None, reaction.content)]
    return call.page_of(reactions, partial(render_reaction, call.site.links))
