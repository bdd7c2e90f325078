"""Finds events that GitHub could not deliver: missed deliveries, unanswered labels, and pauses.

Labels are a state, so they are read from the issues: a removed label, or one on a closed issue, requests nothing. If
GitHub still has the label's delivery, the delivery is processed, because it has the issue as it was then.
All other missed deliveries go through the inbox as the webhook would have stored them, oldest first and one at a time,
because strangers can cause thousands during an outage. A job's id is derived from its trigger, so it does no harm if a
webhook, another replica or another pass finds the same event.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from cachetools import TTLCache
from gidgethub.routing import Router
from pydantic import ValidationError

from handlers.cases.private_repositories import restrict_jobs
from handlers.commands.permissions import admit
from handlers.commands.rights import Operation, Person
from handlers.context import Context
from handlers.events import Issue, IssueLabel, IssueLabeled, Repository, find_lane, find_repository, is_routed
from handlers.inbox.inbox import Inbox, fetch_doubtful, fetch_known, is_waiting
from handlers.jobs.start import start_job, was_decided
from handlers.notices.notifications import NAMED, draft_held, draft_recovery
from handlers.ports import DeliveryAttempt, GitHubError, GitHubUnavailable, Labelling, NotFound, NotInstalled, TooLong
from handlers.recovery.heartbeats import (
    ALIVE,
    LOOKED,
    Enabled,
    beat,
    enable_repositories,
    fetch_beat,
    fetch_enabled,
    note_look,
)
from handlers.recovery.missed import (
    MissedDelivery,
    UnansweredLabel,
    choose_due,
    choose_missed,
    find_labels_start,
    find_start,
)
from handlers.rules import RepositoryRules, find_command
from handlers.triggers.labels import (
    draft_request,
    find_asked_preset,
    is_pause,
    lift_pause,
    name_trigger,
    pause_repository,
)
from runner.rows.claims import ClaimLost
from runner.rows.notifications import insert_notification
from runner.rows.pauses import OPERATOR, fetch_pauses

log = structlog.get_logger()

SKEW_S = 5
"""The most seconds between the times in payload and timeline for the same labelling."""

ABSENT = 5
"""A repository counts as private, deleted, or without the App if GitHub does not show it in this many passes in a row.
A single 404 may be one of GitHub's mistakes."""

REREAD_S = 3600.0
"""After this time, an issue's timeline is read again for a label that needs nothing. It is read again at once if a
delivery about the label was missed. The time limits the work that strangers cause: anybody can make a timeline long,
and comment so that the issue is looked at."""

KEPT_LABELS = 10_000
"""How many labels that need nothing, and how many issues with long timelines, are in memory."""

AWAY = timedelta(minutes=5)
"""After a longer absence of the service, the operator is notified, even if nothing was missed."""


@dataclass(slots=True)
class _Look:
    """The state of one pass for one repository."""

    rules: RepositoryRules
    enabled: Enabled
    until: datetime
    """Labels that were added later are left to the webhook."""
    repository: Repository | None = None
    """The repository as GitHub shows it, as soon as it was fetched."""
    is_complete: bool = False
    """Whether all labels up to this pass are handled."""


@dataclass(slots=True)
class _Pass:
    """The state of one pass."""

    now: datetime
    """When it began."""
    looks: Mapping[str, _Look]
    """By the repository's name, in lower case."""
    missed: list[MissedDelivery] = field(default_factory=list)
    due: list[UnansweredLabel] = field(default_factory=list)
    has_read_deliveries: bool = False
    recovered: int = 0
    lost: int = 0
    labels: int = 0

    def look_again(self, repository: str) -> None:
        """Leave labels of a repository to the next pass."""
        if look := self.looks.get(repository.lower()):
            look.is_complete = False


