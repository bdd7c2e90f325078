"""What a process becomes that was forked to be `ptq-bot`, or one service."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from bot.app import serve
from bot.cli.main import main
from bot.config.settings import load_settings
from bot.observability.log import configure_logging
from bot.pace import Pace


def be_program(arguments: Sequence[str], environ: Mapping[str, str], stdout: Path, stderr: Path) -> None:
    """Be the program, with these arguments and environment, and write to these files."""
    _write_to(stdout, stderr)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # It is chosen by this environment, not by that of the process that was forked.
    hear_ctrl_c()
    sys.argv = ["ptq-bot", *arguments]
    main()


def be_service(config: Path, log: Path, environ: Mapping[str, str], pace: Pace) -> None:
    """Serve until a signal, at this pace and with these additions to the environment."""
    _write_to(log, log)
    os.environ.update(environ)
    settings = load_settings(config)
    configure_logging(settings.secret_values())
    asyncio.run(serve(settings, partial(load_settings, config), pace))


def _write_to(stdout: Path, stderr: Path) -> None:
    """Append all output of this process to these files."""
    for path, number in ((stdout, 1), (stderr, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)


def hear_ctrl_c() -> None:
    """Let SIGINT have its usual effect in a program that this process is about to become.

    A shell that starts a command in the background (`make test &`) lets it ignore SIGINT, and all that it starts
    inherit that. Python then leaves SIGINT ignored, as it should: the program would never hear our Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
