"""Handles labels: adding one starts a job, and removing it takes the request back. One label pauses the repository.

Closing an issue takes its request back, too.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from gidgethub import sansio
from gidgethub.routing import Router

from handlers.cases import casebook
from handlers.cases.case import close_issue
from handlers.commands.own_rules import narrow
from handlers.commands.permissions import admit, answer, identify
from handlers.commands.rights import Operation, Person, Surface
from handlers.context import Context
from handlers.effects.outbox import was_answered, write_reply
from handlers.events import IssueClosed, IssueLabeled, IssueUnlabeled, User, is_from_bot
from handlers.jobs.cancel import withdraw
from handlers.jobs.pauses import pause, resume
from handlers.jobs.start import StartRequest, start_job
from handlers.ports import GitHubError, NotFound
from handlers.rules import RepositoryRules, find_command
from handlers.words import replies
from runner.rows.pauses import fetch_pauses, note_label_restored

log = structlog.get_logger()

router = Router()

CLOSE = timedelta(minutes=1)
"""The most that the times in timeline and payload can differ for one labelling."""

RESTORE_REST = timedelta(minutes=15)
"""The shortest time between two writes that add a removed pause label again."""

OUR_PREFIX = "ptq"
"""In a repository without configuration, only labels with this prefix count as requests."""


@router.register("issues", action="labeled")
async def on_issues_labeled(event: sansio.Event, context: Context) -> None:
    """Start the label's preset. The sender is checked, because issue templates add labels for strangers.

    GitHub is asked whether the label is still on, because the delivery may be late or a copy.
    """
    if is_from_bot(event.data):
        return
    labeled = IssueLabeled.model_validate(event.data)
    label = labeled.label.name
    rules = context.rules_for(labeled.repository.full_name)
    if rules and is_pause(rules, label):
        await _pause(context, rules, labeled)
        return
    preset = _preset_of(rules, label) if rules else None
    is_request = bool(preset) if rules else label.lower().startswith(OUR_PREFIX)
    if not is_request or labeled.issue.pull_request:
        return
    asked = {Operation.START: find_command(preset) if preset else ""}
    person = await admit(context, labeled.repository, labeled.issue.number, labeled.sender, asked)
    if person is None:
        return
    # The repository's own rules may give the label another preset, or none.
    rules = person.rules
    if (preset := _preset_of(rules, label)) is None or not await _is_on(context, rules.name, labeled):
        return
    at = await _find_time(context, rules.name, labeled)
    await start_job(context, draft_request(person, labeled, preset, at))


@router.register("issues", action="unlabeled")
async def on_issues_unlabeled(event: sansio.Event, context: Context) -> None:
    """End a pause, or cancel the label's job if it has not begun.

    Everybody who can label may cancel in this way. Only people who may pause can end a pause. GitHub is asked whether
    the label is off, because the delivery may be late or a copy.
    """
    if not event.data.get("label"):
        return  # The payload has no label if it was deleted from the repository.
    unlabeled = IssueUnlabeled.model_validate(event.data)
    rules = context.rules_for(unlabeled.repository.full_name)
    if rules is None:
        return
    number, sender, label = unlabeled.issue.number, unlabeled.sender, unlabeled.label.name
    if not (is_pause(rules, label) or _preset_of(rules, label)):
        return
    if await _is_on(context, rules.name, unlabeled) is not False:
        return
    if is_pause(rules, label):
        trigger = f"delivery {event.delivery_id}"
        await lift_pause(context, rules, number, trigger, sender)
    else:
        # The repository's own rules may have given the label another preset.
        rules = await narrow(context, rules)
        if preset := _preset_of(rules, unlabeled.label.name):
            await _take_back(context, rules, number, sender, unlabeled.issue.updated_at, preset)


@router.register("issues", action="closed")
async def on_issues_closed(event: sansio.Event, context: Context) -> None:
    """Cancel the queued job of a closed issue, and stop watching its pull request.

    GitHub is asked whether the issue is closed, because the delivery may be late or a copy. It is asked only if there
    is something to end, because strangers can close their own issues as often as they like.
    """
    closed = IssueClosed.model_validate(event.data)
    rules = context.rules_for(closed.repository.full_name)
    if rules is None:
        return
    key = f"{rules.name}#{closed.issue.number}"
    async with context.db.read() as connection:
        case = await casebook.fetch_case(connection, key)
        queued = await casebook.fetch_queued_job(connection, key)
    # A job that has begun goes on.
    if case is None or (queued is None and close_issue(case, context.now()) == case):
        return
    if await _is_open(context, rules.name, closed.issue.number):
        return
    await _take_back(context, rules, closed.issue.number, closed.sender, closed.issue.updated_at)
    async with context.db.write() as connection:
        case = await casebook.fetch_case(connection, key)
        if case and (done := close_issue(case, context.now())) != case:
            await casebook.save_case(connection, done)
    context.notify()


async def _take_back(
    context: Context, rules: RepositoryRules, number: int, sender: User, at: datetime, preset: str | None = None
) -> None:
    """Cancel the issue's queued job if it was requested before `at`. If a `preset` is given, the job must have it."""
    person = Person(sender.login, Surface.THREAD, rules)
    async with context.db.write() as connection:
        job = await withdraw(connection, person, number, at, context.now(), preset)
    if job is None:
        return
    log.info("job.taken_back", **job.log_context(), by=sender.login)
    context.notify()


