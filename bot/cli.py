"""The command line: `ptq-bot serve`, the demo, and what operators ask and say beside a running service."""

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

from bot import db_commands
from bot.app import serve as serve_until_stopped
from bot.bases import prepare_bases
from bot.command_options import Config, give_up, load
from bot.config import load_settings
from bot.deliveries import NotReplayed, read_deliveries, replay
from bot.doctor.examination import examine
from bot.doctor.findings import has_failed, render_findings, render_json
from bot.event_loop import new_event_loop
from bot.hold_commands import HoldRefused, list_holds, release, take_over
from bot.log import configure_logging
from bot.machine_commands import UnknownMachine, check_machines, drain_machine, list_machines, resume_machine
from bot.pause_commands import UnknownRepository
from bot.pause_commands import pause as pause_jobs
from bot.pause_commands import resume as resume_jobs
from bot.reports import UnknownJob, read_costs, read_report
from bot.worktree_commands import give_task, make_worktree
from runner.db_errors import DatabaseError, OldDatabase

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(db_commands.app, name="db")
machines = typer.Typer(no_args_is_help=True, help="How the machines stand, and which get new jobs.")
app.add_typer(machines, name="machines")

Held = Annotated[str, typer.Argument(help="A job's id, or a worktree's name.")]
Key = Annotated[Path, typer.Option(help="The person's public key, such as id_ed25519.pub.")]
Hours = Annotated[float, typer.Option(help="How long the environment is kept.")]
By = Annotated[str, typer.Option(help="Who it is for; by default, whoever is logged in.")]
Only = Annotated[str | None, typer.Option("--repository", help="Only this one, owner/name.")]
Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A day, UTC; included.")]


@app.command()
def serve(config: Config) -> None:
    """Run the service until it gets SIGTERM. SIGHUP lets it read machines and repositories anew."""
    settings = load(config)
    configure_logging(settings.secret_values())
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve_until_stopped(settings, partial(load_settings, config)))
    except OldDatabase as error:
        give_up(f"ptq-bot cannot start: {error}; make a backup, then run: {db_commands.upgrade_command(config)}")
    except (DatabaseError, OSError) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        give_up(f"ptq-bot cannot start: {reason}")


@app.command()
def doctor(
    config: Config, as_json: Annotated[bool, typer.Option("--json", help="For programs: a list of findings.")] = False
) -> None:
    """Look at everything that the service depends on, and say what to do about what is not well.

    Exit status 1 where something has failed.
    """
    configure_logging((), level="CRITICAL")  # What clients say while they try again is in the findings.
    findings = asyncio.run(examine(config))
    text = render_json(findings) if as_json else render_findings(findings)
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    if has_failed(findings):
        raise typer.Exit(1)


@app.command()
def report(job_id: str, config: Config) -> None:
    """Print all that came out of a job, confidential or not: report, diff, repro and worklog."""
    _print(read_report(load(config), job_id))


@app.command()
def costs(config: Config, since: Day = None, until: Day = None) -> None:
    """Print what each job took, as CSV."""
    if since and until and until < since:
        raise typer.BadParameter("it is before --since", param_hint="--until")
    _print(read_costs(load(config), since and since.date(), until and until.date()))


@app.command()
def takeover(job: Held, config: Config, key: Key, hours: Hours = 8.0, by: By = "") -> None:
    """Let a person into a job's environment by their own key: end the job first, or make what is gone anew."""
    _print(take_over(load(config), job, key, hours=hours, by=by))


@app.command()
def worktree(
    name: str,
    config: Config,
    key: Key,
    repo: Annotated[str, typer.Option(help="The repository, as owner/name.")],
    machine: Annotated[str, typer.Option(help="Where it is made.")],
    ref: Annotated[str | None, typer.Option(help="A branch, refs/tags/..., refs/pull/12/head, or a commit.")] = None,
    hours: Hours = 8.0,
    by: By = "",
) -> None:
    """Make an environment for a person, without an agent, and let them in by their own key."""
    making = make_worktree(load(config), name, key, repository=repo, machine=machine, ref=ref, hours=hours, by=by)
    _print(making)


