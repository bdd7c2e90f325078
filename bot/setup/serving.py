"""Serves the pages of set-up on this host, until the operator is done."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from bot.listener import HttpListener
from bot.setup.server import Setup

GRACE_S = 2.0
"""How long an answer in hand may take to arrive."""
LAST_PAGE_S = 1.0
"""How long the last page may take to load its style."""


async def set_up(config: Path, show: Callable[[str], None], port: int = 0) -> None:
    """Serve the pages until they are done with, or SIGINT or SIGTERM comes. Port 0 takes a free one.

    Raises `Unusable`, and `OSError` where nobody can listen there.
    """
    setup = Setup(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, setup.ended.set)
    listener = HttpListener(setup.application(), GRACE_S)
    try:
        address = await listener.open("127.0.0.1", port)
        show(render_welcome(config, setup.stand_at(urlsplit(address).port or 0)))
        await setup.ended.wait()
        if setup.desk.has_ended:
            await asyncio.sleep(LAST_PAGE_S)
    finally:
        await listener.close()
        await setup.close()
    show(render_end(config, written=setup.desk.is_written, waiting=setup.desk.notes.path.exists()))


def render_welcome(config: Path, address: str) -> str:
    """Where to go, for a terminal. Pure."""
    port = urlsplit(address).port
    return f"""\
Set up ptq-bot in your browser. This address is good once, for the browser that opens it first:

  {address}

From another computer, first: ssh -L {port}:127.0.0.1:{port} THIS-HOST
{config} is written when you say so, and never before. Ctrl-C ends; the same command then goes on where you were.
"""


def render_end(config: Path, *, written: bool, waiting: bool) -> str:
    """How it stands afterwards, for a terminal. Pure."""
    if written:
        return f"{config} is written. Start the service: ptq-bot serve --config {config}\n"
    if waiting:
        return "Nothing is lost: the same command goes on where you were.\n"
    return "Nothing was written.\n"
