"""Parses GitHub's JSON into the port's types, and renders requests. Only fields that are used are read. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from handlers.events import Issue, Repository, User
from handlers.ports import (
    Author,
    Comment,
    DeliveryAttempt,
    GitHubError,
    GitHubUnavailable,
    Labelling,
    MentioningPull,
    NotFound,
    PullRequest,
    TreeEntry,
)
from handlers.rules import Role
from runner.changes.base_files import BaseFile

Value = TypeVar("Value")

GHOST = "ghost"  # how GitHub itself shows a deleted user
NOREPLY = "users.noreply.github.com"
ROLES = {"read": Role.READ, "write": Role.WRITE, "admin": Role.ADMIN}
BETWEEN = {("read", "triage"): Role.TRIAGE, ("write", "maintain"): Role.MAINTAIN}
"""Roles that GitHub's older field `permission` does not distinguish, by `permission` and the newer `role_name`."""

GRANTS = {
    "pull": Role.READ,
    "triage": Role.TRIAGE,
    "push": Role.WRITE,
    "maintain": Role.MAINTAIN,
    "admin": Role.ADMIN,
}


def read_answer(parse: Callable[[Any], Value], answer: Any) -> Value:
    """Parse an answer. Raises `GitHubUnavailable` if it does not have the documented fields."""
    try:
        return parse(answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise GitHubUnavailable(f"GitHub's answer cannot be read ({type(error).__name__})") from None


def parse_time(text: str) -> datetime:
    """Parse GitHub's ISO 8601 text into an aware time in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def render_time(moment: datetime) -> str:
    """An aware time in GitHub's format, rounded down to whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_comment(payload: Mapping[str, Any]) -> Comment:
    """An issue comment. `user` is null if the account was deleted."""
    user = payload["user"] or {"login": GHOST, "type": "User"}
    return Comment(
        id=int(payload["id"]),
        author=user["login"],
        body=payload["body"] or "",
        created_at=parse_time(payload["created_at"]),
        updated_at=parse_time(payload["updated_at"]),
        url=payload["html_url"],
        by_bot=user["type"] == "Bot",
    )


def parse_comments(payloads: Iterable[Mapping[str, Any]]) -> list[Comment]:
    """A list of issue comments, in the order given."""
    return [parse_comment(payload) for payload in payloads]


def parse_node_id(payload: Mapping[str, Any]) -> str:
    """The id with which GraphQL identifies an object."""
    return str(payload["node_id"])


def find_refusal(answer: Mapping[str, Any]) -> GitHubError | GitHubUnavailable | None:
    """The exception for the first error in a GraphQL answer. None if the answer has no errors.

    The answer's HTTP status is 200 in both cases.
    """
    for error in answer.get("errors") or ():
        kind, said = str(error.get("type")), str(error["message"])
        match kind:
            case "NOT_FOUND":
                return NotFound(404, said)
            case "FORBIDDEN" | "INSUFFICIENT_SCOPES":
                return GitHubError(403, said)
            case "RATE_LIMITED":
                return GitHubUnavailable(f"GitHub's rate limit: {said}")
            case _:
                return GitHubError(422, said)
    return None


def parse_own_login(payload: Mapping[str, Any]) -> str:
    """The login under which the App writes, from GitHub's data about the App."""
    return f"{payload['slug']}[bot]"


def parse_person(payload: Mapping[str, Any]) -> Author:
    """An account as the author of a commit. Characters that git does not allow in a name are removed."""
    login = payload["login"]
    name = " ".join(re.sub(r"[<>\x00-\x1f\x7f]", " ", payload["name"] or "").split())
    return Author(name or login, f"{int(payload['id'])}+{login}@{NOREPLY}")


def parse_public_keys(payloads: Iterable[Mapping[str, Any]]) -> list[str]:
    """SSH keys, newest first. Newer keys have higher ids."""
    return [str(payload["key"]) for payload in sorted(payloads, key=lambda payload: -int(payload["id"]))]


def parse_pull_request(payload: Mapping[str, Any]) -> PullRequest:
    """A pull request, from a list or from an answer with one."""
    return PullRequest(
        number=int(payload["number"]),
        url=payload["html_url"],
        state=payload["state"],
        head_sha=payload["head"]["sha"],
        author=(payload["user"] or {"login": GHOST})["login"],
        body=payload["body"] or "",
        head_repository=(payload["head"]["repo"] or {"full_name": ""})["full_name"],
        base_branch=payload["base"]["ref"],
    )


def choose_pull_requests(
    payloads: Iterable[Mapping[str, Any]], branch: str, *, from_fork: bool = False
) -> list[PullRequest]:
    """The pull requests whose head is `branch` of the repository itself, or of a fork, in the order given.

    GitHub's filter only has owner and branch, and the owner may have both the repository and a fork. Ids are compared,
    because a repository may have been renamed.
    """
    return [
        parse_pull_request(payload)
        for payload in payloads
        if payload["head"]["ref"] == branch
        and payload["head"]["repo"] is not None
        and (payload["head"]["repo"]["id"] != payload["base"]["repo"]["id"]) == from_fork
    ]


@dataclass(frozen=True, slots=True)
class LabelChange:
    """A `labeled` or `unlabeled` event of a label."""

    adds: bool
    by: User
    at: datetime


def parse_label_changes(events: Iterable[Mapping[str, Any]], label: str) -> list[LabelChange]:
    """The changes of a label, in the order given. Names of labels are compared without case, as on GitHub."""
    return [
        LabelChange(
            event["event"] == "labeled", User.model_validate(event["actor"] or {}), parse_time(event["created_at"])
        )
        for event in events
        if event.get("event") in ("labeled", "unlabeled") and event["label"]["name"].casefold() == label.casefold()
    ]


def choose_labellings(changes: Iterable[LabelChange]) -> list[Labelling]:
    """The additions of the label, oldest first."""
    labellings = [Labelling(change.by, change.at) for change in changes if change.adds]
    return sorted(labellings, key=lambda labelling: labelling.at)


def choose_remover(changes: Sequence[LabelChange]) -> User | None:
    """Who removed the label. None if the latest change is not its removal."""
    # GitHub's times have whole seconds. Within a second, the timeline has the latest event last.
    last = max(reversed(changes), key=lambda change: change.at, default=None)
    return last.by if last and not last.adds else None


def parse_issues(payloads: Iterable[Mapping[str, Any]]) -> list[Issue]:
    """A list of issues, in the order given. Their format is the same as in a webhook."""
    return [Issue.model_validate(payload) for payload in payloads]


def choose_pull_numbers(payloads: Iterable[Mapping[str, Any]]) -> list[int]:
    """The numbers of the pull requests in a list of issues. GitHub's lists of issues include pull requests."""
    return [issue.number for issue in parse_issues(payloads) if issue.pull_request is not None]


def parse_repository(payload: Mapping[str, Any]) -> Repository:
    """A repository. Its format is the same as in a webhook."""
    return Repository.model_validate(payload)


def parse_attempts(payloads: Iterable[Mapping[str, Any]]) -> list[DeliveryAttempt]:
    """A page of the webhook's deliveries, in the order given."""
    return [
        DeliveryAttempt(
            id=int(payload["id"]),
            guid=str(payload["guid"]),
            event=str(payload["event"]),
            action=payload["action"],
            delivered_at=parse_time(payload["delivered_at"]),
            succeeded=payload["status"] == "OK" or 200 <= int(payload["status_code"] or 0) < 300,
        )
        for payload in payloads
    ]


def parse_payload(delivery: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The decoded payload of a delivery. None if GitHub no longer has it."""
    payload = delivery["request"]["payload"]
    return None if payload is None else dict(payload)


def parse_role(payload: Mapping[str, Any]) -> Role:
    """The role of a user. A custom role counts as the highest standard role whose permission the answer grants.

    If the answer does not list permissions, a custom role counts as the role that it is based on.
    """
    permission = payload["permission"]
    grants = (payload.get("user") or {}).get("permissions") or {}
    granted = [role for name, role in GRANTS.items() if grants.get(name) is True]
    built_in = BETWEEN.get((permission, payload.get("role_name", "")), Role.NONE)
    return max(ROLES.get(permission, Role.NONE), built_in, *granted)


def choose_mentioning_pulls(events: Iterable[Mapping[str, Any]]) -> list[MentioningPull]:
    """The open pull requests among the cross-references in a page of an issue's timeline."""
    issues = [event["source"]["issue"] for event in events if event.get("event") == "cross-referenced"]
    return [
        MentioningPull(
            repository=parse_home(issue),
            number=int(issue["number"]),
            author=(issue["user"] or {"login": GHOST})["login"],
            body=issue["body"] or "",
        )
        for issue in issues
        if issue.get("pull_request") and issue["state"] == "open"
    ]


def parse_home(issue: Mapping[str, Any]) -> str:
    """The repository of an issue, by its current name."""
    return "/".join(issue["repository_url"].split("/")[-2:])


def parse_sha(payload: Mapping[str, Any]) -> str:
    """The SHA of a git object."""
    return str(payload["sha"])


def parse_tree(payload: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, kind (`blob`, `tree`, `commit`) and SHA of each entry."""
    return [(str(entry["path"]), str(entry["type"]), str(entry["sha"])) for entry in payload["tree"]]


def parse_base_files(payload: Mapping[str, Any]) -> dict[str, BaseFile] | None:
    """The entries of a folder, by name. None if GitHub truncates the list, as it does above 100,000 entries."""
    if payload["truncated"]:
        return None
    return {str(entry["path"]): BaseFile(str(entry["mode"]), str(entry["sha"])) for entry in payload["tree"]}


def parse_blob(payload: Mapping[str, Any]) -> bytes:
    """The bytes of a blob. GitHub breaks the Base64 text into lines."""
    text = str(payload["content"])
    return base64.b64decode(text) if payload["encoding"] == "base64" else text.encode()


def render_tree_entry(entry: TreeEntry) -> dict[str, Any]:
    """One element of `tree` in "Create a tree": inline text, the SHA of a blob, or `sha: null` to delete the path."""
    where = {"path": entry.path, "mode": entry.mode, "type": "blob"}
    return {**where, "content": entry.text} if entry.text is not None else {**where, "sha": entry.blob_sha}


def render_blob(content: bytes) -> dict[str, str]:
    """The body of "Create a blob"."""
    return {"content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}
