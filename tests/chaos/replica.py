"""What a process becomes that was forked to be one replica of the service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bot.github import Timings
from bot.pace import Pace
from tests.support.forked_program import be_service

CLAIM_S = 6.0
NO_LIMIT = 10**6


def make_pace(slowness: float) -> Pace:
    """The pace of the service, with short claims."""
    limits = {"writes_per_minute": NO_LIMIT, "writes_per_hour": NO_LIMIT}
    return Pace(
        poll_s=0.5,
        sweep_s=1.0,
        recover_s=5.0 * slowness,
        in_flight_s=3.0 * slowness,
        grace_s=5.0 * slowness,
        claim_s=CLAIM_S * slowness,
        github=Timings(timeout_s=2.0 * slowness, write_interval_s=0.0, backoff_s=0.05, **limits),
    )


def run_replica(config: Path, log: Path, environ: Mapping[str, str], slowness: float) -> None:
    """Be one replica, until a signal."""
    be_service(config, log, environ, make_pace(slowness))
