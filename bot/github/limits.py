"""GitHub's rate limits: what an answer says about them, and when we may speak again.

https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
Pure functions and a small memory; nothing here sends a request or sleeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EVERY_BUCKET = "*"
OUR_BUCKET = "core"  # every call of the client counts against it
UNNAMED_PAUSE = timedelta(seconds=60)  # "wait for at least one minute"
LONGEST_PAUSE = timedelta(days=1)  # GitHub's own limits are over within the hour
RESET_MARGIN = timedelta(seconds=1)  # the reset is given in whole seconds, and clocks differ


@dataclass(frozen=True, slots=True)
class Limit:
    """Calls that count against `bucket` are refused until then."""

    bucket: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Left:
    """How many calls of `bucket` are left in this hour, of how many."""

    bucket: str
    calls: int
    limit: int
    resets_at: datetime | None = None
    """When the hour is over; None where GitHub does not say it."""


ListLeft = Callable[[], Sequence[tuple[str, Left]]]
"""What the newest answers say is left, by account; none for the App's own calls."""


def parse_retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The `Retry-After` header in seconds; None without one that is a plain number."""
    text = headers.get("retry-after", "").strip()
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def parse_exhausted(headers: Mapping[str, str]) -> Limit | None:
    """The bucket that this answer says is empty now, if any."""
    until = _parse_reset(headers)
    if headers.get("x-ratelimit-remaining", "").strip() != "0" or until is None:
        return None
    return Limit(headers.get("x-ratelimit-resource", OUR_BUCKET), until)


def parse_left(headers: Mapping[str, str]) -> Left | None:
    """How much of its bucket this answer says is left, if it says so."""
    said = [headers.get(f"x-ratelimit-{name}", "").strip() for name in ("remaining", "limit")]
    if not all(re.fullmatch(r"[0-9]{1,9}", text) for text in said):
        return None
    bucket = headers.get("x-ratelimit-resource", OUR_BUCKET)[:50]
    calls, limit = map(int, said)
    return Left(bucket, calls, limit, _parse_reset(headers))


def _parse_reset(headers: Mapping[str, str]) -> datetime | None:
    reset = headers.get("x-ratelimit-reset", "").strip()
    return datetime.fromtimestamp(int(reset), UTC) + RESET_MARGIN if re.fullmatch(r"[0-9]{1,11}", reset) else None


def parse_refusal(status: int, headers: Mapping[str, str], message: str, now: datetime) -> Limit | None:
    """The limit that a 403 or 429 stands for; None when the refusal has another reason."""
    if status not in (403, 429):
        return None
    retry_after_s = parse_retry_after_s(headers)
    if retry_after_s is not None:
        return Limit(EVERY_BUCKET, now + timedelta(seconds=retry_after_s))
    exhausted = parse_exhausted(headers)
    if exhausted is not None:
        return exhausted
    if status == 429 or "rate limit" in message.lower():
        return Limit(EVERY_BUCKET, now + UNNAMED_PAUSE)
    return None


class Buckets:
    """What is left in the buckets of one installation; which are empty, and until when."""

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self.left: dict[str, Left] = {}
        """By bucket, as the newest answer said."""

    def note_left(self, left: Left | None) -> None:
        """Remember what is left of a bucket."""
        if left is not None:
            self.left[left.bucket] = left

    def note(self, limit: Limit | None, now: datetime) -> None:
        """Remember a limit; the newest word on a bucket counts, and no word silences us for good."""
        if limit is not None:
            self._until[limit.bucket] = min(limit.until, now + LONGEST_PAUSE)

    def wait_s(self, now: datetime) -> float:
        """Seconds until the next call may be made; 0 when it may be made now."""
        untils = (self._until.get(bucket, now) for bucket in (EVERY_BUCKET, OUR_BUCKET))
        return max(0.0, (max(untils) - now).total_seconds())
