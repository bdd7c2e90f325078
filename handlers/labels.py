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
    triggered_at = await _find_time(context, rules.name, labeled)
    request = StartRequest(
        repository=labeled.repository,
        issue=labeled.issue,
        preset=preset,
        requested_by=labeled.sender.login,
        triggered_at=triggered_at,
        trigger=f"label {label} {labeled.issue.updated_at.isoformat()}",
    )
    await start_job(context, rules, request)


async def _find_time(context: Context, repository: str, labeled: IssueLabeled) -> datetime:
    """When the label was put on: the issue is frozen as it was then, not when we got to it.

    The payload only says when the issue was last updated. The timeline knows better, unless it lags or may not be read.
    """
    about = labeled.issue.updated_at
    try:
        found = await context.github.fetch_labelled_at(repository, labeled.issue.number, labeled.label.name)
    except GitHubError as error:
        log.warning("label.time_unknown", reason=str(error))
        return about
    return found if found and abs(found - about) <= CLOSE else about


def _preset_of(rules: RepositoryRules, label: str) -> str | None:
    """The preset of a trigger label; GitHub's labels do not tell cases apart."""
    return next((preset for name, preset in rules.labels.items() if name.lower() == label.lower()), None)
