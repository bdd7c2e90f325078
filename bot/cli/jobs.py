"""`ptq-bot jobs`: list, show and manage jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from bot.cli.options import AsJson, Config, load, write
from bot.cli.run import print_answer, wait_for
from runner.model.job import JobState

app = typer.Typer(no_args_is_help=True, help="List, show and manage jobs.")

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]


@app.command("list")
def list_jobs_(
    config: Config,
    repo: Annotated[str | None, typer.Option(help="Only this repository, as owner/name.")] = None,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only jobs that have not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most N jobs, the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs."""
    from bot.operations.jobs import JobFilter, list_jobs

    print_answer(list_jobs(load(config), JobFilter(repo, state, active, limit), as_json=as_json))


@app.command("show")
def show_job_(job_id: Job, config: Config, as_json: AsJson = False) -> None:
    """Print a job and its steps. ptq-bot report prints its result."""
    from bot.operations.jobs import show_job

    print_answer(show_job(load(config), job_id, as_json=as_json))


@app.command("cancel")
def cancel_jobs_(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs.")], config: Config
) -> None:
    """Cancel jobs, no matter who requested them. Results so far are reported."""
    from bot.operations.jobs import cancel_jobs

    print_answer(cancel_jobs(load(config), job_ids))


@app.command("rename")
def rename_job_(job_id: Job, name: Annotated[str, typer.Argument(help="The new name.")], config: Config) -> None:
    """Rename a worktree or task."""
    from bot.operations.jobs import rename_job

    print_answer(rename_job(load(config), job_id, name))


@app.command("clean")
def clean_job_(job_id: Job, config: Config) -> None:
    """Delete a finished job's logs early. Its results are kept."""
    from bot.operations.jobs import clean_job

    print_answer(clean_job(load(config), job_id))


@app.command("lift")
def lift_job_(job_id: Job, config: Config) -> None:
    """Let further jobs of a job's issue post their reports again, after a confidential report."""
    from bot.operations.jobs import lift_job

    print_answer(lift_job(load(config), job_id))


@app.command("logs")
def read_log_(
    job_id: Job,
    config: Config,
    stage: Annotated[str, typer.Option(help="prepare, agent, collect or check.")] = "agent",
    raw: Annotated[bool, typer.Option("--raw", help="Without formatting, as it was printed.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Print what is added, until the stage ends.")] = False,
) -> None:
    """Print the log of a job, also while it runs."""
    from bot.operations.jobs import follow_log, read_log

    if follow:
        show_state = partial(write, err=True)
        wait_for(follow_log(load(config), job_id, stage, write, show_state, raw=raw), "The job goes on.")
    else:
        print_answer(read_log(load(config), job_id, stage, raw=raw))