async def _is_open(context: Context, repository: str, number: int) -> bool:
    try:
        return (await context.github.fetch_issue(repository, number)).state == "open"
    except NotFound:
        return False


async def _is_on(context: Context, repository: str, labeled: IssueLabeled) -> bool | None:
    """Whether the label is on its issue now. Returns None if the issue is gone."""
    try:
        issue = await context.github.fetch_issue(repository, labeled.issue.number)
    except NotFound:
        return None
    return any(label.name.casefold() == labeled.label.name.casefold() for label in issue.labels)


def is_pause(rules: RepositoryRules, label: str) -> bool:
    """Whether a label pauses the repository."""
    return label.casefold() == rules.pause_label.casefold()


async def _pause(context: Context, rules: RepositoryRules, labeled: IssueLabeled) -> None:
    """Pause the repository, if the sender may do that."""
    number, sender = labeled.issue.number, labeled.sender
    person = await admit(context, labeled.repository, number, sender, {Operation.PAUSE: ""})
    if person is None or not await _is_on(context, rules.name, labeled):
        return
    at = await _find_time(context, rules.name, labeled)
    await pause_repository(context, person, number, name_trigger(labeled.label.name, at))


async def pause_repository(context: Context, person: Person, number: int, trigger: str) -> None:
    """Pause the repository because of a label on an issue.

    Each labelling pauses only once, even if both the webhook and the recovery bring it.
    """
    rules, occasion = person.rules, f"#{number} paused by {trigger}"
    async with context.db.write() as connection:
        # An operator may have ended the pause while the label is still on.
        if await was_answered(connection, rules.name, occasion):
            return
        if not await pause(connection, person, rules.name, context.now(), number):
            return
        body = replies.render_pause_begun(person.name, rules.pause_label)
        await write_reply(connection, context, rules.name, number, occasion, body)
    log.warning("repository.paused", repository=rules.name, by=person.name)
    context.notify()


async def lift_pause(context: Context, rules: RepositoryRules, number: int, trigger: str, by: User) -> None:
    """End the pause of a removed label if the person may do that. Otherwise the pause goes on, and the label returns.

    The check is needed because on GitHub, triage access is enough to remove labels. The label is not added again in two
    cases: if a bot removed it, because two bots would never stop; and if it was added again less than `RESTORE_REST`
    ago, because each time is a write of the App.
    """
    async with context.db.read() as connection:
        pauses = await fetch_pauses(connection)
    begun = [pause for pause in pauses if (pause.repository, pause.issue_number) == (rules.name.lower(), number)]
    if not begun:
        return
    person = await identify(context, rules, by.login, Surface.THREAD, Operation.RESUME)
    if person.may(Operation.RESUME):
        await _resume_repository(context, person, number, trigger)
        return
    log.warning("repository.not_resumed", repository=rules.name, by=by.login)
    restored_at, now = begun[0].label_restored_at, context.now()
    restores = not by.is_bot and (restored_at is None or now - restored_at >= RESTORE_REST)
    body = replies.render_pause_kept(by.login, rules.pause_label, rules.who_may_start, put_back=restores)
    await answer(context, person, number, f"#{number} may not resume @{by.login}", body)
    if restores:
        await context.github.add_label(rules.name, number, rules.pause_label)
        async with context.db.write() as connection:
            await note_label_restored(connection, begun[0], now)


async def _resume_repository(context: Context, person: Person, number: int, trigger: str) -> None:
    name = person.rules.name
    async with context.db.write() as connection:
        if not await resume(connection, person, name, number):
            return
        body = replies.render_pause_ended(person.name)
        await write_reply(connection, context, name, number, f"#{number} resumed by {trigger}", body)
    log.warning("repository.resumed", repository=name, by=person.name)
    context.notify()


def draft_request(person: Person, labeled: IssueLabeled, preset: str, at: datetime) -> StartRequest:
    """The request of a label that was added at the time `at`. Webhook and recovery use it."""
    return StartRequest(
        person=person,
        repository=labeled.repository,
        issue=labeled.issue,
        preset=preset,
        triggered_at=at,
        trigger=name_trigger(labeled.label.name, at),
    )


def name_trigger(label: str, at: datetime) -> str:
    """The trigger of a label's job. The time, in whole seconds, distinguishes labellings."""
    return f"label {label} {at.isoformat()}"


def find_asked_preset(context: Context, labeled: IssueLabeled) -> str | None:
    """The preset that a label asks for.

    None if the label has no preset, if the repository is not configured, or on a pull request.
    """
    rules = context.rules_for(labeled.repository.full_name)
    return _preset_of(rules, labeled.label.name) if rules and not labeled.issue.pull_request else None


async def _find_time(context: Context, repository: str, labeled: IssueLabeled) -> datetime:
    """When the label was added. The issue is later frozen as it was at that time.

    The payload has only the time of the issue's last update. The timeline has the exact time, unless the timeline lags
    or cannot be read.
    """
    updated_at = labeled.issue.updated_at
    try:
        labellings = await context.github.list_labellings(repository, labeled.issue.number, labeled.label.name)
    except GitHubError as error:
        log.warning("label.time_unknown", reason=str(error))
        return updated_at
    found = min((labelling.at for labelling in labellings), key=lambda at: abs(at - updated_at), default=updated_at)
    return found if abs(found - updated_at) <= CLOSE else updated_at


def _preset_of(rules: RepositoryRules, label: str) -> str | None:
    """The preset of a trigger label. Labels ignore case."""
    return next((preset for name, preset in rules.labels.items() if name.lower() == label.lower()), None)
