"""Run coding agents on GitHub issues, on your own machines."""

# Each command imports what it needs, so that `--help` answers at once.

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bot.cli import agents, db, jobs, machines, repositories
from bot.cli.options import (
    Agent,
    Anyway,
    AsJson,
    By,
    Config,
    Fresh,
    Machine,
    MaxCost,
    MaxTurns,
    Model,
    Thinking,
    give_up,
    load,
    read_words,
)
from bot.cli.options import write as _write
from bot.cli.run import print_answer as _print
from bot.cli.run import wait_for as _wait_for
from bot.cli.setup import setup

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command()(setup)
app.add_typer(agents.app, name="agents")
app.add_typer(db.app, name="db")
app.add_typer(machines.app, name="machines")
app.add_typer(jobs.app, name="jobs")
app.add_typer(repositories.app, name="repositories")

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Worktree = Annotated[str, typer.Argument(help="Name of the worktree.")]
Held = Annotated[str, typer.Argument(help="A job's id, or a worktree's name.")]
Key = Annotated[Path, typer.Option(help="The person's public key, such as id_ed25519.pub.")]
Hours = Annotated[float, typer.Option(help="Hours until access ends.")]
Repo = Annotated[str, typer.Option(help="The repository, as owner/name.")]
Ref = Annotated[str | None, typer.Option(help="A branch, refs/tags/..., refs/pull/12/head, or a commit.")]
Only = Annotated[str | None, typer.Option("--repository", help="Only this repository, as owner/name.")]
Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A day in UTC, inclusive.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        _write(f"ptq-bot {metadata.version('ptq-bot')}\n")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options of the program itself."""


@app.command()
def serve(config: Config) -> None:
    """Run the service until SIGTERM. SIGHUP reloads machines and repositories."""
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
    config: Config, as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False
) -> None:
    """Check the configuration and everything that the service depends on.

    Exit status 1 if a check failed.
    """
    from bot.doctor.examination import examine
    from bot.doctor.findings import has_failed, render_findings, render_findings_json
    from bot.observability.log import configure_logging

    configure_logging((), level="CRITICAL")  # The findings say why a client failed.
    findings = _wait_for(examine(config))
    _write(render_findings_json(findings) if as_json else render_findings(findings))
    if has_failed(findings):
        raise typer.Exit(1)


@app.command()
def report(job_id: Job, config: Config, as_json: AsJson = False) -> None:
    """Print a job's results, also confidential ones: report, diff, repro and worklog."""
    from bot.operations.reports import read_report

    _print(read_report(load(config), job_id, as_json=as_json))


@app.command()
def apply(
    job_id: Job,
    config: Config,
    *,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also apply a diff that ptq-bot refuses.")] = False,
) -> None:
    """Apply a job's diff to a new branch of the git checkout in this folder."""
    from bot.cli.apply import apply_diff

    _print(apply_diff(load(config), job_id, Path.cwd(), anyway=anyway))


@app.command()
def pr(job_id: Job, config: Config) -> None:
    """Print the address of the page on which you write a note, so that a job's diff becomes a draft pull request.

    A note is a signed-in person's own: no command, file or program can give one.
    """
    from bot.operations.reports import find_note_page

    _print(find_note_page(load(config), job_id))


@app.command()
def costs(config: Config, since: Day = None, until: Day = None, as_json: AsJson = False) -> None:
    """Print the costs of each job, as CSV unless you ask for JSON."""
    from bot.operations.reports import read_costs

    if since and until and until < since:
        raise typer.BadParameter("it is before --since", param_hint="--until")
    _print(read_costs(load(config), since and since.date(), until and until.date(), as_json=as_json))


@app.command()
def takeover(job: Held, config: Config, key: Key, hours: Hours = 8.0, by: By = "") -> None:
    """Give someone SSH access to a job's environment."""
    from bot.operations.holds import take_over

    _print(take_over(load(config), job, key, hours=hours, by=by))