@app.command()
def assign(
    name: str,
    task: Annotated[str, typer.Argument(help="What it is to do, in your own words.")],
    config: Config,
    agent: Annotated[str | None, typer.Option(help="By default the repository's.")] = None,
    model: Annotated[str | None, typer.Option(help="By default the agent's.")] = None,
) -> None:
    """Let an agent go on in a worktree, as its person leaves it."""
    _print(give_task(load(config), name, task, agent=agent, model=model))


@app.command(name="release")
def release_(
    job: Held,
    config: Config,
    drop: Annotated[bool, typer.Option("--drop", help="Collect nothing.")] = False,
) -> None:
    """Let nobody into a job or worktree any more, and have what the person changed collected as a new attempt."""
    _print(release(load(config), job, drop=drop))


@app.command()
def holds(config: Config) -> None:
    """List the jobs whose environments are kept for people."""
    _print(list_holds(load(config)))


@machines.command("list")
def list_(config: Config) -> None:
    """Print how each machine stands."""
    _print(list_machines(load(config)))


@machines.command("check")
def check_(config: Config) -> None:
    """Ask each machine now, and print whether it can seal jobs from each other."""
    _print(check_machines(load(config)))


@machines.command("prepare")
def prepare_(
    name: str,
    config: Config,
    repo: Annotated[str | None, typer.Option(help="Only this repository, as owner/name.")] = None,
) -> None:
    """Make the bases of a machine's environments now, or bring them up to date, and show how it goes."""
    try:
        made = asyncio.run(prepare_bases(load(config), name, repo, partial(typer.echo, nl=False)))
    except UnknownMachine as error:
        give_up(f"ptq-bot: {error}", status=2)
    if not made:
        raise typer.Exit(1)


@machines.command("drain")
def drain_(name: str, config: Config) -> None:
    """Let a machine have no new jobs; those that are there go on to their end."""
    _print(drain_machine(load(config), name))


@machines.command("resume")
def resume_(name: str, config: Config) -> None:
    """Let a machine have jobs again, and forget what was found wrong with it."""
    _print(resume_machine(load(config), name))


@app.command()
def pause(config: Config, repository: Only = None) -> None:
    """Let no new job begin, everywhere or in one repository; those under way go on."""
    _print(pause_jobs(load(config), repository))


@app.command()
def resume(config: Config, repository: Only = None) -> None:
    """Let new jobs begin again, whoever had paused them."""
    _print(resume_jobs(load(config), repository))


@app.command()
def deliveries(
    config: Config, failed: Annotated[bool, typer.Option("--failed", help="Only those that were set aside.")] = False
) -> None:
    """List the newest webhook deliveries, with what went wrong."""
    _print(read_deliveries(load(config), failed=failed))


@app.command(name="replay")
def replay_delivery(
    delivery_id: str,
    config: Config,
    force: Annotated[bool, typer.Option("--force", help="Also one that was worked already.")] = False,
) -> None:
    """Let a delivery that was set aside be worked again, by the service that is running or runs next."""
    _print(replay(load(config), delivery_id, force=force))


def _print(answering: Coroutine[None, None, str]) -> None:
    try:
        text = asyncio.run(answering)
    except (UnknownMachine, UnknownRepository) as error:
        give_up(f"ptq-bot: {error}", status=2)
    except (DatabaseError, UnknownJob, NotReplayed, HoldRefused) as error:
        give_up(f"ptq-bot: {error}")
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running, and say where.")] = False,
) -> None:
    """Tell the whole story on embedded parts: an issue, a job, a report, a human note, a draft pull request."""
    # The service needs none of this in its memory.
    from bot.demo.story import DemoFailed, run_demo  # noqa: PLC0415

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
