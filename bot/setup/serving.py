"""Serves the set-up pages on this host until the operator has finished."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from bot.listener import HttpListener
from bot.setup.server import Setup
from bot.setup.steps import Form

GRACE_S = 2.0
"""How long running requests may take at the end."""
LAST_PAGE_S = 1.0
"""How long the last page may take to load its style sheets."""


async def set_up(config: Path, show: Callable[[str], None], port: int, caps: Form) -> None:
    """Serve the pages until the operator has finished, or until SIGINT or SIGTERM. Port 0 means any free port.

    `caps` are filled in on the last page. Raises `UnusableFile`, `InvalidInput`, and `OSError` if the port cannot be
    opened.
    """
    setup = Setup(config, caps=caps)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, setup.ended.set)
    listener = HttpListener(setup.application(), GRACE_S)
    try:
        address = await listener.open("127.0.0.1", port)
        show(render_welcome(config, setup.set_port(urlsplit(address).port or 0)))
        await setup.ended.wait()
        if setup.state.has_ended:
            await asyncio.sleep(LAST_PAGE_S)
    finally:
        await listener.close()
        await setup.close()
    show(render_end(config, written=setup.state.is_written, waiting=setup.state.files.path.exists()))


def render_welcome(config: Path, address: str) -> str:
    """The terminal's first text: the address to open. Pure."""
    port = urlsplit(address).port
    return f"""\
Set up ptq-bot in your browser. This address works once, for the browser that opens it first:

  {address}

From another computer, first: ssh -L {port}:127.0.0.1:{port} THIS-HOST
{config} is written only when you confirm it. Press Ctrl-C to stop. Run the command again to continue.
"""


def render_end(config: Path, *, written: bool, waiting: bool) -> str:
    """The terminal's last text. Pure."""
    if written:
        return f"{config} is written. Start the service: ptq-bot serve --config {config}\n"
    if waiting:
        return "Your answers are saved. Run the command again to continue.\n"
    return "Nothing was written.\n"