@app.command()
def sweep(
    config: Config,
    repo: Repo,
    label: Annotated[str, typer.Option(help="Labels, comma-separated. Issues must have all of them.")],
    limit: Annotated[int, typer.Option(min=1, help="Check at most N issues, the oldest first.")] = 20,
    at_once: Annotated[int, typer.Option(min=1, help="Issues to check at the same time.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the issues.")] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of this sweep, used to resume it. Default: label and day.")
    ] = None,
    comment: Annotated[bool, typer.Option("--comment", help="Post the result on each issue.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and progress on stderr.")] = False,
) -> None:
    """Check which issues still reproduce, without agents or comments."""
    from bot.operations.sweep import SweepRequest, name_sweep
    from bot.operations.sweep import sweep as sweep_issues
    from bot.operations.sweep_summary import render_json, render_text
    from handlers.text.sanitize import redact

    settings = load(config)
    request = SweepRequest(repo, label, limit, at_once, name or name_sweep(label), comment)
    show = partial(_write, err=as_json)
    summary = _wait_for(
        sweep_issues(settings, request, show, dry=dry_run),
        f"What is under way goes on. To go on with the rest: the same command, with --name {shlex.quote(request.name)}",
    )
    _write(redact((render_json if as_json else render_text)(summary), settings.secret_values()))
    if not (dry_run or summary.is_complete):
        give_up(f"To go on: the same command, with --name {shlex.quote(request.name)}")


