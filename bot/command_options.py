"""What the commands of the command line have in common: how they are given the configuration, and how they fail.

Exit status 2 means that the configuration or the command itself is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from bot.config import ConfigError, Settings, load_settings

Config = Annotated[Path, typer.Option(help="The configuration, ptq.toml.")]


def load(config: Path) -> Settings:
    """The settings; a configuration that is wrong ends the program with all that is wrong with it."""
    try:
        return load_settings(config)
    except ConfigError as error:
        give_up(str(error), status=2)


def give_up(reason: str, status: int = 1) -> NoReturn:
    """End the program with one sentence."""
    print(reason, file=sys.stderr)
    raise typer.Exit(status) from None
