"""GitHub's rate limits: what an answer says about them, and when the next call can be sent.

https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
This module has pure functions and a small memory. It does not send requests or sleep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EVERY_BUCKET = "*"
OUR_BUCKET = "core"  # every call of the client counts against it
UNNAMED_PAUSE = timedelta(seconds=60)  # "wait for at least one minute"
LONGEST_PAUSE = timedelta(days=1)  # GitHub's own limits end within an hour
RESET_MARGIN = timedelta(seconds=1)  # GitHub gives the reset in whole seconds, and clocks differ


@dataclass(frozen=True, slots=True)
class Limit:
    """GitHub refuses calls that count against `bucket` before `until`."""

    bucket: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Left:
    """The calls of `bucket` that are left in this hour, and the calls per hour that GitHub allows."""

    bucket: str
    calls: int
    limit: int
    resets_at: datetime | None = None
    """The end of the hour. None if GitHub does not say."""


ListLeft = Callable[[], Sequence[tuple[str, Left]]]
"""Lists what is left, by account, according to the latest answers. The App's own calls have `""` as account."""


def parse_retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The `Retry-After` header in seconds. None if it is missing or not a plain number."""
    text = headers.get("retry-after", "").strip()
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def parse_exhausted(headers: Mapping[str, str]) -> Limit | None:
    """The limit of the bucket that is empty according to this answer, if any."""
    until = _parse_reset(headers)
    if headers.get("x-ratelimit-remaining", "").strip() != "0" or until is None:
        return None
    return Limit(headers.get("x-ratelimit-resource", OUR_BUCKET), until)


def parse_left(headers: Mapping[str, str]) -> Left | None:
    """The calls that are left in a bucket, according to this answer. None if the answer does not say."""
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
    """The rate limit that caused a 403 or 429. None if the refusal has another cause."""
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
    """The calls that are left in the buckets of one line, and the time when each empty bucket refills."""

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self.left: dict[str, Left] = {}
        """By bucket, from the latest answer about it."""

    def note_left(self, left: Left | None) -> None:
        """Remember what is left of a bucket."""
        if left is not None:
            self.left[left.bucket] = left

    def note(self, limit: Limit | None, now: datetime) -> None:
        """Remember a limit. The latest one for a bucket counts, and none lasts longer than `LONGEST_PAUSE`."""
        if limit is not None:
            self._until[limit.bucket] = min(limit.until, now + LONGEST_PAUSE)

    def wait_s(self, now: datetime) -> float:
        """Seconds until the next call can be sent. 0 if it can be sent now."""
        untils = (self._until.get(bucket, now) for bucket in (EVERY_BUCKET, OUR_BUCKET))
        return max(0.0, (max(untils) - now).total_seconds())
