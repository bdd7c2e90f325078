"""`ptq-bot jobs`: which jobs there are, and what an operator does with one."""

from __future__ import annotations

from typing import Annotated

import typer

from bot.cli.options import Config, load
from bot.cli.run import print_answer
from runner.model.job import JobState

app = typer.Typer(no_args_is_help=True, help="Which jobs there are, and how they went.")

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]


@app.command("list")
def list_jobs_(
    config: Config,
    repo: Annotated[str | None, typer.Option(help="Only this repository, as owner/name.")] = None,
    state: Annotated[JobState | None, typer.Option(help="Only those in this state.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those that are under way.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the newest jobs."""
    from bot.operations.jobs import JobFilter, list_jobs

    print_answer(list_jobs(load(config), JobFilter(repo, state, active, limit), as_json=as_json))


@app.command("show")
def show_job_(job_id: Job, config: Config) -> None:
    """Print how a job went, step by step; ptq-bot report prints what came out of it."""
    from bot.operations.jobs import show_job

    print_answer(show_job(load(config), job_id))


@app.command("cancel")
def cancel_jobs_(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Their ids.")], config: Config
) -> None:
    """Ask jobs to end, whoever had asked for them; what they found by then is reported."""
    from bot.operations.jobs import cancel_jobs

    print_answer(cancel_jobs(load(config), job_ids))


@app.command("rename")
def rename_job_(
    job_id: Job, name: Annotated[str, typer.Argument(help="What it is called from now on.")], config: Config
) -> None:
    """Call a worktree or a task otherwise; a job of an issue goes by that."""
    from bot.operations.jobs import rename_job

    print_answer(rename_job(load(config), job_id, name))


@app.command("clean")
def clean_job_(job_id: Job, config: Config) -> None:
    """Delete the logs of a job that has ended, before their time; what came out of it stays."""
    from bot.operations.jobs import clean_job

    print_answer(clean_job(load(config), job_id))


@app.command("logs")
def read_log_(
    job_id: Job,
    config: Config,
    stage: Annotated[str, typer.Option(help="prepare, agent, collect or check.")] = "agent",
    raw: Annotated[bool, typer.Option("--raw", help="As it stands there, JSON and all.")] = False,
) -> None:
    """Print the log of a job, also while it is under way."""
    from bot.operations.jobs import read_log

    print_answer(read_log(load(config), job_id, stage, raw=raw))
