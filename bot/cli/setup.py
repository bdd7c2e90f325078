"""`ptq-bot setup`: pages on this host that lead to a working configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.options import give_up, write


def setup(
    config: Annotated[Path, typer.Option(help="Configuration file to write.")] = Path("ptq.toml"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the set-up page (0 = any free port).")] = 0,
) -> None:
    """Create the GitHub App, add machines and agents, and write ptq.toml, in a browser."""
    from bot.observability.log import configure_logging
    from bot.setup.files import UnusableFile
    from bot.setup.serving import set_up

    configure_logging((), level="CRITICAL")  # The pages show failures.
    try:
        asyncio.run(set_up(config, write, port))
    except (UnusableFile, OSError) as error:
        give_up(f"ptq-bot: {error}")
