"""`ptq-bot repositories`: say which repositories are meant."""

from __future__ import annotations

from typing import Annotated

import typer

from bot.cli.options import Config, load
from bot.cli.run import print_answer

app = typer.Typer(no_args_is_help=True, help="Say which repositories are meant.")


@app.callback()
def group() -> None:
    """Keeps the name `accept`: Typer drops the name of the only command of a group."""


@app.command("accept")
def accept_(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The name of the new repository.")],
    config: Config,
) -> None:
    """Accept a new repository that has the name of an earlier one.

    It gets the earlier one's rights in ptq-bot: people with access to it see the jobs of that name.
    """
    from bot.operations.repositories import accept_repository

    print_answer(accept_repository(load(config), repository))
