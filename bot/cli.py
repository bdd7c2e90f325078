"""The command line: `ptq-bot serve`, `ptq-bot demo`. Exit status 2 means that the configuration is wrong."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bot.app import serve as serve_until_stopped
from bot.config import ConfigError, load_settings
from bot.demo.story import DemoFailed, run_demo
from bot.log import configure_logging
from runner.db import DatabaseError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.command()
def serve(config: Annotated[Path, typer.Option(help="The configuration, ptq.toml.")]) -> None:
    """Run the service until it gets SIGTERM."""
    try:
        settings = load_settings(config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    configure_logging(settings.secret_values())
    try:
        asyncio.run(serve_until_stopped(settings))
    except (DatabaseError, OSError) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        print(f"ptq-bot cannot start: {reason}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running, and say where.")] = False,
) -> None:
    """Tell the whole story on embedded parts: an issue, a job, a report, a human note, a draft pull request."""
    configure_logging((), level="ERROR")
    console = Console()
    try:
        asyncio.run(run_demo(keep=keep, console=console))
    except DemoFailed as error:
        console.print(f"[bold red]The demo stopped:[/] {error}")
        raise typer.Exit(1) from None
    except asyncio.CancelledError:
        console.print("Stopped.")


def main() -> None:
    """The console script."""
    app()
