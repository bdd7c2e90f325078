"""Counts what happens by the events in the log: whoever logs need not know that somebody counts."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from structlog.typing import EventDict, WrappedLogger

EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
"""What names an event in our own log. Libraries write sentences, of which there is no end."""


DOCUMENTED = (
    ("agent.environment_doubted", "warning"),
    ("agents.keys_are_on_machines", "warning"),
    ("config.needs_a_restart", "warning"),
    ("config.not_reloaded", "error"),
    ("config.reloaded", "info"),
    ("delivery.not_stored", "error"),
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
    ("ssh.machine_sends_too_much", "warning"),
    ("sweep.unknown_folders", "warning"),
)
"""What the documents name. Each is counted from 0, for Prometheus sees no increase in a series that begins with 1."""


class LogCounter:
    """Counts the events of the log by name and level: a processor for structlog."""

    def __init__(self, known: Iterable[tuple[str, str]] = ()) -> None:
        """Events that are `known`, with their levels, are told of before they come."""
        self._lock = threading.Lock()
        self._counted: Counter[tuple[str, str]] = Counter(dict.fromkeys(known, 0))

    def __call__(self, _logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
        """Count one event, and leave it as it is."""
        name = event.get("event")
        if isinstance(name, str) and EVENT.fullmatch(name):
            with self._lock:
                self._counted[name, level] += 1
        return event

    def read(self) -> Mapping[tuple[str, str], int]:
        """How often each event came, by name and level."""
        with self._lock:
            return dict(self._counted)


COUNTED = LogCounter(DOCUMENTED)
"""Of this process."""
