"""`ptq-bot machines`: manage machines."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bot.cli.options import AsJson, Config, give_up, load, write
from bot.cli.run import print_answer

if TYPE_CHECKING:
    from bot.operations.host_keys import HostKey

app = typer.Typer(no_args_is_help=True, help="Manage machines.")

Name = Annotated[str, typer.Argument(help="The machine's name in the configuration.")]


@app.command("add")
def add_(
    target: Annotated[str, typer.Argument(metavar="USER@HOST[:PORT]", help="SSH address.")],
    config: Config,
    name: Annotated[str, typer.Option(help="Name of the machine. Comments show it.")],
    slots: Annotated[int, typer.Option(min=1, help="Jobs at the same time.")] = 1,
    label: Annotated[list[str] | None, typer.Option(help="A label, such as gpu. Can be repeated.")] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Work folder on the machine; it must belong to the user.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="SSH private key.")] = None,
    known_hosts: Annotated[Path | None, typer.Option(help="known_hosts file.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Expected fingerprint of the host key, SHA256:... Without it, the command asks.")
    ] = None,
) -> None:
    """Add an SSH machine to the configuration after you confirm its host key.

    Work folder, key and known_hosts file default to those of the last machine in the file.
    """
    from bot.operations.machine_edits import NewMachine, add_machine

    new = NewMachine(target, name, slots, tuple(label or ()), workspace, key, known_hosts)
    print_answer(add_machine(config, load(config), new, partial(_confirm, fingerprint)))


def _confirm(fingerprint: str | None, key: HostKey) -> bool:
    """Whether the operator confirms the key, with the option or now."""
    if fingerprint is not None:
        if key.fingerprint != fingerprint:
            give_up(f"ptq-bot: the host key is {key.fingerprint}, not the expected one. Nothing was changed.")
        return True
    write(f"Host key of {key.host}: {key.public.split()[0]} {key.fingerprint}\n", err=True)
    write("Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` (or similar) on the machine.\n", err=True)
    if not sys.stdin.isatty():
        give_up(f"ptq-bot: there is no terminal to confirm the key. If it is correct: --fingerprint {key.fingerprint}")
    return typer.confirm("Do the keys match?", err=True)


@app.command("remove")
def remove_(name: Name, config: Config) -> None:
    """Remove a machine from the configuration. If it has jobs, drain it first."""
    from bot.operations.machine_edits import remove_machine

    print_answer(remove_machine(config, load(config), name))


@app.command("list")
def list_(config: Config, as_json: AsJson = False) -> None:
    """Print each machine's state, jobs, and last findings."""
    from bot.operations.machines import list_machines

    print_answer(list_machines(load(config), as_json=as_json))


@app.command("check")
def check_(config: Config, as_json: AsJson = False) -> None:
    """Connect to each machine now, and print whether it can isolate jobs from each other."""
    from bot.operations.machines import check_machines

    print_answer(check_machines(load(config), as_json=as_json))


@app.command("prepare")
def prepare_(
    name: Name,
    config: Config,
    repo: Annotated[str | None, typer.Option(help="Only this repository, as owner/name.")] = None,
) -> None:
    """Build or update a machine's base environments now."""
    from bot.operations.bases import prepare_bases
    from bot.operations.machines import UnknownMachine
    from runner.db.errors import DatabaseError

    try:
        made = asyncio.run(prepare_bases(load(config), name, repo, write))
    except UnknownMachine as error:
        give_up(f"ptq-bot: {error}", status=2)
    except DatabaseError as error:
        give_up(f"ptq-bot: {error}")
    if not made:
        raise typer.Exit(1)


@app.command("drain")
def drain_(name: Name, config: Config) -> None:
    """Stop scheduling jobs on a machine. Running jobs will finish."""
    from bot.operations.machines import drain_machine

    print_answer(drain_machine(load(config), name))


@app.command("resume")
def resume_(name: Name, config: Config) -> None:
    """Put a machine back in service, and clear its failures."""
    from bot.operations.machines import resume_machine

    print_answer(resume_machine(load(config), name))
