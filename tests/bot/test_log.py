from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp.http_exceptions import LineTooLong

from bot.observability.log import configure_logging
from tests.support.plain_logs import log_plainly
from tests.support.scripted_github import app_key_pem

KEY = app_key_pem()
WEBHOOK_SECRET = 'it\'s a "hook" secret, with \\ in it'
AGENT_VALUE = "agent\nof two lines of\nan agent's environment"
ACCENTED = "übergrößter Passwort"
SECRETS = (WEBHOOK_SECRET, AGENT_VALUE, ACCENTED, KEY)
TOKEN = "ghs_" + "0123456789abcdefABCDEF" * 3
PIECES = ("hook", "two lines of", "s environment", "bergr", TOKEN[4:40], *KEY.splitlines()[1:-2])
"""What no line may hold, however it was quoted."""

log = structlog.get_logger()

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What was logged so far, as parsed JSON; a look fails when a secret is in it."""
    written, root = io.StringIO(), logging.getLogger()
    level, hook = root.level, sys.unraisablehook

    def look() -> list[dict[str, Any]]:
        text = written.getvalue()
        leaked = [piece for piece in PIECES if piece in text]
        assert leaked == [], text
        return [json.loads(line) for line in text.splitlines()]

    with redirect_stderr(written):
        configure_logging(SECRETS)
        (handler,) = root.handlers
        yield look
    root.removeHandler(handler)
    root.setLevel(level)
    sys.unraisablehook = hook
    log_plainly()


def test_a_step_is_one_json_line_with_its_time_and_level(lines: Lines) -> None:
    log.info("job.moved", state="running", text="of two\nlines")
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "job.moved", "level": "info", "state": "running", "text": "of two\nlines"}


def test_ids_that_are_bound_are_on_every_line_inside_and_on_none_after(lines: Lines) -> None:
    with structlog.contextvars.bound_contextvars(delivery="d-1", installation=7, case="octo/widgets#1"):
        with structlog.contextvars.bound_contextvars(job="0123456789", machine="gpu-1"):
            log.info("deep")
            logging.getLogger("some.library").warning("of a library")
        log.info("shallow")
    log.info("outside")
    deep, library, shallow, outside = lines()
    ids = {"delivery": "d-1", "installation": 7, "case": "octo/widgets#1", "job": "0123456789", "machine": "gpu-1"}
    assert deep.items() >= ids.items()
    assert library.items() >= ids.items()
    assert shallow["case"] == "octo/widgets#1"
    assert "job" not in shallow
    assert "case" not in outside


def test_libraries_say_only_what_an_operator_must_know(lines: Lines) -> None:
    logging.getLogger("asyncssh").info("a command and its arguments")
    log.debug("a detail")
    logging.getLogger("asyncssh").warning("a warning")
    assert [line["event"] for line in lines()] == ["a warning"]


@pytest.mark.parametrize("secret", [*SECRETS, TOKEN], ids=["webhook", "agent", "accented", "key", "token"])
def test_no_secret_is_logged_wherever_it_stands(lines: Lines, secret: str) -> None:
    log.info(f"in the event {secret}")
    log.info("as a value", value=secret, longer=f"before {secret} after")
    log.info("nested", value={"deep": [{"deeper": (secret, {secret})}], secret: 1})
    log.info("as a key", **{secret: 1})
    log.info("as an object", path=Path("/etc") / secret, error=ValueError(secret), raw=secret.encode())
    log.info("quoted", once=repr(secret), as_ascii=ascii(secret), as_json=json.dumps(secret), twice=[repr([secret])])
    logging.getLogger("some.library").warning("%s and %r in arguments", secret, {"key": secret})
    written = lines()
    assert len(written) == 7
    assert written[2]["value"] == {"deep": [{"deeper": ["[redacted]", ["[redacted]"]]}], "[redacted]": 1}


@pytest.mark.parametrize("secret", [*SECRETS, TOKEN], ids=["webhook", "agent", "accented", "key", "token"])
def test_no_secret_is_logged_by_a_traceback(lines: Lines, secret: str) -> None:
    try:
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise RuntimeError(f"cannot use {secret}", {"value": secret}) from error
    except RuntimeError as error:
        log.exception("failed")
        log.error("failed", exc_info=error)
        logging.getLogger("some.library").exception("failed")
    written = lines()
    assert len(written) == 3
    for line in written:
        assert "RuntimeError" in line["exception"]
        assert "KeyError" in line["exception"]
        assert "[redacted]" in line["exception"]


def test_a_single_line_of_the_key_is_a_secret_too(lines: Lines) -> None:
    log.info("a line of it", text=KEY.splitlines()[3], path=f"/tmp/{KEY.splitlines()[4]}/x")
    assert lines()[0]["text"] == "[redacted]"


def test_short_lines_of_a_secret_do_not_black_out_the_log(lines: Lines) -> None:
    log.info("the key BEGINs, and an agent's value says two lines")
    assert lines()[0]["event"] == "the key BEGINs, and an agent's value says two lines"


@pytest.mark.slow
def test_a_terminal_gets_lines_for_people_and_no_secret_either() -> None:
    program = (
        "import structlog; from bot.observability.log import configure_logging\n"
        f"configure_logging([{WEBHOOK_SECRET!r}])\n"
        "log = structlog.get_logger()\n"
        "log.info('service.started', url='http://127.0.0.1:8080', repositories=1)\n"
        f"log.warning('job.moved', state='running', machine=None, case='a/b#7', issue=7, value={WEBHOOK_SECRET!r})\n"
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True, env=env)
    os.close(theirs)
    written = os.read(ours, 65536).decode()
    os.close(ours)
    first, second = written.splitlines()
    assert first == "ptq-bot is listening on http://127.0.0.1:8080 (repositories: 1). Ctrl-C stops it."
    assert re.fullmatch(r"\d\d:\d\d:\d\d  warning  job\.moved  a/b#7  state: running, value: \[redacted\]", second)


@pytest.mark.slow
def test_in_a_terminal_no_text_commands_it() -> None:
    program = (
        "import structlog; from bot.observability.log import configure_logging; configure_logging(())\n"
        "log = structlog.get_logger()\n"
        r"hostile = '\x1b]0;owned\x07\x9b2J\r\nall is well\u202e\u200b'"
        "\n"
        "log.info('job.moved', state=hostile, several=[hostile], **{hostile: 1})\n"
        "try: raise ValueError(hostile)\n"
        "except ValueError: log.exception('job.failed')\n"
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True, env=env)
    os.close(theirs)
    written = os.read(ours, 65536).decode()
    os.close(ours)
    assert "job.moved" in written
    assert "ValueError" in written
    assert not {"\x1b]", "\x07", "\x9b", "\u202e", "\u200b"} & {*written, written[: written.find("0;owned")][-2:]}
    (line,) = (line for line in written.splitlines() if "job.moved" in line)
    assert line.count("owned") == 3, "no value begins a line of its own"


@pytest.mark.slow
def test_a_server_name_that_is_not_ascii_fills_no_log() -> None:
    program = """
import asyncio
from bot.gateway.packages import NoHello, read_hello
from bot.observability.log import configure_logging
from tests.bot.test_gateway_packages import NOT_ASCII
from tests.support.gateway import Pieces

class Broken:
    def __del__(self):
        raise ValueError("reported as ever")

configure_logging(())
try:
    asyncio.run(read_hello("pypi.org", Pieces([]), NOT_ASCII))
except NoHello:
    Broken()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "reported as ever" in done.stderr
    assert "UnicodeDecodeError" not in done.stderr


def test_a_request_that_cannot_be_read_is_one_bounded_line(lines: Lines) -> None:
    try:
        raise LineTooLong(b"a" * 9000 + b"\n" * 9, 8190)
    except LineTooLong as error:
        logging.getLogger("aiohttp.server").error("Error handling request from %s", "1.2.3.4", exc_info=error)
    (line,) = lines()
    assert line["level"] == "warning"
    assert line["event"].startswith("bad request: ")
    assert len(line["event"]) < 300
    assert "exception" not in line
