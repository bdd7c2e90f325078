"""`ptq-bot setup`: pages on this host that lead to a working configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.options import CONFIG_VARIABLE, give_up, write


def setup(
    config: Annotated[Path, typer.Option(envvar=CONFIG_VARIABLE, help="Configuration file to write.")] = Path(
        "ptq.toml"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the set-up page (0 = any free port).")] = 0,
    job_usd: Annotated[
        str | None,
        typer.Option(metavar="USD", help='Cap per job (default: 10), or "unlimited". The page asks for it.'),
    ] = None,
    user_day_usd: Annotated[
        str | None, typer.Option(metavar="USD", help="The same per person per day (default: 50).")
    ] = None,
    repository_month_usd: Annotated[
        str | None, typer.Option(metavar="USD", help="The same per repository per month (default: 500).")
    ] = None,
) -> None:
    """Create the GitHub App, add machines and agents, and write ptq.toml, in a browser."""
    from bot.observability.log import configure_logging
    from bot.setup.files import UnusableFile
    from bot.setup.serving import set_up
    from bot.setup.steps import InvalidInput

    configure_logging((), level="CRITICAL")  # The pages show failures.
    caps = {"job_usd": job_usd, "user_day_usd": user_day_usd, "repository_month_usd": repository_month_usd}
    try:
        asyncio.run(set_up(config, write, port, {name: amount for name, amount in caps.items() if amount is not None}))
    except InvalidInput as error:
        give_up(f"ptq-bot: {error}", status=2)
    except (UnusableFile, OSError) as error:
        give_up(f"ptq-bot: {error}")
