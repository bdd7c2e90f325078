"""The command line: `ptq-bot serve`, the demo, and what operators ask and say beside a running service.

Each command imports what it needs: `--help` has to answer at once.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bot.cli import db, jobs, machines
from bot.cli.options import Config, give_up, load
from bot.cli.options import write as _write
from bot.cli.run import print_answer as _print
from bot.cli.run import wait_for as _wait_for
from bot.cli.setup import setup

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command()(setup)
app.add_typer(db.app, name="db")
app.add_typer(machines.app, name="machines")
app.add_typer(jobs.app, name="jobs")

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Worktree = Annotated[str, typer.Argument(help="What the worktree is called.")]
Held = Annotated[str, typer.Argument(help="A job's id, or a worktree's name.")]
Key = Annotated[Path, typer.Option(help="The person's public key, such as id_ed25519.pub.")]
Hours = Annotated[float, typer.Option(help="How long the environment is kept.")]
By = Annotated[str, typer.Option(help="Who it is for; by default, whoever is logged in.")]
Repo = Annotated[str, typer.Option(help="The repository, as owner/name.")]
Ref = Annotated[str | None, typer.Option(help="A branch, refs/tags/..., refs/pull/12/head, or a commit.")]
Agent = Annotated[str | None, typer.Option(help="By default the repository's.")]
Model = Annotated[str | None, typer.Option(help="By default the agent's.")]
Only = Annotated[str | None, typer.Option("--repository", help="Only this one, owner/name.")]
Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A day, UTC; included.")]


@app.command()
def serve(config: Config) -> None:
    """Run the service until it gets SIGTERM. SIGHUP lets it read machines and repositories anew."""
    from bot.app import serve as serve_until_stopped
    from bot.config.settings import load_settings
    from bot.event_loop import new_event_loop
    from bot.observability.log import configure_logging
    from runner.db.errors import DatabaseError, OldDatabase

    settings = load(config)
    configure_logging(settings.secret_values())
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve_until_stopped(settings, partial(load_settings, config)))
    except OldDatabase as error:
        give_up(f"ptq-bot cannot start: {error}; make a backup, then run: {db.upgrade_command(config)}")
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
    from bot.doctor.examination import examine
    from bot.doctor.findings import has_failed, render_findings, render_findings_json
    from bot.observability.log import configure_logging

    configure_logging((), level="CRITICAL")  # What clients say while they try again is in the findings.
    findings = _wait_for(examine(config))
    _write(render_findings_json(findings) if as_json else render_findings(findings))
    if has_failed(findings):
        raise typer.Exit(1)


@app.command()
def report(job_id: Job, config: Config) -> None:
    """Print all that came out of a job, confidential or not: report, diff, repro and worklog."""
    from bot.operations.reports import read_report

    _print(read_report(load(config), job_id))


@app.command()
def costs(config: Config, since: Day = None, until: Day = None) -> None:
    """Print what each job took, as CSV."""
    from bot.operations.reports import read_costs

    if since and until and until < since:
        raise typer.BadParameter("it is before --since", param_hint="--until")
    _print(read_costs(load(config), since and since.date(), until and until.date()))


@app.command()
def takeover(job: Held, config: Config, key: Key, hours: Hours = 8.0, by: By = "") -> None:
    """Let a person into a job's environment by their own key: end the job first, or make what is gone anew."""
    from bot.operations.holds import take_over

    _print(take_over(load(config), job, key, hours=hours, by=by))


@app.command()
def sweep(
    config: Config,
    repo: Repo,
    label: Annotated[str, typer.Option(help="Whose open issues; several with commas between: those that have all.")],
    limit: Annotated[int, typer.Option(min=1, help="Issues, the oldest first.")] = 20,
    at_once: Annotated[int, typer.Option(min=1, help="How many are looked at at the same time.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Begin nothing: say what would be looked at.")] = False,
    name: Annotated[
        str | None, typer.Option(help="Of which none is looked at twice; by default label and day.")
    ] = None,
    comment: Annotated[bool, typer.Option("--comment", help="Post what was found on each issue.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; the lines go to stderr.")] = False,
) -> None:
    """See which issues of a backlog still reproduce, without an agent and without a word on them, a few at a time."""
    from bot.operations.sweep import Wish, name_sweep
    from bot.operations.sweep import sweep as sweep_issues
    from bot.operations.sweep_summary import render_json, render_text
    from handlers.text.sanitize import redact

    settings = load(config)
    wish = Wish(repo, label, limit, at_once, name or name_sweep(label), comment)
    show = partial(_write, err=as_json)
    summary = _wait_for(
        sweep_issues(settings, wish, show, dry=dry_run),
        f"What is under way goes on. To go on with the rest: the same command, with --name {shlex.quote(wish.name)}",
    )
    _write(redact((render_json if as_json else render_text)(summary), settings.secret_values()))
    if not (dry_run or summary.is_complete):
        give_up(f"To go on: the same command, with --name {shlex.quote(wish.name)}")


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="What is to be done, in your own words; - reads them from stdin.")],
    config: Config,
    repo: Repo,
    preset: Annotated[
        str, typer.Option(help="How to work: ad-hoc, repro, diagnose, fix, or one of your own.")
    ] = "ad-hoc",
    agent: Agent = None,
    model: Model = None,
    machine: Annotated[str | None, typer.Option(help="By default any that fits.")] = None,
    ref: Ref = None,
    by: By = "",
    follow: Annotated[bool, typer.Option("--follow", help="Wait, and print the report.")] = False,
) -> None:
    """Let an agent work by your words, without an issue. What comes of it is on the job's page."""
    from bot.operations.tasks import describe_order, give_order
    from bot.operations.tasks import follow as follow_job
    from handlers.commands.options import Options
    from handlers.jobs.tasks import TaskRequest

    settings, words = load(config), sys.stdin.read() if task == "-" else task
    order = TaskRequest(words, preset, ref, Options(agent=agent, model=model, machine=machine))
    job = _wait_for(give_order(settings, repo, order, by), "It may have been given.")
    _write(describe_order(settings, job))
    if follow:
        show = partial(_write, err=True)
        text, succeeded = _wait_for(follow_job(settings, job, show), "The job goes on.")
        _write(text)
        if not succeeded:
            raise typer.Exit(1)


