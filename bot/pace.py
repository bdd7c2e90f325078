"""The intervals and waits of the service. Tests and benchmarks use shorter ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.github import Timings
from handlers.effects.outbox import SETTLES
from runner.rows.claims import LASTS_S
from runner.scheduler.sweep import INTERVAL_S
from runner.transport.ssh import SILENCE_S


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds. Changes inside the service notify its loops; the intervals apply if no notification arrives."""

    poll_s: float = 2.0
    """The interval between requests to a machine for the state of its jobs."""
    sweep_s: float = 5.0
    label_rest_s: float = 60.0
    """The least time between two changes of an issue's status label."""
    recover_s: float = 300.0
    """The interval between searches on GitHub for events that never arrived here."""
    settles_s: float = SETTLES.total_seconds()
    """The time that GitHub may need to store a comment if its request got no answer."""
    in_flight_s: float = 30.0
    """The time that a webhook may need to arrive. Recovery ignores labels that are newer than this."""
    grace_s: float = 10.0
    """The time that the service waits for work in progress when it stops."""
    orphans_s: float = INTERVAL_S
    """The interval between searches for leftover folders on machines."""
    claim_s: float = LASTS_S
    """The time after which a replica's claims expire if it does not renew them."""
    silence_s: float = SILENCE_S
    """The time after which a silent machine counts as unreachable."""
    clean_s: float = 3600.0
    """The interval between deletions of expired data."""
    github: Timings = field(default_factory=Timings)
