"""`ptq-bot machines`: its commands, as typer has them."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bot.cli.options import Config, give_up, load, write
from bot.cli.run import print_answer

if TYPE_CHECKING:
    from bot.operations.host_keys import HostKey

app = typer.Typer(no_args_is_help=True, help="Which machines there are, how they stand, and which get new jobs.")

Name = Annotated[str, typer.Argument(help="The machine's name in the configuration.")]


@app.command("add")
def add_(
    target: Annotated[str, typer.Argument(metavar="USER@HOST[:PORT]", help="How it is reached.")],
    config: Config,
    name: Annotated[str, typer.Option(help="What it is called, also in comments that everybody reads.")],
    slots: Annotated[int, typer.Option(min=1, help="Jobs at once.")] = 1,
    label: Annotated[list[str] | None, typer.Option(help="What it has, such as gpu; may be repeated.")] = None,
    workspace: Annotated[str | None, typer.Option(help="A folder there that is the user's own.")] = None,
    key: Annotated[Path | None, typer.Option(help="The private key that it lets in.")] = None,
    known_hosts: Annotated[Path | None, typer.Option(help="Where its host key is written down.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Of its host key, SHA256:...; without it you are asked.")
    ] = None,
) -> None:
    """Put a machine behind SSH into the configuration, once its host key is confirmed.

    Workspace, key and known_hosts file are those of the last machine there, unless you say others.
    """
    from bot.operations.machine_edits import NewMachine, add_machine

    new = NewMachine(target, name, slots, tuple(label or ()), workspace, key, known_hosts)
    print_answer(add_machine(config, load(config), new, partial(_confirm, fingerprint)))


def _confirm(fingerprint: str | None, key: HostKey) -> bool:
    """Whether it is that machine's own key, as the operator says beforehand or now."""
    if fingerprint is not None:
        if key.fingerprint != fingerprint:
            give_up(f"ptq-bot: its key is {key.fingerprint}, and not the one that you expect: nothing was changed")
        return True
    write(f"{key.host} shows this key: {key.public.split()[0]} {key.fingerprint}\n", err=True)
    write("There, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` and the like print it.\n", err=True)
    if not sys.stdin.isatty():
        give_up(f"ptq-bot: nobody is here to confirm it; if it is right: --fingerprint {key.fingerprint}")
    return typer.confirm("Is it that machine's own?", err=True)


@app.command("remove")
def remove_(name: Name, config: Config) -> None:
    """Take a machine out of the configuration. Drain it first where jobs are."""
    from bot.operations.machine_edits import remove_machine

    print_answer(remove_machine(config, load(config), name))


@app.command("list")
def list_(config: Config, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Print how each machine stands, its jobs, and what was last seen there."""
    from bot.operations.machines import list_machines

    print_answer(list_machines(load(config), as_json=as_json))


@app.command("check")
def check_(config: Config) -> None:
    """Ask each machine now, and print whether it can seal jobs from each other."""
    from bot.operations.machines import check_machines

    print_answer(check_machines(load(config)))


@app.command("prepare")
def prepare_(
    name: Name,
    config: Config,
    repo: Annotated[str | None, typer.Option(help="Only this repository, as owner/name.")] = None,
) -> None:
    """Make the bases of a machine's environments now, or bring them up to date, and show how it goes."""
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
    """Let a machine have no new jobs; those that are there go on to their end."""
    from bot.operations.machines import drain_machine

    print_answer(drain_machine(load(config), name))


@app.command("resume")
def resume_(name: Name, config: Config) -> None:
    """Let a machine have jobs again, and forget what was found wrong with it."""
    from bot.operations.machines import resume_machine

    print_answer(resume_machine(load(config), name))
