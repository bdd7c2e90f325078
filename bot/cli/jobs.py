"""`ptq-bot jobs`: list, show and manage jobs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.options import (
    Agent,
    Anyway,
    AsJson,
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
    write,
)
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
    config: Config,
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB...", help="Ids of jobs.")] = None,
    machine: Annotated[str | None, typer.Option(help="Also all jobs that run on this machine.")] = None,
) -> None:
    """Cancel jobs, no matter who requested them. Results so far are reported."""
    from bot.operations.jobs import cancel_jobs

    if not job_ids and machine is None:
        give_up("ptq-bot: name jobs, or a machine with --machine", status=2)
    print_answer(cancel_jobs(load(config), job_ids or (), machine))


@app.command("tell")
def tell_job_(
    job_id: Job,
    words: Annotated[
        str, typer.Argument(metavar="WORDS", help="What the agent should know or do, in quotes; - reads it from stdin.")
    ],
    config: Config,
) -> None:
    """Tell the agent of an active job something. It gets the words at its next safe point, and goes on."""
    from bot.operations.jobs import tell_job

    print_answer(tell_job(load(config), job_id, read_words(words)))


@app.command("rename")
def rename_job_(job_id: Job, name: Annotated[str, typer.Argument(help="The new name.")], config: Config) -> None:
    """Rename a worktree or task."""
    from bot.operations.jobs import rename_job

    print_answer(rename_job(load(config), job_id, name))


@app.command("clean")
def clean_job_(
    config: Config,
    job_id: Annotated[str | None, typer.Argument(metavar="JOB", help="A job's id.")] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="Delete the logs of all finished jobs except the newest N."),
    ] = None,
) -> None:
    """Delete a finished job's logs early. Its results are kept."""
    from bot.operations.jobs import clean_job, clean_older_jobs

    if job_id and keep is None:
        print_answer(clean_job(load(config), job_id))
    elif keep is not None and not job_id:
        print_answer(clean_older_jobs(load(config), keep))
    else:
        give_up("ptq-bot: give either a job's id or --keep N", status=2)


@app.command("results")
def write_results_(
    job_id: Job,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    config: Config,
) -> None:
    """Write a job's report, diff, repro, worklog and logs as files."""
    from bot.cli.results import write_results

    print_answer(write_results(load(config), job_id, folder))


@app.command("retry")
def retry_job_(
    job_id: Job,
    config: Config,
    advice: Annotated[str, typer.Argument(help="What to do differently; - reads it from stdin.")] = "",
    preset: Annotated[str | None, typer.Option(help="Another preset than the attempt had.")] = None,
    agent: Agent = None,
    model: Model = None,
    thinking: Thinking = None,
    max_turns: MaxTurns = None,
    max_cost: MaxCost = None,
    machine: Machine = None,
    anyway: Anyway = False,
    fresh: Fresh = False,
) -> None:
    """Continue the last attempt at a job's issue or task. On an issue, this is like /ptq retry."""
    from bot.operations.launch import IssueOrder, describe_task, go_on
    from handlers.commands.options import Options
    from handlers.jobs.start import RETRY

    options = Options(
        agent=agent,
        model=model,
        thinking=thinking,
        max_turns=max_turns,
        max_cost=max_cost,
        machine=machine,
        preset=preset,
        anyway=anyway,
        fresh=fresh,
    )
    order = IssueOrder(RETRY, options, advice=read_words(advice))
    settings = load(config)
    write(describe_task(settings, wait_for(go_on(settings, job_id, order), "It may have been started.")))


@app.command("rebase")
def rebase_job_(
    job_id: Job,
    config: Config,
    onto: Annotated[str | None, typer.Option(help="A branch or commit. Default: the base branch.")] = None,
    agent: Agent = None,
    model: Model = None,
    thinking: Thinking = None,
    max_turns: MaxTurns = None,
    max_cost: MaxCost = None,
    machine: Machine = None,
    anyway: Anyway = False,
) -> None:
    """Rebase the current diff of a job's issue or task onto a newer commit. On an issue, this is like /ptq rebase."""
    from bot.operations.launch import IssueOrder, describe_task, go_on
    from handlers.commands.options import Options
    from handlers.rules import REBASE

    options = Options(
        agent=agent,
        model=model,
        thinking=thinking,
        max_turns=max_turns,
        max_cost=max_cost,
        machine=machine,
        anyway=anyway,
    )
    order = IssueOrder(REBASE, options, onto=onto)
    settings = load(config)
    write(describe_task(settings, wait_for(go_on(settings, job_id, order), "It may have been started.")))


@app.command("lift")
def lift_job_(job_id: Job, config: Config) -> None:
    """End the confidentiality of the issue that a job belongs to. New jobs post their reports again."""
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