class Recovery:
    """Call `begin` once, then `beat` every minute and `step` every few minutes: each is a pass of a loop."""

    def __init__(
        self,
        context: Context,
        inbox: Inbox,
        router: Router,
        *,
        sweep_max: int,
        in_flight_s: float,
        is_relayed: bool,
    ) -> None:
        """`sweep_max` limits the labels that one pass answers. Labels newer than `in_flight_s` are left to the webhook.

        `is_relayed` says that a forwarder answers GitHub, so that only the inbox shows what was received.
        """
        self._context = context
        self._inbox = inbox
        self._router = router
        self._sweep_max = sweep_max
        self._in_flight = timedelta(seconds=in_flight_s)
        self._is_relayed = is_relayed
        self._since: datetime | None = None
        """When the service was last alive before it began, and then the time of the last pass."""
        self._away_since: datetime | None = None
        """The start of a long absence, until it is reported."""
        self._has_reported = False
        self._settled: set[str] = set()
        """Deliveries in GitHub's list that are handled."""
        self._complaints: dict[str, str] = {}
        self._absences: Counter[str] = Counter()
        """Repository in lower case -> the number of passes in a row in which GitHub did not show it."""
        self._held: Counter[str] = Counter()
        """Issue -> the number of its labels that wait for the operator, because there are too many in all."""
        self._quiet: TTLCache[tuple[str, str], None] = TTLCache(
            KEPT_LABELS, REREAD_S, timer=lambda: context.now().timestamp()
        )
        """Pairs of issue and label, in lower case, whose last labelling needs nothing."""
        self._too_long: TTLCache[str, None] = TTLCache(KEPT_LABELS, REREAD_S, timer=lambda: context.now().timestamp())
        """Issues, in lower case, whose timeline is too long to be read."""

    @property
    def held(self) -> int:
        """The number of labels that wait for the operator."""
        return self._held.total()

    async def begin(self) -> None:
        """Find out how long the service was away, and store the configured repositories."""
        now, context = self._context.now(), self._context
        async with context.db.write() as connection:
            self._since = await fetch_beat(connection, ALIVE)
            if self._since and now - self._since >= AWAY:
                self._away_since = self._since
            await beat(connection, ALIVE, now)
            if await fetch_beat(connection, LOOKED) is None:
                await beat(connection, LOOKED, now)
            await enable_repositories(connection, context.repositories, now)

    async def beat(self) -> None:
        """Store that the service is alive."""
        async with self._context.db.write() as connection:
            await beat(connection, ALIVE, self._context.now())

    async def step(self) -> None:
        """One pass: compare GitHub's records with ours, and handle what is missing."""
        now, context = self._context.now(), self._context
        async with context.db.read() as connection:
            looked_at = await fetch_beat(connection, LOOKED)
            enabled = await fetch_enabled(connection)
        if enabled.keys() != {name.lower() for name in context.repositories}:
            # The configuration was read again, or another replica had an older one.
            async with context.db.write() as connection:
                await enable_repositories(connection, context.repositories, now)
                enabled = await fetch_enabled(connection)
        until = now - self._in_flight
        configured = [(name, rules) for name, rules in context.repositories.items() if name in enabled]
        this = _Pass(now, {name: _Look(rules, enabled[name], until) for name, rules in configured})
        for look in this.looks.values():
            await self._restrict_if_private(look)
        try:
            await self._read_deliveries(this, find_start(looked_at or now, now))
        except GitHubUnavailable as error:
            # The next pass does everything. Labels would now be answered too early, and without their deliveries.
            self._complain("deliveries", error)
            return
        labelled = [missed.labeled for missed in this.missed if missed.labeled]
        for labeled in labelled:
            self._quiet.pop(_name_label(labeled.repository.full_name, labeled.issue, labeled.label.name), None)
        for look in this.looks.values():
            this.due += await self._search_labels(look)
        await self._hold(this)
        for due in this.due:
            if not any(map(due.tells, labelled)):
                await self._start(this, due)
        for missed in this.missed:
            await self._take(this, missed)
        await self._finish(this)

    async def _read_deliveries(self, this: _Pass, since: datetime) -> None:
        """Find the missed deliveries, and read those about labels. Raises `GitHubUnavailable`."""
        try:
            attempts = await self._context.github.list_deliveries(since)
        except GitHubError as error:
            self._complain("deliveries", error)
            return
        self._complaints.pop("deliveries", None)
        self._settled &= {attempt.guid for attempt in attempts}
        missed = choose_missed(attempts, self._wants, this.now - self._in_flight if self._is_relayed else None)
        known: Collection[str] = await fetch_known(self._context.db, [attempt.guid for attempt in missed])
        this.has_read_deliveries = True
        # Ids are not signed, so somebody else may have used one first. A forwarder's successes prove nothing, and
        # comparing every received delivery with GitHub's would cost a request each.
        doubtful = known
        if self._is_relayed:
            doubtful = await fetch_doubtful(self._context.db, {one.guid: one.event for one in missed})
        for attempt in missed:
            is_known = attempt.guid in known
            if attempt.guid in self._settled or (is_known and attempt.guid not in doubtful):
                continue
            one = MissedDelivery(attempt, is_known)
            if (attempt.event, attempt.action) == ("issues", "labeled"):
                payload = await self._fetch(this, one)
                if payload is None:
                    continue
                one = replace(one, labeled=_find_labelling(self._context, payload))
            this.missed.append(one)

    async def _fetch(self, this: _Pass, missed: MissedDelivery) -> Mapping[str, Any] | None:
        """Fetch a payload. None if its content was received, if GitHub does not have it, or does not answer now."""
        attempt, is_known = missed.attempt, missed.is_known
        try:
            payload = await self._context.github.fetch_payload(attempt.id)
        except GitHubError as error:
            self._settled.add(attempt.guid)
            if not is_known:
                log.warning("delivery.lost", delivery=attempt.guid, event_name=attempt.event, reason=str(error))
                this.lost += 1
        except GitHubUnavailable as error:
            self._complain(f"delivery {attempt.guid}", error)
            this.has_read_deliveries = False
        else:
            if not is_known or not await self._inbox.holds(attempt.guid, attempt.event, _write(payload)):
                return payload
            self._settled.add(attempt.guid)
        return None

    def _wants(self, attempt: DeliveryAttempt) -> bool:
        """Whether there is a handler for the event."""
        return is_routed(self._router, attempt.event, attempt.action)

    async def _restrict_if_private(self, look: _Look) -> None:
        """Close the pages of a repository that GitHub shows as private, or no longer shows."""
        name = look.rules.name
        key = name.lower()
        try:
            is_closed = (await self._fetch_repository(look)).private
        except (NotFound, NotInstalled):
            self._absences[key] += 1
            is_closed = self._absences[key] >= ABSENT
        except (GitHubError, GitHubUnavailable) as error:
            self._complain(name, error)
            return
        else:
            del self._absences[key]
        if is_closed:
            await restrict_jobs(self._context.db, name)

    async def _search_labels(self, look: _Look) -> list[UnansweredLabel]:
        """The due labels of one repository. A failure in one repository does not affect others."""
        rules = look.rules
        look.is_complete = True
        try:
            await self._settle_pauses(look)
            found = [
                await self._admit(look, issue, on, last)
                for label in rules.labels
                async for issue, on, last in self._list_labelled(look, label)
            ]
        except (GitHubError, GitHubUnavailable) as error:
            self._complain(rules.name, error)
            look.is_complete = False
            return []
        self._complaints.pop(rules.name, None)
        return [due for due in found if due]

    async def _settle_pauses(self, look: _Look) -> None:
        """Pause or resume the repository according to its labels. A closed issue still pauses, because strangers can
        close their issues."""
        rules = look.rules
        async with self._context.db.read() as connection:
            pauses = [pause for pause in await fetch_pauses(connection) if pause.repository == rules.name.lower()]
        standing = {pause.issue_number: pause for pause in pauses if pause.issue_number != OPERATOR}
        for number, pause in standing.items():
            if pause.paused_at <= look.until and await self._is_off(rules, number):
                await self._lift_pause(look, number)
        async for issue, label, last in self._list_labelled(look, rules.pause_label):
            if issue.number in standing:
                continue
            if person := await self._find_person(look, issue, last, {Operation.PAUSE: ""}):
                await pause_repository(self._context, person, issue.number, name_trigger(label.name, last.at))
            self._quiet[_name_label(rules.name, issue, label.name)] = None

    async def _lift_pause(self, look: _Look, number: int) -> None:
        """End a pause whose label was removed, if GitHub says by whom, and they are allowed to."""
        rules, by = look.rules, None
        if (name := _name_issue(rules.name, number)) not in self._too_long:
            try:
                by = await self._context.github.find_remover(rules.name, number, rules.pause_label)
            except TooLong:
                self._too_long[name] = None
        if by is None:
            reason = "it is unknown who removed the label: ptq-bot resume ends the pause"
            self._complain(f"the pause by {rules.name}#{number}", reason)
            return
        await lift_pause(self._context, rules, number, f"a look at {look.until.isoformat()}", by)

    async def _is_off(self, rules: RepositoryRules, number: int) -> bool:
        """Whether the pause label is no longer on an issue. False if GitHub no longer shows the issue."""
        try:
            issue = await self._context.github.fetch_issue(rules.name, number)
        except NotFound as error:
            self._complain(f"the pause by {rules.name}#{number}", error)
            return False
        return not any(is_pause(rules, label.name) for label in issue.labels)

    async def _list_labelled(self, look: _Look, label: str) -> AsyncIterator[tuple[Issue, IssueLabel, Labelling]]:
        """The open issues with a label that a person has added recently, each with its last labelling."""
        github, rules = self._context.github, look.rules
        since = find_labels_start(look.enabled.enabled_at, look.enabled.looked_at)
        # All pages are read first: if an issue were closed in between, the issues on the next pages would move.
        issues = [one async for one in github.list_labelled_issues(rules.name, label, since) if not one.pull_request]
        for issue in issues:
            name = next((on.name for on in issue.labels if on.name.lower() == label.lower()), label)
            key, about = _name_label(rules.name, issue, name), _name_issue(rules.name, issue.number)
            if key in self._quiet or about in self._too_long:
                continue
            try:
                labellings = await github.list_labellings(rules.name, issue.number, name)
            except TooLong as error:
                self._complain(about, error)
                self._too_long[about] = None
                continue
            if last := choose_due(labellings, since, look.until):
                yield issue, IssueLabel(name=name), last
            elif not labellings or labellings[-1].at <= look.until:
                self._quiet[key] = None

    async def _admit(self, look: _Look, issue: Issue, label: IssueLabel, last: Labelling) -> UnansweredLabel | None:
        """The request of a label, if it was not answered and the person who added it may start jobs. Otherwise None."""
        name = look.rules.name
        key = _name_label(name, issue, label.name)
        if await self._was_decided(name, issue.number, label.name, last.at):
            self._quiet[key] = None
            return None
        repository = await self._fetch_repository(look)
        if await is_waiting(self._context.db, f"{repository.full_name}#{issue.number}"):
            # A webhook about this issue arrived, and may be processed soon.
            look.is_complete = False
            return None
        labeled = IssueLabeled(issue=issue, label=label, repository=repository, sender=last.by)
        preset = find_asked_preset(self._context, labeled)
        asked = {Operation.START: find_command(preset or "")}
        person = await self._find_person(look, issue, last, asked) if preset else None
        if preset and person:
            return UnansweredLabel(labeled, person, preset, last.at)
        self._quiet[key] = None
        return None

    async def _find_person(
        self, look: _Look, issue: Issue, last: Labelling, asked: Mapping[Operation, str]
    ) -> Person | None:
        """The person who added a label, if they may do what it asks for. Otherwise None."""
        repository = await self._fetch_repository(look)
        return await admit(self._context, repository, issue.number, last.by, asked)

    async def _fetch_repository(self, look: _Look) -> Repository:
        if look.repository is None:
            look.repository = await self._context.github.fetch_repository(look.rules.name)
        return look.repository

    async def _was_decided(self, repository: str, issue_number: int, label: str, at: datetime) -> bool:
        """Whether a label that was added at this time has its job or reply already.

        The trigger may have been named after the time in the payload, which can differ from the one in the timeline.
        """
        async with self._context.db.read() as connection:
            for seconds in range(-SKEW_S, SKEW_S + 1):
                trigger = name_trigger(label, at + timedelta(seconds=seconds))
                if await was_decided(connection, self._context, repository, issue_number, trigger):
                    return True
        return False

    async def _hold(self, this: _Pass) -> None:
        """If there are more labels than the operator wants to start at once, start none, and notify the operator."""
        held: Counter[str] = Counter()
        if len(this.due) > self._sweep_max:
            held.update(due.issue for due in this.due)
            for due in this.due:
                this.look_again(due.person.rules.name)
            this.due = []
        if held and held.keys() != self._held.keys():
            labels = held.total()
            log.error("recovery.held", labels=labels, sweep_max=self._sweep_max, issues=sorted(held)[:NAMED])
            async with self._context.db.write() as connection:
                await insert_notification(connection, draft_held(held, labels, self._sweep_max, this.now))
        self._held = held

    async def _start(self, this: _Pass, due: UnansweredLabel) -> None:
        """Answer a label whose delivery is gone, from the current issue, if the issue has not changed since then."""
        try:
            request = draft_request(due.person, due.labeled, due.preset, due.at)
            await start_job(self._context, replace(request, as_found=True))
        except GitHubUnavailable as error:
            self._complain(due.issue, error)
            this.look_again(due.person.rules.name)
        except ClaimLost:
            raise  # The label stays due for the next pass.
        except Exception:
            log.exception("label.not_started", case=due.issue)
        else:
            this.labels += 1

    async def _take(self, this: _Pass, missed: MissedDelivery) -> None:
        """Put a delivery into the inbox, unless its label is no longer on, or it is older than the configuration."""
        attempt, labeled, payload = missed.attempt, missed.labeled, await self._fetch(this, missed)
        if payload is None:
            if labeled:  # The next pass looks for the label again, because this pass had left it to the delivery.
                this.look_again(labeled.repository.full_name)
            return
        look = this.looks.get(find_repository(payload)[0].lower())
        is_old = look is not None and attempt.delivered_at < look.enabled.enabled_at
        if is_old or (labeled and not self._is_due(this, labeled)):
            if is_old or (look and look.is_complete):
                self._settled.add(attempt.guid)
            return
        if await self._inbox.receive(attempt.guid, attempt.event, find_lane(payload), _write(payload)):
            log.info("delivery.recovered", delivery=attempt.guid, event_name=attempt.event)
            this.recovered += 1

    def _is_due(self, this: _Pass, labeled: IssueLabeled) -> bool:
        """Whether a label still has to be answered. If the timeline is too long to read, its handler decides."""
        about = _name_issue(labeled.repository.full_name, labeled.issue.number)
        return about in self._too_long or any(due.tells(labeled) for due in this.due)

    async def _finish(self, this: _Pass) -> None:
        """Store how far this pass got, and report its results."""
        has_found = this.recovered or this.lost or this.labels
        async with self._context.db.write() as connection:
            if this.has_read_deliveries:
                await beat(connection, LOOKED, this.now)
            for name in [name for name, look in this.looks.items() if look.is_complete]:
                await note_look(connection, name, this.now)
            if self._away_since or has_found:
                told = draft_recovery(self._away_since, this.now, this.recovered, this.lost, this.labels)
                await insert_notification(connection, told)
        if has_found or not self._has_reported:
            log.info(
                "recovery.finished",
                since=self._since.isoformat() if self._since else None,
                until=this.now.isoformat(),
                recovered=this.recovered,
                missing=this.recovered + this.lost,
                labels=this.labels,
            )
        self._has_reported, self._since, self._away_since = True, this.now, None
        if this.recovered:
            self._context.notify()

    def _complain(self, about: str, error: Exception | str) -> None:
        """Log a refusal of GitHub once, until it changes."""
        if self._complaints.get(about) != str(error):
            self._complaints[about] = str(error)
            log.warning("recovery.refused", about=about, reason=str(error))


def _write(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()


def _name_label(repository: str, issue: Issue, label: str) -> tuple[str, str]:
    return _name_issue(repository, issue.number), label.lower()


def _name_issue(repository: str, number: int) -> str:
    return f"{repository.lower()}#{number}"


def _find_labelling(context: Context, payload: Mapping[str, Any]) -> IssueLabeled | None:
    """The event in a delivery of a label, without the issue's text.

    None if the label requests nothing, or if the payload is not valid.
    """
    try:
        labeled = IssueLabeled.model_validate(payload)
    except ValidationError:
        return None  # The inbox will report the failure.
    if not find_asked_preset(context, labeled):
        return None
    return labeled.model_copy(update={"issue": labeled.issue.model_copy(update={"body": None})})
