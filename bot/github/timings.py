"""How long the client waits for what: one frozen value with GitHub's own limits as defaults."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.effects.rate_limit import Budget


@dataclass(frozen=True, slots=True)
class Timings:
    """Times in seconds; the defaults follow GitHub's "Best practices for using the REST API"."""

    timeout_s: float = 30.0
    """For one request, from the wait for a connection to the last byte of the answer."""
    connect_timeout_s: float = 10.0
    attempts: int = 4
    """How often a request that may be repeated is sent in all."""
    backoff_s: float = 0.5
    """Before the second attempt; it doubles with each further one."""
    max_wait_s: float = 10.0
    """Longer waits are not ours: the caller gets `GitHubUnavailable` and decides."""
    write_interval_s: float = 1.0
    """Between the end of one write and the start of the next, per installation."""
    writes_per_minute: int = 80
    writes_per_hour: int = 500
    refresh_early_s: float = 300.0
    """How long before its end an installation token is replaced."""
    max_pages: int = 100
    """Of 100 items each; a longer list is refused rather than cut."""

    def budget(self) -> Budget:
        """What an installation may write, and how long a write takes at the very most."""
        longest_write_s = self.write_interval_s + self.attempts * (self.timeout_s + self.max_wait_s)
        return Budget(self.writes_per_minute, self.writes_per_hour, self.max_wait_s, longest_write_s)
