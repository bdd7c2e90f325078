"""What a person can do to an issue or pull request on the web, by GitHub's rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from github_standin.model.state import ROLES, Issue, Pull, Repository, User


@dataclass(frozen=True, slots=True)
class Rights:
    """The forms that a person sees and can send."""

    comment: bool = False
    label: bool = False
    set_state: bool = False
    """Close and reopen."""
    mark_ready: bool = False
    """End the draft state of a pull request."""
    merge: bool = False


def may_see(repository: Repository, person: User | None) -> bool:
    """Whether a person can see the repository. None: nobody is signed in."""
    return not repository.private or (person is not None and repository.role_of(person) != "none")


def rights_of(repository: Repository, issue: Issue, person: User | None) -> Rights:
    """What a person can do. None: nobody is signed in."""
    if person is None or not may_see(repository, person):
        return Rights()
    role = ROLES.index(repository.role_of(person))
    triages, writes, wrote_it = role >= ROLES.index("triage"), role >= ROLES.index("write"), issue.user == person
    is_open = isinstance(issue, Pull) and issue.state == "open"
    is_draft, is_merged = isinstance(issue, Pull) and issue.draft, isinstance(issue, Pull) and bool(issue.merge)
    return Rights(
        comment=True,
        label=triages,
        set_state=(triages or wrote_it) and not is_merged,
        mark_ready=is_open and is_draft and (writes or wrote_it),
        merge=is_open and not is_draft and writes,
    )
