"""Counts log events for the metrics. The code that logs them does not know about it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from structlog.typing import EventDict, WrappedLogger

EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
"""The form of this service's own event names. Libraries log sentences, which could create any number of counters."""


DOCUMENTED = (
    ("agent.environment_doubted", "warning"),
    ("agents.keys_are_on_machines", "warning"),
    ("config.needs_a_restart", "warning"),
    ("config.not_reloaded", "error"),
    ("config.reloaded", "info"),
    ("delivery.lines_left_out", "warning"),
    ("delivery.not_stored", "error"),
    ("delivery.of_namesake", "warning"),
    ("gateway.broken", "warning"),
    ("gateway.key_refused", "error"),
    ("gateway.lines_left_out", "warning"),
    ("gateway.refused", "warning"),
    ("github.rate_limited", "info"),
    ("github.retry", "info"),
    ("lease.kept", "warning"),
    ("machine.back", "info"),
    ("machine.conversation_lost", "warning"),
    ("machine.out", "error"),
    ("notification.for_the_log", "error"),
    ("notification.no_target", "error"),
    ("pull.abandoned", "error"),
    ("recovery.finished", "info"),
    ("recovery.held", "error"),
    ("reply.abandoned", "error"),
    ("request.not_answered", "info"),
    ("request.not_configured", "info"),
    ("request.refused", "info"),
    ("service.waits_for_its_database", "warning"),
    ("ssh.machine_closes_nothing", "warning"),
    ("ssh.machine_sends_too_much", "warning"),
    ("sweep.unknown_folders", "warning"),
)
"""The events that the documents name. Their counters start at 0. If a counter first appeared with 1, Prometheus would
not see that as an increase."""


class LogCounter:
    """A structlog processor that counts events by name and level."""

    def __init__(self, known: Iterable[tuple[str, str]] = ()) -> None:
        """Each event in `known`, with its level, has a counter of 0 before it is first logged."""
        self._lock = threading.Lock()
        self._counted: Counter[tuple[str, str]] = Counter(dict.fromkeys(known, 0))

    def __call__(self, _logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
        """Count one event, and return it unchanged."""
        name = event.get("event")
        if isinstance(name, str) and EVENT.fullmatch(name):
            with self._lock:
                self._counted[name, level] += 1
        return event

    def read(self) -> Mapping[tuple[str, str], int]:
        """The number of times that each event was logged, by name and level."""
        with self._lock:
            return dict(self._counted)


COUNTED = LogCounter(DOCUMENTED)
"""The counter of this process."""