jobs.app.command("run")(run)


@app.command()
def worktree(
    name: Worktree,
    config: Config,
    key: Key,
    repo: Repo,
    machine: Annotated[str, typer.Option(help="Where it is made.")],
    ref: Ref = None,
    hours: Hours = 8.0,
    by: By = "",
) -> None:
    """Make an environment for a person, without an agent, and let them in by their own key."""
    from bot.operations.worktrees import make_worktree

    making = make_worktree(load(config), name, key, repository=repo, machine=machine, ref=ref, hours=hours, by=by)
    _print(making)


@app.command()
def assign(
    name: Worktree,
    task: Annotated[str, typer.Argument(help="What it is to do, in your own words.")],
    config: Config,
    agent: Agent = None,
    model: Model = None,
) -> None:
    """Let an agent go on in a worktree, as its person leaves it."""
    from bot.operations.worktrees import give_task

    _print(give_task(load(config), name, task, agent=agent, model=model))


@app.command(name="release")
def release_(
    job: Held,
    config: Config,
    drop: Annotated[bool, typer.Option("--drop", help="Collect nothing.")] = False,
) -> None:
    """Let nobody into a job or worktree any more, and have what the person changed collected as a new attempt."""
    from bot.operations.holds import release

    _print(release(load(config), job, drop=drop))


@app.command()
def holds(config: Config) -> None:
    """List the jobs whose environments are kept for people."""
    from bot.operations.holds import list_holds

    _print(list_holds(load(config)))


@app.command()
def bundle(
    job_id: Job,
    config: Config,
    output: Annotated[Path | None, typer.Option(help="By default ptq-bot-JOB.tar.gz, here.")] = None,
) -> None:
    """Write an archive for whoever looks into what went wrong with a job, without secrets."""
    from bot.operations.bundle import make_bundle

    _print(make_bundle(load(config), job_id, output or Path(f"ptq-bot-{job_id}.tar.gz")))


@app.command()
def pause(config: Config, repository: Only = None) -> None:
    """Let no new job begin, everywhere or in one repository; those under way go on."""
    from bot.operations.pause import pause as pause_jobs

    _print(pause_jobs(load(config), repository))


@app.command()
def resume(config: Config, repository: Only = None) -> None:
    """Let new jobs begin again, whoever had paused them."""
    from bot.operations.pause import resume as resume_jobs

    _print(resume_jobs(load(config), repository))


@app.command()
def deliveries(
    config: Config, failed: Annotated[bool, typer.Option("--failed", help="Only those that were set aside.")] = False
) -> None:
    """List the newest webhook deliveries, with what went wrong."""
    from bot.operations.deliveries import read_deliveries

    _print(read_deliveries(load(config), failed=failed))


@app.command(name="replay")
def replay_(
    delivery_id: Annotated[str, typer.Argument(metavar="DELIVERY", help="Its id, as GitHub and deliveries have it.")],
    config: Config,
    force: Annotated[bool, typer.Option("--force", help="Also one that was worked already.")] = False,
) -> None:
    """Let a delivery that was set aside be worked again, by the service that is running or runs next."""
    from bot.operations.deliveries import replay_delivery

    _print(replay_delivery(load(config), delivery_id, force=force))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running, and say where.")] = False,
    play: Annotated[bool, typer.Option("--play", help="Only start it all, for you to play in a browser.")] = False,
    setup: Annotated[bool, typer.Option("--setup", help="Play all but ptq-bot, for you to set that up.")] = False,
) -> None:
    """Tell the whole story on embedded parts: an issue, a job, a report, a human note, a draft pull request."""
    from bot.demo.story import DemoFailed, play_demo, run_demo, set_up_demo
    from bot.observability.log import configure_logging

    configure_logging((), level="ERROR")
    console = Console()
    try:
        told = set_up_demo(console) if setup else play_demo(console) if play else run_demo(keep=keep, console=console)
        asyncio.run(told)
    except DemoFailed as error:
        give_up(f"The demo stopped: {error}")
    except asyncio.CancelledError:
        console.print("Stopped.")


def main(start: Callable[[], object] = app) -> None:
    """The console script. A fault of ours is told without what would command a terminal."""
    try:
        start()
    except Exception:
        _write(traceback.format_exc(), err=True)
        sys.exit(1)
