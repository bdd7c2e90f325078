"""Logs of tests that configure none of their own."""

from __future__ import annotations

import structlog


def log_plainly() -> None:
    """Show tracebacks without colours and local values, which take tenths of a second for each."""
    structlog.reset_defaults()
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], console])
