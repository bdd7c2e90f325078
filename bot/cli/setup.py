"""`ptq-bot setup`: pages on this host that lead an operator to a working configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.options import give_up, write


def setup(
    config: Annotated[Path, typer.Option(help="The configuration that is to be written.")] = Path("ptq.toml"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 takes a free one.")] = 0,
) -> None:
    """Create the GitHub App, add machines and agents, and write ptq.toml: on a page on this host."""
    from bot.observability.log import configure_logging
    from bot.setup.notes import Unusable
    from bot.setup.serving import set_up

    configure_logging((), level="CRITICAL")  # The page says what is wrong.
    try:
        asyncio.run(set_up(config, write, port))
    except (Unusable, OSError) as error:
        give_up(f"ptq-bot: {error}")
