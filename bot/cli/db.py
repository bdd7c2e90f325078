"""`ptq-bot db`: back up and migrate the database."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bot.cli.options import Config, give_up, load, write

if TYPE_CHECKING:
    from runner.db.database import Database

Value = TypeVar("Value")

app = typer.Typer(no_args_is_help=True, help="Back up and migrate the database.")


def upgrade_command(config: Path) -> str:
    """The command that migrates the database."""
    return shlex.join(["ptq-bot", "db", "upgrade", "--config", str(config)])


@app.command()
def upgrade(config: Config) -> None:
    """Migrate the database to this version. Stop the service first, and make a backup."""
    from runner.db.database import Database

    database = Database(load(config).server.database_url)
    before, after = _run(database, database.upgrade())
    write(f"schema {after}: nothing to do\n" if before == after else f"upgraded from schema {before} to {after}\n")


@app.command()
def backup(file: Annotated[Path, typer.Argument(help="New file for the copy.")], config: Config) -> None:
    """Copy the database (SQLite only). The service can keep running."""
    from runner.db.database import Database

    database = Database(load(config).server.database_url)
    _run(database, database.back_up(file))
    write(f"copied to {file}\n")


def _run(database: Database, work: Coroutine[None, None, Value]) -> Value:
    from runner.db.errors import DatabaseError

    async def run_and_close() -> Value:
        try:
            return await work
        finally:
            await database.close()

    try:
        return asyncio.run(run_and_close())
    except (DatabaseError, OSError) as error:
        give_up(f"ptq-bot: {error}")
