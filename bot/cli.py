"""The command line: `ptq-bot serve`, `report`, `costs`, `deliveries`, `replay`, `demo`.

Exit status 2 means that the configuration or the command itself is wrong.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Coroutine
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bot.app import serve as serve_until_stopped
from bot.config import ConfigError, Settings, load_settings
from bot.deliveries import NotReplayed, read_deliveries, replay
from bot.demo.story import DemoFailed, run_demo
from bot.log import configure_logging
from bot.reports import UnknownJob, read_costs, read_report
from runner.db import DatabaseError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


Config = Annotated[Path, typer.Option(help="The configuration, ptq.toml.")]
Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A day, UTC; included.")]


def _load(config: Path) -> Settings:
    try:
        return load_settings(config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def serve(config: Config) -> None:
    """Run the service until it gets SIGTERM. SIGHUP lets it read machines and repositories anew."""
    settings = _load(config)
    configure_logging(settings.secret_values())
    try:
        asyncio.run(serve_until_stopped(settings, partial(load_settings, config)))
    except (DatabaseError, OSError) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        print(f"ptq-bot cannot start: {reason}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def report(job_id: str, config: Config) -> None:
    """Print all that came out of a job, confidential or not: report, diff, repro and worklog."""
    _print(read_report(_load(config), job_id))


@app.command()
def costs(config: Config, since: Day = None, until: Day = None) -> None:
    """Print what each job took, as CSV."""
    if since and until and until < since:
        raise typer.BadParameter("it is before --since", param_hint="--until")
    _print(read_costs(_load(config), since and since.date(), until and until.date()))


@app.command()
def deliveries(
    config: Config, failed: Annotated[bool, typer.Option("--failed", help="Only those that were set aside.")] = False
) -> None:
    """List the newest webhook deliveries, with what went wrong."""
    _print(read_deliveries(_load(config), failed=failed))


@app.command(name="replay")
def replay_delivery(
    delivery_id: str,
    config: Config,
    force: Annotated[bool, typer.Option("--force", help="Also one that was worked already.")] = False,
) -> None:
    """Let a delivery that was set aside be worked again, by the service that is running or runs next."""
    _print(replay(_load(config), delivery_id, force=force))


def _print(reading: Coroutine[None, None, str]) -> None:
    try:
        text = asyncio.run(reading)
    except (DatabaseError, UnknownJob, NotReplayed) as error:
        print(f"ptq-bot: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


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
