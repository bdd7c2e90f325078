"""Changes to issues and pull requests, and the webhooks that they cause.

No change awaits anything, so two changes never mix. `by` is the person or bot that makes the change: the App's bot
through the API, people on the web.
"""

from __future__ import annotations

import re

from github_standin.model.gitstore import DiffStat
from github_standin.model.render import (
    Json,
    Links,
    node_id,
    render_comment,
    render_issue,
    render_label,
    render_repository,
    render_user,
)
from github_standin.model.render_git import render_pull
from github_standin.model.state import (
    Comment,
    Issue,
    Label,
    Merge,
    Pull,
    Reaction,
    Repository,
    TimelineEvent,
    User,
    World,
)
from github_standin.model.webhooks import Webhooks

_CLOSING = re.compile(r"\b(?:fix(?:es|ed)?|close[sd]?|resolve[sd]?) #(\d{1,9})\b", re.IGNORECASE)
"""The keywords with which a merged pull request closes issues."""


class Actions:
    """Changes to one `World`."""

    def __init__(self, world: World, links: Links, webhooks: Webhooks) -> None:
        self._world = world
        self._links = links
        self._webhooks = webhooks

    def open_issue(self, repository: Repository, title: str, body: str, by: User) -> Issue:
        """Open an issue."""
        now, number = self._world.now(), len(repository.issues) + 1
        issue = Issue(
            id=self._world.next_id(),
            number=number,
            title=title,
            body=body,
            user=by,
            created_at=now,
            updated_at=now,
            via_app=self._is_app(by),
        )
        repository.issues[number] = issue
        self._emit_issue(repository, issue, "opened", by)
        return issue

    def open_pull(
        self,
        repository: Repository,
        title: str,
        body: str,
        by: User,
        *,
        source: Repository,
        ends: tuple[tuple[str, str], tuple[str, str]],
        draft: bool,
        stat: DiffStat,
    ) -> Pull:
        """Open a pull request; `ends` are head and base, each a branch and the commit it is at."""
        now, number = self._world.now(), len(repository.issues) + 1
        (head, head_sha), (base, base_sha) = ends
        pull = Pull(
            id=self._world.next_id(),
            number=number,
            title=title,
            body=body,
            user=by,
            created_at=now,
            updated_at=now,
            via_app=self._is_app(by),
            source=source,
            head=head,
            head_sha=head_sha,
            base=base,
            base_sha=base_sha,
            draft=draft,
            stat=stat,
        )
        repository.issues[number] = pull
        self._emit_issue(repository, pull, "opened", by)
        return pull

    def edit_issue(self, repository: Repository, issue: Issue, by: User, title: str | None, body: str | None) -> None:
        """Change the title, the body or both. None changes nothing."""
        changes: Json = {}
        if title is not None and title != issue.title:
            changes["title"] = {"from": issue.title}
            self._note(issue, "renamed", by, rename=(issue.title, title))
            issue.title = title
        if body is not None and body != issue.body:
            changes["body"] = {"from": issue.body}
            issue.body = body
        if changes:
            issue.updated_at = self._world.now()
            self._emit_issue(repository, issue, "edited", by, changes=changes)

    def set_state(self, repository: Repository, issue: Issue, state: str, by: User) -> None:
        """Close or reopen."""
        if state == issue.state:
            return
        action = "closed" if state == "closed" else "reopened"
        issue.updated_at = self._world.now()
        issue.closed_at = issue.updated_at if state == "closed" else None
        self._note(issue, action, by)
        self._emit_issue(repository, issue, action, by)

    def mark_ready(self, repository: Repository, pull: Pull, by: User) -> None:
        """End the draft state of a pull request."""
        pull.draft, pull.updated_at = False, self._world.now()
        self._note(pull, "ready_for_review", by)
        self._emit_issue(repository, pull, "ready_for_review", by)

    def merge(self, repository: Repository, pull: Pull, sha: str, by: User) -> None:
        """Mark a pull request as merged, and close the issues that its text names."""
        pull.merge = Merge(sha, by, self._world.now())
        self._note(pull, "merged", by)
        self.set_state(repository, pull, "closed", by)
        for number in map(int, _CLOSING.findall(pull.body)):
            if number in repository.issues:
                self.set_state(repository, repository.issues[number], "closed", by)

    def update_head(self, repository: Repository, pull: Pull, sha: str, stat: DiffStat, by: User) -> None:
        """Record that the branch of a pull request has moved."""
        before, pull.head_sha, pull.stat, pull.updated_at = pull.head_sha, sha, stat, self._world.now()
        self._emit_issue(repository, pull, "synchronize", by, before=before, after=sha)

    def add_label(self, repository: Repository, issue: Issue, name: str, by: User) -> None:
        """Add a label, and create it in the repository if necessary. Does nothing if the issue has it."""
        label = self._world.label(repository, name)
        if label in issue.labels:
            return
        issue.labels.append(label)
        issue.updated_at = self._world.now()
        self._note(issue, "labeled", by, label=label)
        self._emit_issue(repository, issue, "labeled", by, label=render_label(self._links, repository, label))

    def remove_label(self, repository: Repository, issue: Issue, label: Label, by: User) -> None:
        """Remove a label."""
        issue.labels.remove(label)
        issue.updated_at = self._world.now()
        self._note(issue, "unlabeled", by, label=label)
        self._emit_issue(repository, issue, "unlabeled", by, label=render_label(self._links, repository, label))

    def assign(self, repository: Repository, issue: Issue, user: User, by: User) -> None:
        """Assign somebody. Does nothing if they are assigned."""
        if user in issue.assignees:
            return
        issue.assignees.append(user)
        issue.updated_at = self._world.now()
        self._note(issue, "assigned", by, assignee=user)
        self._emit_issue(repository, issue, "assigned", by, assignee=render_user(self._links, user))

    def add_comment(self, repository: Repository, issue: Issue, body: str, by: User) -> Comment:
        """Post a comment."""
        now = self._world.now()
        comment = Comment(self._world.next_id(), issue.number, by, body, now, now, self._is_app(by))
        issue.comments.append(comment)
        issue.updated_at = now
        self._emit_comment(repository, comment, "created", by)
        return comment

    def edit_comment(self, repository: Repository, comment: Comment, body: str, by: User) -> None:
        """Replace a comment's body."""
        changes = {"body": {"from": comment.body}}
        comment.body, comment.updated_at = body, self._world.now()
        repository.issues[comment.issue_number].updated_at = comment.updated_at
        self._emit_comment(repository, comment, "edited", by, changes=changes)

    def delete_comment(self, repository: Repository, comment: Comment, by: User) -> None:
        """Delete a comment. The webhook still shows it."""
        self._emit_comment(repository, comment, "deleted", by)
        repository.issues[comment.issue_number].comments.remove(comment)

    def react(self, thing: Issue | Comment, content: str, by: User) -> tuple[Reaction, bool]:
        """Add a reaction, and say whether it is new: a person has each one only once. It causes no webhook."""
        for reaction in thing.reactions:
            if (reaction.content, reaction.user) == (content, by):
                return reaction, False
        reaction = Reaction(self._world.next_id(), content, by, self._world.now())
        thing.reactions.append(reaction)
        return reaction, True

    def ping(self) -> None:
        """Send the event that GitHub sends when a webhook is set up."""
        config = {"url": self._webhooks.url, "content_type": "json", "insecure_ssl": "0"}
        app = self._links.app
        hook = {"type": "App", "id": self._webhooks.hook_id, "name": "web", "active": True, "app_id": int(app.id)}
        payload = {"zen": "Keep it logically awesome.", "hook_id": self._webhooks.hook_id}
        self._webhooks.emit("ping", None, payload | {"hook": hook | {"events": sorted(app.events), "config": config}})

    def _is_app(self, user: User) -> bool:
        return user == self._links.app.bot

    def _note(
        self,
        issue: Issue,
        event: str,
        by: User,
        label: Label | None = None,
        rename: tuple[str, str] | None = None,
        assignee: User | None = None,
    ) -> None:
        identity, now = self._world.next_id(), self._world.now()
        issue.timeline.append(TimelineEvent(identity, event, by, now, self._is_app(by), label, rename, assignee))

    def _emit_issue(self, repository: Repository, issue: Issue, action: str, by: User, **more: object) -> None:
        if isinstance(issue, Pull):
            pull = render_pull(self._links, repository, issue)
            self._emit(repository, "pull_request", action, by, number=issue.number, pull_request=pull, **more)
        else:
            rendered = render_issue(self._links, repository, issue)
            self._emit(repository, "issues", action, by, issue=rendered, **more)

    def _emit_comment(self, repository: Repository, comment: Comment, action: str, by: User, **more: object) -> None:
        issue = render_issue(self._links, repository, repository.issues[comment.issue_number])
        rendered = render_comment(self._links, repository, comment)
        self._emit(repository, "issue_comment", action, by, issue=issue, comment=rendered, **more)

    def _emit(self, repository: Repository, event: str, action: str, by: User, **parts: object) -> None:
        if not repository.installed:
            return
        installation = self._world.installation_on(repository.owner)
        payload = {
            "action": action,
            **parts,
            "repository": render_repository(self._links, repository),
            "sender": render_user(self._links, by),
            "installation": {"id": installation.id, "node_id": node_id("IntegrationInstallation", installation.id)},
        }
        self._webhooks.emit(event, action, payload, installation_id=installation.id, repository_id=repository.id)
