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
from handlers.events import Issue, IssueLabel, IssueLabeled, Repository, find_lane, is_routed
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
    forget_repositories,
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
class _Pass:
    """The state of one pass."""

    until: datetime
    enabled: Mapping[str, Enabled]
    repositories: dict[str, Repository] = field(default_factory=dict)
    missed: list[DeliveryAttempt] = field(default_factory=list)
    """The missed deliveries without their payloads, because there can be many. Each payload is fetched when needed."""
    labelled: dict[str, IssueLabeled] = field(default_factory=dict)
    """Delivery id -> the content of a missed delivery of a label, without the issue's text."""
    known: Collection[str] = ()
    """The ids of missed deliveries under which something was received, perhaps from somebody else."""
    due: list[UnansweredLabel] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """The repositories, in lower case, that are completely handled."""
    has_read_deliveries: bool = False
    recovered: int = 0
    lost: int = 0
    labels: int = 0


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
        self._was_away = False
        self._has_reported = False
        self._settled: set[str] = set()
        """Deliveries in GitHub's list that are handled."""
        self._complaints: dict[str, str] = {}
        self._absences: Counter[str] = Counter()
        """Repository in lower case -> the number of passes in a row in which GitHub did not show it."""
        self._told: frozenset[str] = frozenset()
        self._quiet: TTLCache[tuple[str, str], None] = TTLCache(
            KEPT_LABELS, REREAD_S, timer=lambda: context.now().timestamp()
        )
        """Pairs of issue and label, in lower case, whose last labelling needs nothing."""
        self._too_long: TTLCache[str, None] = TTLCache(KEPT_LABELS, REREAD_S, timer=lambda: context.now().timestamp())
        """Issues, in lower case, whose timeline is too long to be read."""
        self.held = 0
        """The number of labels that wait for the operator, because there are too many."""

    async def begin(self) -> None:
        """Find out how long the service was away, and store the configured repositories."""
        now, context = self._context.now(), self._context
        async with context.db.write() as connection:
            self._since = await fetch_beat(connection, ALIVE)
            self._was_away = self._since is not None and now - self._since >= AWAY
            await beat(connection, ALIVE, now)
            if await fetch_beat(connection, LOOKED) is None:
                await beat(connection, LOOKED, now)
            await forget_repositories(connection, context.repositories)
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
                await forget_repositories(connection, context.repositories)
                await enable_repositories(connection, context.repositories, now)
                enabled = await fetch_enabled(connection)
        this = _Pass(now, enabled)
        for rules in context.repositories.values():
            await self._restrict_if_private(this, rules)
        try:
            await self._read_deliveries(this, find_start(looked_at or now, now))
        except GitHubUnavailable as error:
            # The next pass does everything. Labels would now be answered too early, and without their deliveries.
            self._complain("deliveries", error)
            return
        for labeled in this.labelled.values():
            self._quiet.pop(_name_label(labeled.repository.full_name, labeled.issue, labeled.label.name), None)
        for rules in context.repositories.values():
            await self._search_labels(this, rules)
        await self._hold(this)
        for due in this.due:
            if not any(map(due.tells, this.labelled.values())):
                await self._start(this, due)
        for attempt in this.missed:
            await self._take(this, attempt)
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
        missed = choose_missed(attempts, self._wants, this.until - self._in_flight if self._is_relayed else None)
        this.known = await fetch_known(self._context.db, [attempt.guid for attempt in missed])
        this.has_read_deliveries = True
        # Ids are not signed, so somebody else may have used one first. A forwarder's successes prove nothing, and
        # comparing every received delivery with GitHub's would cost a request each.
        doubtful: Collection[str] = this.known
        if self._is_relayed:
            doubtful = await fetch_doubtful(self._context.db, {one.guid: one.event for one in missed})
        for attempt in missed:
            if attempt.guid in self._settled or (attempt.guid in this.known and attempt.guid not in doubtful):
                continue
            if (attempt.event, attempt.action) == ("issues", "labeled"):
                delivery = await self._fetch(this, attempt)
                if delivery is None:
                    continue
                if labeled := _find_labelling(self._context, delivery):
                    this.labelled[attempt.guid] = _forget_text(labeled)
            this.missed.append(attempt)

    async def _fetch(self, this: _Pass, attempt: DeliveryAttempt) -> MissedDelivery | None:
        """Fetch a delivery. None if its content was received, if GitHub does not have it, or does not answer now."""
        is_known = attempt.guid in this.known
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
                return MissedDelivery(attempt, payload)
            self._settled.add(attempt.guid)
        return None

    def _wants(self, attempt: DeliveryAttempt) -> bool:
        """Whether there is a handler for the event."""
        return is_routed(self._router, attempt.event, attempt.action)

    async def _restrict_if_private(self, this: _Pass, rules: RepositoryRules) -> None:
        """Close the pages of a repository that GitHub shows as private, or no longer shows."""
        key = rules.name.lower()
        try:
            is_closed = (await self._fetch_repository(this, rules)).private
        except (NotFound, NotInstalled):
            self._absences[key] += 1
            is_closed = self._absences[key] >= ABSENT
        except (GitHubError, GitHubUnavailable) as error:
            self._complain(rules.name, error)
            return
        else:
            del self._absences[key]
        if is_closed:
            await restrict_jobs(self._context.db, rules.name)

    async def _search_labels(self, this: _Pass, rules: RepositoryRules) -> None:
        """Find the due labels of one repository. A failure in one repository does not affect others."""
        key = rules.name.lower()
        enabled = this.enabled.get(key)
        if enabled is None:
            return
        this.seen.add(key)
        try:
            await self._settle_pauses(this, rules, enabled)
            found = [due for label in rules.labels for due in await self._search_label(this, rules, enabled, label)]
        except (GitHubError, GitHubUnavailable) as error:
            self._complain(rules.name, error)
            this.seen.discard(key)
        else:
            self._complaints.pop(rules.name, None)
            this.due += found

    async def _settle_pauses(self, this: _Pass, rules: RepositoryRules, enabled: Enabled) -> None:
        """Pause or resume the repository according to its labels. A closed issue still pauses, because strangers can
        close their issues."""
        async with self._context.db.read() as connection:
            pauses = [pause for pause in await fetch_pauses(connection) if pause.repository == rules.name.lower()]
        standing = {pause.issue_number: pause for pause in pauses if pause.issue_number != OPERATOR}
        for number, pause in standing.items():
            if pause.paused_at <= this.until - self._in_flight and await self._is_off(rules, number):
                await self._lift_pause(this, rules, number)
        async for issue, label, last in self._list_labelled(this, rules, enabled, rules.pause_label):
            trigger = name_trigger(label.name, last.at)
            if issue.number in standing:
                continue
            if person := await self._find_person(this, rules, issue, last, {Operation.PAUSE: ""}):
                await pause_repository(self._context, person, issue.number, trigger)
            self._quiet[_name_label(rules.name, issue, label.name)] = None

    async def _lift_pause(self, this: _Pass, rules: RepositoryRules, number: int) -> None:
        """End a pause whose label was removed, if GitHub says by whom, and they are allowed to."""
        by = None
        if (name := _name_issue(rules.name, number)) not in self._too_long:
            try:
                by = await self._context.github.find_remover(rules.name, number, rules.pause_label)
            except TooLong:
                self._too_long[name] = None
        if by is None:
            reason = "it is unknown who removed the label: ptq-bot resume ends the pause"
            self._complain(f"the pause by {rules.name}#{number}", reason)
            return
        await lift_pause(self._context, rules, number, f"a look at {this.until.isoformat()}", by)

    async def _is_off(self, rules: RepositoryRules, number: int) -> bool:
        """Whether the pause label is no longer on an issue. False if GitHub no longer shows the issue."""
        try:
            issue = await self._context.github.fetch_issue(rules.name, number)
        except NotFound as error:
            self._complain(f"the pause by {rules.name}#{number}", error)
            return False
        return not any(is_pause(rules, label.name) for label in issue.labels)

    async def _search_label(
        self, this: _Pass, rules: RepositoryRules, enabled: Enabled, label: str
    ) -> list[UnansweredLabel]:
        labelled = self._list_labelled(this, rules, enabled, label)
        found = [await self._admit(this, rules, issue, on, last) async for issue, on, last in labelled]
        return [due for due in found if due]

    async def _list_labelled(
        self, this: _Pass, rules: RepositoryRules, enabled: Enabled, label: str
    ) -> AsyncIterator[tuple[Issue, IssueLabel, Labelling]]:
        """The open issues with a label that a person has added recently, each with its last labelling."""
        github, until = self._context.github, this.until - self._in_flight
        since = find_labels_start(enabled.enabled_at, enabled.looked_at)
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
            if last := choose_due(labellings, since, until):
                yield issue, IssueLabel(name=name), last
            elif not labellings or labellings[-1].at <= until:
                self._quiet[key] = None

    async def _admit(
        self, this: _Pass, rules: RepositoryRules, issue: Issue, label: IssueLabel, last: Labelling
    ) -> UnansweredLabel | None:
        """The request of a label, if it was not answered and the person who added it may start jobs. Otherwise None."""
        key = _name_label(rules.name, issue, label.name)
        if await self._was_decided(rules.name, issue.number, label.name, last.at):
            self._quiet[key] = None
            return None
        repository = await self._fetch_repository(this, rules)
        if await is_waiting(self._context.db, f"{repository.full_name}#{issue.number}"):
            # A webhook about this issue arrived, and may be processed soon.
            this.seen.discard(rules.name.lower())
            return None
        labeled = IssueLabeled(issue=issue, label=label, repository=repository, sender=last.by)
        preset = find_asked_preset(self._context, labeled)
        asked = {Operation.START: find_command(preset or "")}
        person = await self._find_person(this, rules, issue, last, asked) if preset else None
        if preset and person:
            return UnansweredLabel(labeled, person, preset, last.at)
        self._quiet[key] = None
        return None

    async def _find_person(
        self, this: _Pass, rules: RepositoryRules, issue: Issue, last: Labelling, asked: Mapping[Operation, str]
    ) -> Person | None:
        """The person who added a label, if they may do what it asks for. Otherwise None."""
        repository = await self._fetch_repository(this, rules)
        return await admit(self._context, repository, issue.number, last.by, asked)

    async def _fetch_repository(self, this: _Pass, rules: RepositoryRules) -> Repository:
        if rules.name not in this.repositories:
            this.repositories[rules.name] = await self._context.github.fetch_repository(rules.name)
        return this.repositories[rules.name]

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
        too_many = len(this.due) > self._sweep_max
        issues = frozenset(due.issue for due in this.due) if too_many else frozenset()
        self.held = len(this.due) if too_many else 0
        if too_many:
            this.seen -= {due.labeled.repository.full_name.lower() for due in this.due}
            this.due = []
        if issues and issues != self._told:
            log.error("recovery.held", labels=self.held, sweep_max=self._sweep_max, issues=sorted(issues)[:NAMED])
            held = draft_held(issues, self.held, self._sweep_max, this.until)
            async with self._context.db.write() as connection:
                await insert_notification(connection, held)
        self._told = issues

    async def _start(self, this: _Pass, due: UnansweredLabel) -> None:
        """Answer a label whose delivery is gone, from the current issue, if the issue has not changed since then."""
        try:
            request = draft_request(due.person, due.labeled, due.preset, due.at)
            await start_job(self._context, replace(request, as_found=True))
        except GitHubUnavailable as error:
            self._complain(due.issue, error)
            this.seen.discard(due.person.rules.name.lower())
        except ClaimLost:
            raise  # The label stays due for the next pass.
        except Exception:
            log.exception("label.not_started", case=due.issue)
        else:
            this.labels += 1

    async def _take(self, this: _Pass, attempt: DeliveryAttempt) -> None:
        """Put a delivery into the inbox, unless its label is no longer on, or it is older than the configuration."""
        labeled, delivery = this.labelled.get(attempt.guid), await self._fetch(this, attempt)
        if delivery is None:
            if labeled:  # The next pass looks for the label again, because this pass had left it to the delivery.
                this.seen.discard(labeled.repository.full_name.lower())
            return
        enabled = this.enabled.get(delivery.repository)
        is_old = enabled is not None and attempt.delivered_at < enabled.enabled_at
        if is_old or (labeled and not self._is_due(this, labeled)):
            if is_old or delivery.repository in this.seen:
                self._settled.add(attempt.guid)
            return
        body = _write(delivery.payload)
        if await self._inbox.receive(attempt.guid, attempt.event, find_lane(delivery.payload), body):
            log.info("delivery.recovered", delivery=attempt.guid, event_name=attempt.event)
            this.recovered += 1

    def _is_due(self, this: _Pass, labeled: IssueLabeled) -> bool:
        """Whether a label still has to be answered. If the timeline is too long to read, its handler decides."""
        about = _name_issue(labeled.repository.full_name, labeled.issue.number)
        return about in self._too_long or any(due.tells(labeled) for due in this.due)

    async def _finish(self, this: _Pass) -> None:
        """Store how far this pass got, and report its results."""
        async with self._context.db.write() as connection:
            if this.has_read_deliveries:
                await beat(connection, LOOKED, this.until)
            for name in this.seen:
                await note_look(connection, name, this.until)
            if self._was_away or this.recovered or this.lost or this.labels:
                since = self._since if self._was_away else None
                told = draft_recovery(since, this.until, this.recovered, this.lost, this.labels)
                await insert_notification(connection, told)
        if this.recovered or this.lost or this.labels or not self._has_reported:
            log.info(
                "recovery.finished",
                since=self._since.isoformat() if self._since else None,
                until=this.until.isoformat(),
                recovered=this.recovered,
                missing=this.recovered + this.lost,
                labels=this.labels,
            )
        self._has_reported, self._since, self._was_away = True, this.until, False
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


def _find_labelling(context: Context, delivery: MissedDelivery) -> IssueLabeled | None:
    """The event in a delivery of a label. None if the label requests nothing, or if the payload is not valid."""
    try:
        labeled = IssueLabeled.model_validate(delivery.payload)
    except ValidationError:
        return None  # The inbox will report the failure.
    return labeled if find_asked_preset(context, labeled) else None


def _forget_text(labeled: IssueLabeled) -> IssueLabeled:
    return labeled.model_copy(update={"issue": labeled.issue.model_copy(update={"body": None})})
