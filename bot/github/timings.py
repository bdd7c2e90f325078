"""The client's timeouts, retries and limits. The defaults follow GitHub's own limits."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.effects.rate_limit import Budget


@dataclass(frozen=True, slots=True)
class Timings:
    """Times are in seconds. The defaults follow GitHub's "Best practices for using the REST API"."""

    timeout_s: float = 30.0
    """The timeout of one request, from the wait for a connection to the last byte of the answer."""
    connect_timeout_s: float = 10.0
    attempts: int = 4
    """The most attempts for a request that may be repeated, including the first one."""
    backoff_s: float = 0.5
    """The wait before the second attempt. It doubles with each further attempt."""
    max_wait_s: float = 10.0
    """The longest wait. Instead of a longer one, the caller gets `GitHubUnavailable` and decides."""
    write_interval_s: float = 1.0
    """The least time between the end of one write and the start of the next, per installation."""
    writes_per_minute: int = 80
    writes_per_hour: int = 500
    refresh_early_s: float = 300.0
    """How long before its expiry an installation token is replaced."""
    max_pages: int = 100
    """The most pages of a list, with 100 items each. A longer list raises an error, and is never cut off."""

    def budget(self) -> Budget:
        """The write budget of an installation, with the longest time that a write can take."""
        longest_write_s = self.write_interval_s + self.attempts * (self.timeout_s + self.max_wait_s)
        return Budget(self.writes_per_minute, self.writes_per_hour, self.max_wait_s, longest_write_s)
