"""Counts what happens by the events in the log: whoever logs need not know that somebody counts."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping

from structlog.typing import EventDict, WrappedLogger

EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
"""What names an event in our own log. Libraries write sentences, of which there is no end."""


class LogCounter:
    """Counts the events of the log by name and level: a processor for structlog."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[tuple[str, str]] = Counter()

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


COUNTED = LogCounter()
"""Of this process."""
