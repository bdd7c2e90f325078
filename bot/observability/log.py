"""Logs: JSON lines, or readable lines in a terminal. Every line has the ids of its context, and no line has secrets."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from structlog.typing import EventDict, Processor, WrappedLogger

from bot.observability.log_counter import COUNTED
from handlers.text.sanitize import redact
from runner.characters import show_for_terminal


def configure_logging(secrets: Collection[str], *, level: str = "INFO") -> None:
    """Set up structlog and the standard library's logging in the same way."""
    as_json = structlog.processors.JSONRenderer(default=str)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        COUNTED,
    ]
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        # Tracebacks become text first, so that secrets in them are redacted.
        structlog.processors.format_exc_info,
        partial(_redact_event, frozenset(secrets)),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([_show_event, _render_line] if sys.stderr.isatty() else [as_json]),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for library in ("asyncssh", "aiohttp", "sqlalchemy", "alembic", "asyncio", "aiosqlite"):
        logging.getLogger(library).setLevel(max(logging.WARNING, root.level))
    requests = logging.getLogger("aiohttp.server")
    requests.filters = [_shorten_bad_request]
    sys.unraisablehook = partial(_report_unraisable, sys.unraisablehook)


def _report_unraisable(report: Callable[[Any], None], unraisable: Any) -> None:
    """Report an error that no code can catch. Skip server names that `ssl` cannot decode: an agent can send many."""
    if not (isinstance(unraisable.object, bytes) and isinstance(unraisable.exc_value, UnicodeDecodeError)):
        report(unraisable)


def _shorten_bad_request(record: logging.LogRecord) -> bool:
    """Shorten the record of a request that cannot be parsed to one line. Anybody can send many such requests, and their
    tracebacks do not help. It is a filter that keeps every record."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = f"bad request: {' '.join(error.message.split())[:200]!r}", ()
    return True


def _redact_event(secrets: frozenset[str], _logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    return {_redact_text(secrets, name): _redact(secrets, value) for name, value in event.items()}


TRACEBACKS = ("exception", "stack")
"""Keys whose values may have several lines in a terminal. Any other value is shown in one line, so that it cannot look
like another log line."""


def _show_event(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """An event that is safe to show in a terminal. JSON lines are safe, because JSON escapes control characters."""
    return {_show(name): _show(value, lines=name in TRACEBACKS) for name, value in event.items()}


def _show(value: Any, *, lines: bool = False) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    # `str` leaves some invisible characters in lists and other containers.
    text = show_for_terminal(str(value))
    return text if lines else text.replace("\n", "⟨U+000A⟩")


STARTED = "service.started"

_LEVELS = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}
"""Each level that a terminal shows, with its SGR code (ECMA-48). Most lines are of level `info`."""

_SUBJECT = ("case", "issue", "repository", "job")
"""Keys that say what a line is about."""


def _render_line(_logger: WrappedLogger, _name: str, event: EventDict) -> str:
    """An event as a line for a terminal: time, level, event, subject, and the rest. The first line has the address."""
    values = {name: value for name, value in event.items() if value is not None}
    tracebacks = [str(values.pop(name)) for name in TRACEBACKS if name in values]
    at, level, what = (str(values.pop(name, "")) for name in ("timestamp", "level", "event"))
    subject = {name: values.pop(name) for name in _SUBJECT if name in values}
    if what == STARTED:
        return f"ptq-bot is listening on {values.pop('url', '')} ({_join(values)}). Ctrl-C stops it."
    about = subject.get("case") or subject.get("repository")
    words = [*([str(about)] if about else []), *([f"job {subject['job']}"] if "job" in subject else [])]
    # A value of several words is easier to read without quotation marks.
    line = "  ".join(part for part in (_mark(level), _colour("1", what), *words, _join(values)) if part)
    return "\n".join([f"{_colour('2', _show_time(at))}  {line}", *tracebacks])


def _join(values: EventDict) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in values.items())


def _mark(level: str) -> str:
    return _colour(_LEVELS[level], level) if level in _LEVELS else ""


def _colour(code: str, text: str) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{code}m{text}\x1b[0m"


def _show_time(at: str) -> str:
    """The time on this host's clock, to the second."""
    return f"{datetime.fromisoformat(at).astimezone():%H:%M:%S}" if at else ""


MAX_KEPT = 80
"""Characters. The redacted form of texts up to this length is cached, because many lines have the same names and
ids."""


def _redact_text(secrets: frozenset[str], text: str) -> str:
    return _redact_short(secrets, text) if len(text) <= MAX_KEPT else redact(text, secrets)


@lru_cache(4096)
def _redact_short(secrets: frozenset[str], text: str) -> str:
    return redact(text, secrets)


def _redact(secrets: frozenset[str], value: Any) -> Any:
    """The value without secrets, including the values in containers."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(_redact(secrets, key)): _redact(secrets, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact(secrets, inner) for inner in value]
    return _redact_text(secrets, str(value))
