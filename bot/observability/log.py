"""Logs: one JSON line for each step, or readable lines in a terminal; ids on every line, secrets on none."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from structlog.typing import EventDict, Processor, WrappedLogger

from bot.observability.log_counter import COUNTED
from handlers.text.sanitize import redact
from runner.characters import show_for_terminal

MIN_LINE = 16
"""Characters of a secret's line that are hidden also when they stand alone: a key is a secret line by line, while a
shorter line would be found in innocent words."""


def configure_logging(secrets: Collection[str], *, level: str = "INFO") -> None:
    """Set up structlog and the standard library's logging alike."""
    as_json = structlog.processors.JSONRenderer(default=str)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        COUNTED,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        # Tracebacks become text first, so that what they quote is redacted like everything else.
        structlog.processors.format_exc_info,
        partial(_redact_event, spell_out(secrets)),
        *([_show_event, structlog.dev.ConsoleRenderer()] if sys.stderr.isatty() else [as_json]),
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
    """Report an error that nobody can catch, but no server name that `ssl` cannot read: an agent can send many."""
    if not (isinstance(unraisable.object, bytes) and isinstance(unraisable.exc_value, UnicodeDecodeError)):
        report(unraisable)


def _shorten_bad_request(record: logging.LogRecord) -> bool:
    """One line for a request that cannot be read: anybody can send many, and a traceback says nothing of them."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = f"bad request: {' '.join(error.message.split())[:200]!r}", ()
    return True


def spell_out(secrets: Collection[str]) -> frozenset[str]:
    """Each secret and its lines as they may stand in the log: as they are, and as Python and JSON quote them.

    Tracebacks and messages quote what they stumbled over, and quoting changes quotes, backslashes, line ends and
    letters beyond ASCII.
    """
    lines = (line for secret in secrets for line in secret.splitlines() if len(line) >= MIN_LINE)
    plain = {form for text in (*secrets, *lines) for form in (text, text.strip())}
    quoted = {written[1:-1] for text in plain for written in (repr(text), ascii(text), json.dumps(text))}
    return frozenset(plain | quoted | {repr(text.encode())[2:-1] for text in plain})


def _redact_event(secrets: frozenset[str], _logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    return {_redact_text(secrets, name): _redact(secrets, value) for name, value in event.items()}


TRACEBACKS = ("exception", "stack")
"""What has several lines in a terminal; any other value stays in its line, so that it cannot look like another one."""


def _show_event(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """An event that is fit for a terminal. JSON needs none of this: it writes such characters out itself."""
    return {_show(name): _show(value, lines=name in TRACEBACKS) for name, value in event.items()}


def _show(value: Any, *, lines: bool = False) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    # What is made of several values is written as Python writes it, which leaves some invisible characters.
    text = show_for_terminal(str(value))
    return text if lines else text.replace("\n", "⟨U+000A⟩")


MAX_KEPT = 80
"""Characters of a text whose redacted form is kept: names, ids and repositories come in line after line."""


def _redact_text(secrets: frozenset[str], text: str) -> str:
    return _redact_short(secrets, text) if len(text) <= MAX_KEPT else redact(text, secrets)


@lru_cache(4096)
def _redact_short(secrets: frozenset[str], text: str) -> str:
    return redact(text, secrets)


def _redact(secrets: frozenset[str], value: Any) -> Any:
    """The value without secrets, whatever it is made of."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(_redact(secrets, key)): _redact(secrets, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact(secrets, inner) for inner in value]
    return _redact_text(secrets, str(value))
