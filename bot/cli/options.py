"""What all commands share: loading the configuration, printing, and failing.

Exit status 2 means that the configuration or the command is not valid.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from runner.characters import show_for_terminal

if TYPE_CHECKING:
    from bot.config.settings import Settings

CONFIG_VARIABLE = "PTQ_CONFIG"
CONFIG_PLACES = (Path("ptq.toml"), Path("/etc/ptq/ptq.toml"))
"""Where the configuration is if neither `--config` nor the variable names it; the first that exists."""


def find_config() -> Path:
    """The configuration of a command without `--config`. Ends the program if there is none."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    found = next((path for path in CONFIG_PLACES if path.exists()), None)
    if found is None:
        places = " or ".join(f"./{path}" if not path.is_absolute() else str(path) for path in CONFIG_PLACES)
        give_up(
            f"ptq-bot: there is no {places}. Name your configuration with --config or {CONFIG_VARIABLE}, "
            "or write one with: ptq-bot setup",
            status=2,
        )
    return found


Config = Annotated[
    Path,
    typer.Option(
        default_factory=find_config,
        show_default=f"${CONFIG_VARIABLE}, ./ptq.toml or /etc/ptq/ptq.toml",
        help="Configuration file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
By = Annotated[str, typer.Option(help="Name of the person. Default: your login on this host.")]
Agent = Annotated[str | None, typer.Option(help="Default: the earlier attempt's, or the repository's.")]
Model = Annotated[str | None, typer.Option(help="Default: the earlier attempt's, or the agent's.")]
Thinking = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help="How hard the agent thinks; ptq-bot agents list shows the levels. "
        "Default: the earlier attempt's, or the agent's.",
    ),
]
MaxTurns = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="End the run after N answers of the model. Default: the earlier attempt's, or the cap.",
    ),
]
MaxCost = Annotated[
    str | None,
    typer.Option(
        metavar="DOLLARS",
        help="End the run when it has cost this much. Default: the earlier attempt's, or the cap.",
    ),
]
Machine = Annotated[str | None, typer.Option(help="Default: any suitable machine.")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Start even if people seem to work on the issue.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start without what earlier attempts found.")]


def load(config: Path) -> Settings:
    """Load the settings. If they are not valid, end the program with every problem."""
    from bot.config.settings import ConfigError, load_settings

    try:
        return load_settings(config)
    except ConfigError as error:
        give_up(str(error), status=2)


def write(text: str, *, err: bool = False) -> None:
    """Print a text. Control and invisible characters are shown as text, because anybody may have written it.

    Nothing else in this program prints.
    """
    stream = sys.stderr if err else sys.stdout
    stream.flush()
    stream.buffer.write(show_for_terminal(text).encode(errors="backslashreplace"))
    stream.buffer.flush()


def read_words(given: str) -> str:
    """The words of an argument; `-` reads them from stdin."""
    return sys.stdin.read() if given == "-" else given


def give_up(reason: str, status: int = 1) -> NoReturn:
    """End the program with a sentence on stderr."""
    write(f"{reason}\n", err=True)
    raise typer.Exit(status) from None
