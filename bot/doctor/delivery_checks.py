"""Whether what GitHub sends comes here: its record of deliveries, beside our inbox. The judgement is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bot.config.settings import Settings
from bot.doctor.findings import Finding, Part
from bot.github.inspection import DeliveryFacts, Inspection
from handlers.events import is_routed
from handlers.inbox.inbox import fetch_known
from handlers.recovery.heartbeats import fetch_enabled
from handlers.recovery.missed import KEPT
from handlers.triggers.router import ROUTER
from runner.db.database import open_beside
from runner.db.errors import DatabaseError

BY_ITSELF = timedelta(seconds=60)
"""How soon a delivery is here: half of it is for forwarders, half for clocks that differ. Later ones were fetched."""

ANSWERS: Mapping[int, str] = {
    0: "nobody answers at public_url: is it reachable from GitHub, and does a proxy pass on POST /webhook?",
    401: "the webhook's secret on GitHub is none of webhook_secrets: make them the same",
    403: "something before the service refuses GitHub: let POST /webhook through",
    404: "public_url leads to something else: let POST /webhook through to the service",
    413: "something before the service takes no bodies of 25 MB: raise its limit",
}
"""What is to be done about deliveries that were answered so."""

FORWARD = (
    "is the forwarder running, does it pass bodies on to the byte, and is the webhook's secret one of webhook_secrets? "
    "The service's log names what it refuses"
)
LET_THROUGH = (
    "unless the database was restored since, something before the service answers for it: let POST /webhook through, "
    "or name that address as [server] webhook_url, so that what is missing is found by itself"
)


@dataclass(frozen=True, slots=True)
class Received:
    """What our inbox says."""

    since: datetime
    """It has every delivery that came from then on."""
    at: Mapping[str, datetime]
    """When deliveries came, by guid."""


async def check_deliveries(part: Part, inspection: Inspection, settings: Settings) -> Finding:
    """Look at the newest deliveries. Raises what `Inspection` does."""
    newest_first, now = await inspection.list_newest_deliveries(), datetime.now(UTC)
    received = await _read_inbox(settings.server.database_url, [one.guid for one in newest_first], now)
    return judge_deliveries(part, newest_first, received, now, is_relayed=settings.server.is_relayed())


async def _read_inbox(database_url: str, guids: Sequence[str], now: datetime) -> Received | None:
    """None where no service has run, or the database cannot be read: another check tells of that."""
    try:
        async with open_beside(database_url) as database:
            with database.explaining():
                async with database.read() as connection:
                    enabled = await fetch_enabled(connection)
                at = await fetch_known(database, guids)
    except DatabaseError:
        return None
    began = min((repository.enabled_at for repository in enabled.values()), default=now)
    return Received(max(began, now - KEPT), at)


def judge_deliveries(
    part: Part, newest_first: Sequence[DeliveryFacts], received: Received | None, now: datetime, *, is_relayed: bool
) -> Finding:
    """Whether what GitHub sent last arrived."""
    if not newest_first:
        return part.ok("deliveries", "GitHub has sent none yet")
    last = newest_first[0]
    failed = [one for one in newest_first if not one.succeeded]
    words = f"{len(failed)} of the last {len(newest_first)} did not arrive: {failed and _describe(failed[0])}"
    if last in failed:
        fix = ANSWERS.get(last.status_code, "see Advanced in the App's settings, and the service's log")
        return part.fail("deliveries", words, fix)
    if received and (finding := _judge_taken(part, newest_first, received, now, is_relayed=is_relayed)):
        return finding
    if failed:
        fix = "nothing: the newest one arrived, and what is missing is found by itself"
        return part.warn("deliveries", words, fix)
    verb = "arrived" if received or not is_relayed else "reached the forwarder"
    return part.ok("deliveries", f"the last {len(newest_first)} {verb}, the newest at {last.delivered_at:%F %R} UTC")


def _judge_taken(
    part: Part, newest_first: Sequence[DeliveryFacts], received: Received, now: datetime, *, is_relayed: bool
) -> Finding | None:
    """What is wrong with deliveries that somebody took, by GitHub's record; None when they all came here."""
    compared = [one for one in newest_first if _is_compared(one, received.since, now - BY_ITSELF)]
    astray = [one for one in compared if received.at.get(one.guid, now) - one.delivered_at > BY_ITSELF]
    if not astray:
        return None
    words = f"GitHub's record says that {len(compared)} were taken, and {len(astray)} did not come here by themselves"
    if compared[0] in astray:
        return part.fail("deliveries", words, FORWARD if is_relayed else LET_THROUGH)
    fix = "nothing: the newest one came, and what is missing is found by itself"
    return part.warn("deliveries", words, fix if is_relayed else LET_THROUGH)


def _is_compared(delivery: DeliveryFacts, since: datetime, until: datetime) -> bool:
    """Whether it has to be in the inbox: what no handler works never is."""
    is_worked = is_routed(ROUTER, delivery.event, delivery.action)
    return delivery.succeeded and is_worked and since <= delivery.delivered_at < until


def _describe(delivery: DeliveryFacts) -> str:
    return f"answered {delivery.status_code}" if delivery.status_code else delivery.status
