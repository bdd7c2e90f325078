"""How often the service looks, and how long it waits: tests and benches have it look more often."""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.github import Timings
from handlers.effects.outbox import SETTLES
from runner.rows.claims import LASTS_S
from runner.scheduler.sweep import INTERVAL_S
from runner.transport.ssh import SILENCE_S


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loops look without a notification, in seconds. All changes in the service notify them."""

    poll_s: float = 2.0
    """How often a machine is asked how its jobs stand."""
    sweep_s: float = 5.0
    label_rest_s: float = 60.0
    """How long an issue keeps the label that says where it stands, at least."""
    recover_s: float = 300.0
    """How often GitHub is asked for what never arrived here."""
    settles_s: float = SETTLES.total_seconds()
    """How long GitHub may take to store a comment whose sender got no answer."""
    in_flight_s: float = 30.0
    """How long a webhook may be under way: a label that is younger is left to it."""
    grace_s: float = 10.0
    """How long a stop waits for what is in hand."""
    orphans_s: float = INTERVAL_S
    """How often machines are asked what lies there."""
    claim_s: float = LASTS_S
    """How long a replica's claims outlive it."""
    silence_s: float = SILENCE_S
    """How long a machine may be silent before it counts as gone."""
    clean_s: float = 3600.0
    """How often what is too old is deleted."""
    github: Timings = field(default_factory=Timings)
