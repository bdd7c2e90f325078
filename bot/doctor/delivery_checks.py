"""Compares GitHub's record of deliveries with the inbox. The judgement is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bot.config.settings import Settings
from bot.doctor.findings import Cause, Finding, Part
from bot.github.inspection import DeliveryFacts, Inspection
from handlers.events import is_routed
from handlers.inbox.inbox import fetch_known
from handlers.recovery.heartbeats import fetch_enabled
from handlers.recovery.missed import KEPT
from handlers.triggers.router import ROUTER
from runner.db.database import open_existing_database
from runner.db.errors import DatabaseError

BY_ITSELF = timedelta(seconds=60)
"""The most time between GitHub's attempt and the arrival: half for forwarders, half for clock skew. A later delivery
was fetched by recovery."""

ANSWERS: Mapping[int, str] = {
    0: "let GitHub reach public_url, and let the proxy forward POST /webhook",
    401: "enter one of webhook_secrets as the secret in the App's settings, under Webhook",
    403: "allow POST /webhook in the proxy in front of the service, which rejects GitHub",
    404: "forward POST /webhook to the service: public_url leads to another server",
    413: "allow bodies of 25 MB in the proxy in front of the service",
}
"""Status of a failed delivery -> the fix."""

REDELIVER = "then press Redeliver in the App's settings, under Advanced"

NOBODY = (0, 502, 503, 504)
"""Statuses if the service did not run."""

FORWARD = (
    "check that the forwarder runs and forwards request bodies unchanged, and that the webhook secret is in "
    "webhook_secrets; the service's log lists refused deliveries"
)
LET_THROUGH = (
    "unless the database was restored since then, a proxy answers instead of the service: forward POST /webhook, "
    "or set [server] webhook_url to that address, so that missing deliveries are recovered"
)


@dataclass(frozen=True, slots=True)
class Received:
    """The contents of the inbox."""

    since: datetime
    """The inbox has every delivery since then."""
    at: Mapping[str, datetime]
    """Guid -> time of arrival."""


async def check_deliveries(part: Part, inspection: Inspection, settings: Settings) -> Finding:
    """Check the newest deliveries. Raises what `Inspection` raises."""
    newest_first, now = await inspection.list_newest_deliveries(), datetime.now(UTC)
    received = await _read_inbox(settings.server.database_url, [one.guid for one in newest_first], now)
    return judge_deliveries(part, newest_first, received, now, is_relayed=settings.server.is_relayed())


async def _read_inbox(database_url: str, guids: Sequence[str], now: datetime) -> Received | None:
    """None if no service has run, or if the database cannot be read, which another check reports."""
    try:
        async with open_existing_database(database_url) as database:
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
    """Whether the last deliveries arrived."""
    if not newest_first:
        return part.ok("deliveries", "none sent yet")
    last = newest_first[0]
    failed = [one for one in newest_first if not one.succeeded]
    words = f"{len(failed)} of the last {len(newest_first)} did not arrive: {failed and _describe(failed[0])}"
    if last in failed:
        fix = ANSWERS.get(last.status_code, "correct what the service's log says about it")
        causes = [Cause(part.about, "webhook")]
        if last.status_code in NOBODY:
            causes.append(Cause("service", "running", may_be_warning=True))
        return part.fail("deliveries", words, f"{fix}; {REDELIVER}", *causes)
    if received and (finding := _judge_taken(part, newest_first, received, now, is_relayed=is_relayed)):
        return finding
    if failed:
        fix = "none needed: the newest one arrived, and missing deliveries are recovered automatically"
        return part.warn("deliveries", words, fix)
    verb = "arrived" if received or not is_relayed else "reached the forwarder"
    return part.ok("deliveries", f"the last {len(newest_first)} {verb}, the newest at {last.delivered_at:%F %R} UTC")


def _judge_taken(
    part: Part, newest_first: Sequence[DeliveryFacts], received: Received, now: datetime, *, is_relayed: bool
) -> Finding | None:
    """The problem with deliveries that were accepted according to GitHub; None if all are in the inbox."""
    compared = [one for one in newest_first if _is_compared(one, received.since, now - BY_ITSELF)]
    astray = [one for one in compared if received.at.get(one.guid, now) - one.delivered_at > BY_ITSELF]
    if not astray:
        return None
    words = f"GitHub delivered {len(compared)}, but {len(astray)} did not reach the service directly"
    if compared[0] in astray:
        return part.fail("deliveries", words, FORWARD if is_relayed else LET_THROUGH)
    fix = "none needed: the newest one arrived, and missing deliveries are recovered automatically"
    return part.warn("deliveries", words, fix if is_relayed else LET_THROUGH)


def _is_compared(delivery: DeliveryFacts, since: datetime, until: datetime) -> bool:
    """Whether the delivery must be in the inbox. Events without a handler are not stored."""
    is_worked = is_routed(ROUTER, delivery.event, delivery.action)
    return delivery.succeeded and is_worked and since <= delivery.delivered_at < until


def _describe(delivery: DeliveryFacts) -> str:
    return f"answered {delivery.status_code}" if delivery.status_code else delivery.status
