"""Decides which missed deliveries to process, and which labels are due.

Pure functions; `recovery` asks GitHub and acts.

GitHub sends each delivery once (https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from handlers.commands.rights import Person
from handlers.events import IssueLabeled
from handlers.ports import DeliveryAttempt, Labelling
from handlers.triggers.labels import CLOSE

KEPT = timedelta(days=3)
"""How long GitHub can redeliver, and how far we look back."""

OVERLAP = timedelta(minutes=10)
"""How far a pass overlaps the one before, because clocks differ and GitHub's records appear late."""


@dataclass(frozen=True, slots=True)
class MissedDelivery:
    """A delivery that may never have arrived. Its payload is fetched when needed, because there can be many."""

    attempt: DeliveryAttempt
    is_known: bool
    """Whether something was received under its id, perhaps from somebody else."""
    labeled: IssueLabeled | None = None
    """The content of a delivery of a label, without the issue's text. None if it is about something else."""


@dataclass(frozen=True, slots=True)
class UnansweredLabel:
    """A label on an open issue, added by somebody who may start jobs, without a job or a reply."""

    labeled: IssueLabeled
    person: Person
    preset: str
    at: datetime

    @property
    def issue(self) -> str:
        """The issue, as `owner/name#number`."""
        return f"{self.labeled.repository.full_name}#{self.labeled.issue.number}"

    def tells(self, labeled: IssueLabeled) -> bool:
        """Whether a delivery is about this labelling. The delivery's only time is that of the issue's last update."""
        ours = self.labeled
        return (
            ours.repository.full_name.lower() == labeled.repository.full_name.lower()
            and ours.issue.number == labeled.issue.number
            and ours.label.name.lower() == labeled.label.name.lower()
            and abs(labeled.issue.updated_at - self.at) <= CLOSE
        )


def find_start(looked_at: datetime, now: datetime) -> datetime:
    """The start of the search for deliveries, after a pass that covered everything before `looked_at`."""
    return max(looked_at - OVERLAP, now - KEPT)


def choose_missed(
    attempts: Iterable[DeliveryAttempt], wanted: Callable[[DeliveryAttempt], bool], doubted_until: datetime | None
) -> list[DeliveryAttempt]:
    """The newest attempt at each wanted delivery that may be missing, in the order of their first attempts.

    A delivery with a successful attempt was received. But if a forwarder answers GitHub, a success until
    `doubted_until` proves nothing. A later success counts, because the forwarder may still be at work. Without a
    forwarder, `doubted_until` is None.
    """

    def is_settled(attempt: DeliveryAttempt) -> bool:
        return attempt.succeeded and (doubted_until is None or attempt.delivered_at > doubted_until)

    by_guid: dict[str, list[DeliveryAttempt]] = {}
    for attempt in sorted(attempts, key=lambda attempt: (attempt.delivered_at, attempt.id)):
        by_guid.setdefault(attempt.guid, []).append(attempt)
    missed = (tries for tries in by_guid.values() if not any(map(is_settled, tries)))
    return [tries[-1] for tries in missed if wanted(tries[-1])]


def find_labels_start(enabled_at: datetime, looked_at: datetime) -> datetime:
    """When the search for labels starts: shortly before the last pass, but not before the repository was configured."""
    return max(enabled_at, looked_at - OVERLAP)


def choose_due(labellings: Sequence[Labelling], since: datetime, until: datetime) -> Labelling | None:
    """The labelling that requests a job: the last one, if a person added it between `since` and `until`. Or None.

    The webhook of a labelling after `until` may still be in progress.
    """
    last = labellings[-1] if labellings else None
    return last if last and not last.by.is_bot and since <= last.at <= until else None