@app.command()
def run(
    config: Config,
    repo: Repo,
    task: Annotated[str, typer.Argument(help="Instructions for the agent; - reads them from stdin.")] = "",
    issue: Annotated[int | None, typer.Option(min=1, help="Work on this issue. The report is posted there.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="See ptq-bot presets. Default: diagnose for an issue, otherwise ad-hoc.")
    ] = None,
    agent: Agent = None,
    model: Model = None,
    thinking: Thinking = None,
    max_turns: MaxTurns = None,
    max_cost: MaxCost = None,
    machine: Machine = None,
    ref: Ref = None,
    name: Annotated[str, typer.Option(help="Name of the task. Default: task1, task2 and so on.")] = "",
    anyway: Anyway = False,
    fresh: Fresh = False,
    by: By = "",
    follow: Annotated[bool, typer.Option("--follow", help="Wait for the end, and print the report.")] = False,
) -> None:
    """Give an agent an issue, like a command in its thread, or a task without an issue."""
    from bot.operations.launch import IssueOrder, describe_task, start_from_terminal, start_task
    from bot.operations.launch import follow as follow_job
    from handlers.commands.options import Options
    from handlers.jobs.start import RETRY
    from handlers.jobs.tasks import TaskRequest

    if issue is None and (anyway or fresh):
        give_up("ptq-bot: --anyway and --fresh need --issue", status=2)
    if issue is not None and (ref is not None or name or by):
        give_up("ptq-bot: --issue cannot be combined with --ref, --name or --by", status=2)
    if issue is None and not task:
        give_up("ptq-bot: say what the agent should do, or name an issue with --issue", status=2)
    if preset == RETRY:
        give_up("ptq-bot: to continue an attempt: ptq-bot jobs retry JOB", status=2)
    settings, words = load(config), read_words(task)
    options = Options(
        agent=agent,
        model=model,
        thinking=thinking,
        max_turns=max_turns,
        max_cost=max_cost,
        machine=machine,
        anyway=anyway,
        fresh=fresh,
    )
    if issue is None:
        starting = start_task(settings, repo, TaskRequest(words, preset or "ad-hoc", ref, options, name), by)
    else:
        order = IssueOrder(preset or "diagnose", options, advice=words)
        starting = start_from_terminal(settings, repo, issue, order)
    job = _wait_for(starting, "It may have been started.")
    _write(describe_task(settings, job))
    if follow:
        show = partial(_write, err=True)
        text, succeeded = _wait_for(follow_job(settings, job, show), "The job goes on.")
        _write(text)
        if not succeeded:
            raise typer.Exit(1)


jobs.app.command("run")(run)


@app.command()
def presets(config: Config) -> None:
    """List the presets that jobs can have, your own among them."""
    from bot.operations.launch import list_presets

    _write(list_presets(load(config)))


@app.command()
def worktree(
    name: Worktree,
    config: Config,
    key: Key,
    repo: Repo,
    machine: Annotated[str, typer.Option(help="The machine to use.")],
    ref: Ref = None,
    hours: Hours = 8.0,
    by: By = "",
) -> None:
    """Create an environment without an agent, and give someone SSH access to it."""
    from bot.operations.worktrees import make_worktree

    making = make_worktree(load(config), name, key, repository=repo, machine=machine, ref=ref, hours=hours, by=by)
    _print(making)


@app.command()
def assign(
    name: Worktree,
    task: Annotated[str, typer.Argument(help="Instructions for the agent.")],
    config: Config,
    agent: Agent = None,
    model: Model = None,
    thinking: Thinking = None,
    max_turns: MaxTurns = None,
    max_cost: MaxCost = None,
) -> None:
    """Hand a worktree over to an agent."""
    from bot.operations.worktrees import give_task
    from handlers.commands.options import Options

    options = Options(agent=agent, model=model, thinking=thinking, max_turns=max_turns, max_cost=max_cost)
    _print(give_task(load(config), name, task, options))


@app.command(name="release")
def release_(
    job: Held,
    config: Config,
    drop: Annotated[bool, typer.Option("--drop", help="Discard the changes.")] = False,
) -> None:
    """End someone's access and collect their changes as a new attempt."""
    from bot.operations.holds import release

    _print(release(load(config), job, drop=drop))


@app.command()
def holds(config: Config, as_json: AsJson = False) -> None:
    """List the environments that people hold, with their SSH commands."""
    from bot.operations.holds import list_holds

    _print(list_holds(load(config), as_json=as_json))


@app.command()
def bundle(
    job_id: Job,
    config: Config,
    output: Annotated[Path | None, typer.Option(help="Default: ptq-bot-JOB.tar.gz in this folder.")] = None,
) -> None:
    """Collect a job's logs and settings for debugging. Secrets are removed."""
    from bot.operations.bundle import make_bundle

    _print(make_bundle(load(config), job_id, output or Path(f"ptq-bot-{job_id}.tar.gz")))


@app.command()
def pause(config: Config, repository: Only = None) -> None:
    """Stop starting new jobs, everywhere or in one repository. Running jobs continue."""
    from bot.operations.repositories import pause as pause_jobs

    _print(pause_jobs(load(config), repository))


@app.command()
def resume(config: Config, repository: Only = None) -> None:
    """Start new jobs again, no matter who paused them."""
    from bot.operations.repositories import resume as resume_jobs

    _print(resume_jobs(load(config), repository))


@app.command()
def deliveries(
    config: Config,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed deliveries.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the newest webhook deliveries, with their failures."""
    from bot.operations.deliveries import read_deliveries

    _print(read_deliveries(load(config), failed=failed, as_json=as_json))


@app.command(name="replay")
def replay_(
    delivery_id: Annotated[
        str, typer.Argument(metavar="DELIVERY", help="The delivery's id, as GitHub and `deliveries` show it.")
    ],
    config: Config,
    force: Annotated[bool, typer.Option("--force", help="Also replay a processed delivery.")] = False,
) -> None:
    """Retry a failed webhook delivery, in the running service or at its next start."""
    from bot.operations.deliveries import replay_delivery

    _print(replay_delivery(load(config), delivery_id, force=force))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running, and print the addresses.")] = False,
    play: Annotated[
        bool, typer.Option("--play", help="Only start everything; you play the maintainer in a browser.")
    ] = False,
    setup: Annotated[
        bool, typer.Option("--setup", help="Start a fake GitHub and a machine, so that you can try `setup`.")
    ] = False,
) -> None:
    """Run a self-contained demo: an issue, a job, a report, a human note, a draft pull request."""
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
    """The console script. Internal errors are printed without terminal control characters."""
    try:
        start()
    except Exception:
        _write(traceback.format_exc(), err=True)
        sys.exit(1)
