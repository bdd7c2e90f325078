"""GitHub's limits on size and rate. A test lowers them by assignment."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from github_standin.model.answers import Refusal

HOUR_S = 3600
MINUTE_S = 60


@dataclass(slots=True)
class Limits:
    """GitHub's limits, according to its documentation and its error messages."""

    requests_per_hour: int | None = 5000
    """docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api. None: there is no limit, and no header says
    so, as on an Enterprise Server without rate limits."""
    content_per_minute: int = 80
    content_per_hour: int = 500
    """The secondary limits on creating content; same page."""
    body_characters: int = 65_536
    title_characters: int = 256
    blob_bytes: int = 100 * 1024 * 1024
    tree_entries: int = 100_000


@dataclass(slots=True)
class _Spent:
    """The requests of one caller in the hour that ends at `reset_at` (seconds since 1970)."""

    reset_at: float = 0.0
    used: int = 0
    created_at: deque[float] = field(default_factory=deque)
    """The times of its creations in the past hour."""


class RateLimits:
    """Counts requests for each caller."""

    def __init__(self, limits: Limits, clock: Callable[[], datetime]) -> None:
        self._limits = limits
        self._clock = clock
        self._spent: defaultdict[str, _Spent] = defaultdict(_Spent)

    def count(self, caller: str) -> None:
        """Count one request. Raises `Refusal` if the hour's limit is reached."""
        spent, limit = self._current(caller), self._limits.requests_per_hour
        if limit is not None and spent.used >= limit:
            raise Refusal(403, f"API rate limit exceeded for {caller}.")
        spent.used += 1

    def spend(self, caller: str, requests: int) -> None:
        """Count requests that the caller made elsewhere."""
        self._current(caller).used += requests

    def count_content(self, caller: str) -> None:
        """Count one creation of content. Raises `Refusal` if there were too many."""
        now, created_at = self._now(), self._current(caller).created_at
        while created_at and created_at[0] <= now - HOUR_S:
            created_at.popleft()
        for most, window_s in (
            (self._limits.content_per_minute, MINUTE_S),
            (self._limits.content_per_hour, HOUR_S),
        ):
            recent = [at for at in created_at if at > now - window_s]
            if len(recent) >= most:
                wait_s = math.ceil(recent[-most] + window_s - now) if most else window_s
                raise Refusal(403, _SECONDARY, headers={"Retry-After": str(max(1, wait_s))})
        created_at.append(now)

    def describe(self, caller: str) -> dict[str, int]:
        """Schema `rate-limit`; empty if there is no limit."""
        spent, limit = self._current(caller), self._limits.requests_per_hour
        if limit is None:
            return {}
        remaining = max(0, limit - spent.used)
        return {"limit": limit, "remaining": remaining, "reset": math.ceil(spent.reset_at), "used": spent.used}

    def headers(self, caller: str) -> dict[str, str]:
        """The rate limit headers of every answer."""
        facts = {f"X-RateLimit-{name.capitalize()}": str(value) for name, value in self.describe(caller).items()}
        return facts | {"X-RateLimit-Resource": "core"} if facts else {}

    def _now(self) -> float:
        return self._clock().timestamp()

    def _current(self, caller: str) -> _Spent:
        spent, now = self._spent[caller], self._now()
        if now >= spent.reset_at:
            spent.reset_at, spent.used = now + HOUR_S, 0
        return spent


_SECONDARY = (
    "You have exceeded a secondary rate limit and have been temporarily blocked from content creation. "
    "Please retry your request again later."
)
