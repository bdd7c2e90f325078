"""A label asks for a job."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from gidgethub import sansio
from gidgethub.routing import Router

from handlers.context import Context
from handlers.events import IssueLabeled
from handlers.permissions import admit
from handlers.ports import GitHubError
from handlers.rules import RepositoryRules
from handlers.start import StartRequest, start_job

log = structlog.get_logger()

router = Router()

CLOSE = timedelta(minutes=1)
"""A label's time in the timeline that is further from the payload's belongs to another labelling."""

OUR_PREFIX = "ptq"
"""In a repository without configuration only labels that begin so are taken for a request."""


@router.register("issues", action="labeled")
async def on_issues_labeled(event: sansio.Event, context: Context) -> None:
    """Start the preset that the label stands for. Issue templates label for strangers, so the sender is checked."""
    labeled = IssueLabeled.model_validate(event.data)
    label = labeled.label.name
    rules = context.rules_for(labeled.repository.full_name)
    preset = _preset_of(rules, label) if rules else None
    asks = preset if rules else label.lower().startswith(OUR_PREFIX)
    if not asks or labeled.sender.is_bot or labeled.issue.pull_request:
        return
    admission = await admit(context, labeled.repository, labeled.issue.number, labeled.sender)
    if admission is None or rules is None or preset is None:
        return
    at = await _find_time(context, rules.name, labeled)
    await start_job(context, rules, draft_request(labeled, preset, at))


def draft_request(labeled: IssueLabeled, preset: str, at: datetime) -> StartRequest:
    """What a label that was put on at that time asks for, whoever tells us of it."""
    return StartRequest(
        repository=labeled.repository,
        issue=labeled.issue,
        preset=preset,
        requested_by=labeled.sender.login,
        triggered_at=at,
        trigger=name_trigger(labeled.label.name, at),
    )


def name_trigger(label: str, at: datetime) -> str:
    """The trigger of a label's job: GitHub's whole seconds tell two labellings apart."""
    return f"label {label} {at.isoformat()}"


def find_asked_preset(context: Context, labeled: IssueLabeled) -> str | None:
    """The preset that a label asks for; None when it asks for nothing, or nobody configured the repository."""
    rules = context.rules_for(labeled.repository.full_name)
    return _preset_of(rules, labeled.label.name) if rules and not labeled.issue.pull_request else None


async def _find_time(context: Context, repository: str, labeled: IssueLabeled) -> datetime:
    """When the label was put on: the issue is frozen as it was then, not when we got to it.

    The payload only says when the issue was last updated. The timeline knows better, unless it lags or may not be read.
    """
    about = labeled.issue.updated_at
    try:
        labellings = await context.github.list_labellings(repository, labeled.issue.number, labeled.label.name)
    except GitHubError as error:
        log.warning("label.time_unknown", reason=str(error))
        return about
    found = min((labelling.at for labelling in labellings), key=lambda at: abs(at - about), default=about)
    return found if abs(found - about) <= CLOSE else about


def _preset_of(rules: RepositoryRules, label: str) -> str | None:
    """The preset of a trigger label; GitHub's labels do not tell cases apart."""
    return next((preset for name, preset in rules.labels.items() if name.lower() == label.lower()), None)
