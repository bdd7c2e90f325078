"""A label asks for a job."""

from __future__ import annotations

from gidgethub import sansio
from gidgethub.routing import Router

from handlers.context import Context
from handlers.events import IssueLabeled
from handlers.permissions import admit
from handlers.rules import RepositoryRules
from handlers.start import StartRequest, start_job

router = Router()

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
    # The payload does not say when; the timeline does, and the issue was frozen then, not when we got to it.
    labelled_at = await context.github.fetch_labelled_at(rules.name, labeled.issue.number, label)
    triggered_at = labelled_at or labeled.issue.updated_at
    request = StartRequest(
        repository=labeled.repository,
        issue=labeled.issue,
        preset=preset,
        requested_by=labeled.sender.login,
        triggered_at=triggered_at,
        trigger=f"label {label} {triggered_at.isoformat()}",
    )
    await start_job(context, rules, request)


def _preset_of(rules: RepositoryRules, label: str) -> str | None:
    """The preset of a trigger label; GitHub's labels do not tell cases apart."""
    return next((preset for name, preset in rules.labels.items() if name.lower() == label.lower()), None)
