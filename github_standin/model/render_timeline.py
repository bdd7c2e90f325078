"""GitHub's JSON for the timeline of an issue. Pure."""

from __future__ import annotations

import re

from github_standin.model.render import (
    Json,
    Links,
    node_id,
    render_author_app,
    render_comment,
    render_issue,
    render_repository,
    render_time,
    render_user,
)
from github_standin.model.state import Comment, Issue, Repository, TimelineEvent


def render_timeline(links: Links, repository: Repository, issue: Issue) -> list[Json]:
    """Schema `timeline-issue-events`: events and comments, oldest first."""
    events = [(event.id, _render_event(links, repository, event)) for event in issue.timeline]
    comments = [(comment.id, _render_commented(links, repository, comment)) for comment in issue.comments]
    naming = find_references(repository, issue)
    references = [(other.id, _render_reference(links, repository, other)) for other in naming]
    return [item for _, item in sorted(events + comments + references, key=lambda pair: pair[0])]


def find_references(repository: Repository, issue: Issue) -> list[Issue]:
    """Other issues and pull requests that mention this one."""
    naming = [other for other in repository.issues.values() if re.search(rf"#{issue.number}\b", other.body)]
    return [other for other in naming if other is not issue]


def _render_reference(links: Links, repository: Repository, other: Issue) -> Json:
    """Schema `timeline-cross-referenced-event`. GitHub adds the repository of the source."""
    source = render_issue(links, repository, other) | {"repository": render_repository(links, repository)}
    return {
        "event": "cross-referenced",
        "actor": render_user(links, other.user),
        "created_at": render_time(other.created_at),
        "updated_at": render_time(other.created_at),
        "source": {"type": "issue", "issue": source},
    }


def _render_event(links: Links, repository: Repository, event: TimelineEvent) -> Json:
    facts: Json = {}
    if event.label:
        facts["label"] = {"name": event.label.name, "color": "ededed"}
    if event.assignee:
        facts |= {"assignee": render_user(links, event.assignee), "assigner": render_user(links, event.actor)}
    if event.rename:
        facts["rename"] = dict(zip(("from", "to"), event.rename, strict=True))
    return facts | {
        "id": event.id,
        "node_id": node_id("Event", event.id),
        "url": f"{links.repository(repository)}/issues/events/{event.id}",
        "actor": render_user(links, event.actor),
        "event": event.event,
        "commit_id": None,
        "commit_url": None,
        "created_at": render_time(event.created_at),
        "performed_via_github_app": render_author_app(links, event.via_app),
    }


def _render_commented(links: Links, repository: Repository, comment: Comment) -> Json:
    rendered = render_comment(links, repository, comment)
    return rendered | {"event": "commented", "actor": rendered["user"]}
