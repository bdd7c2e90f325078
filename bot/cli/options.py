"""What the commands of the command line have in common: their configuration, how they print, and how they fail.

Exit status 2 means that the configuration or the command itself is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from runner.characters import show_for_terminal

if TYPE_CHECKING:
    from bot.config.settings import Settings

Config = Annotated[Path, typer.Option(help="The configuration, ptq.toml.")]


def load(config: Path) -> Settings:
    """The settings; a configuration that is wrong ends the program with all that is wrong with it."""
    from bot.config.settings import ConfigError, load_settings

    try:
        return load_settings(config)
    except ConfigError as error:
        give_up(str(error), status=2)


def write(text: str, *, err: bool = False) -> None:
    """Print a text from anybody: no character of it reaches the terminal as a command, or stays unseen.

    Nothing else in this program prints.
    """
    stream = sys.stderr if err else sys.stdout
    stream.flush()
    stream.buffer.write(show_for_terminal(text).encode(errors="backslashreplace"))
    stream.buffer.flush()


def give_up(reason: str, status: int = 1) -> NoReturn:
    """End the program with one sentence."""
    write(f"{reason}\n", err=True)
    raise typer.Exit(status) from None
