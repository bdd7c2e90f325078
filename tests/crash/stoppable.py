"""The service as `ptq-bot serve` runs it, at a quicker pace, which stops in mid-step at the point that it is given.

The stop is SIGSTOP, from its own hand: not a line runs after it, until somebody outside has decided what is to become
of the process.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from bot.github import Timings
from bot.pace import Pace
from tests.crash.edges import watch_edges
from tests.crash.points import Logbook, Point
from tests.support.forked_program import be_service

CLAIM_S = 4.0
SWEEP_S = 0.25
RECOVER_S = 1.0
REQUEST_S = 1.5
"""A comment whose request was cut off is looked for after as long as a request may take."""

# A request must fit into what is left of a claim between two renewals.
PACE = Pace(
    poll_s=0.1,
    sweep_s=SWEEP_S,
    recover_s=RECOVER_S,
    in_flight_s=RECOVER_S,
    grace_s=5.0,
    claim_s=CLAIM_S,
    settles_s=REQUEST_S,
    github=Timings(timeout_s=REQUEST_S, write_interval_s=0.0, backoff_s=0.05),
)


def main(config: Path, logbook: Path, stop_at: Point | None, log: Path, environ: Mapping[str, str]) -> None:
    """Be the service until SIGTERM, and stop at this point."""
    book = Logbook(logbook, stop_at)

    def announce(when: str, name: str) -> None:
        if book.note(when, name):
            signal.raise_signal(signal.SIGSTOP)

    watch_edges(announce)
    be_service(config, log, environ, PACE)
