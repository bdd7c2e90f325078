"""`ptq-bot agents`: say which agents there are."""

from __future__ import annotations

import typer

from bot.cli.options import AsJson, Config, load, write

app = typer.Typer(no_args_is_help=True, help="Say which agents there are.")


@app.callback()
def group() -> None:
    """Keeps the name `list`: Typer drops the name of the only command of a group."""


@app.command("list")
def list_agents_(config: Config, as_json: AsJson = False) -> None:
    """List the agents, with the models and levels of thinking that people can request, and their repositories."""
    from bot.operations.launch import list_agents

    write(list_agents(load(config), as_json=as_json))
