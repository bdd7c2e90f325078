"""`ptq-bot jobs`: what an operator sees of jobs in a terminal."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.operations.context import UnknownJob
from bot.operations.jobs import (
    CLEANED_AT_ONCE,
    JobFilter,
    NotDone,
    cancel_jobs,
    clean_job,
    clean_older_jobs,
    follow_log,
    list_jobs,
    read_log,
    rename_job,
    render_span,
    show_job,
    tell_job,
)
from runner.model.job import JobKind, JobState
from runner.rows import job_rows
from runner.steps.spool import Spool
from tests.bot.test_cli import AGENT_VALUE, configure
from tests.support import program
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.meters import make_meter
from tests.support.site import make_report

EVENT = {"type": "assistant", "message": {"content": [{"type": "text", "text": f"I see {AGENT_VALUE}."}]}}


async def fill(folder: Path) -> Path:
    """A job that has ended, one at work on a machine, and one of another repository that waits. The configuration."""
    config = configure(folder, 0)
    async with open_database(folder) as database, database.write() as connection:
        ended = make_job(id="0123456789", failure=f"setup failed: {AGENT_VALUE}\x1b[2J")
        await job_rows.insert_job(connection, ended)
        for seconds, state in ((5, JobState.PREPARING), (65, JobState.FAILED)):
            at = NOON + timedelta(seconds=seconds)
            ended = await job_rows.move_job(
                connection, ended, state, at, ended.failure if state.name == "FAILED" else None
            )
        await job_rows.save_log(
            connection, ended.id, "prepare", job_rows.compress_log(b"cloning\n\x1b[31mno such host\x1b[0m\n")
        )
        await job_rows.save_meter(
            connection,
            make_meter(
                ended.id,
                model="opus",
                turns=12,
                tool_calls=34,
                input_tokens=1000,
                cached_tokens=200,
                output_tokens=50,
                cost_usd=0.4242,
            ),
        )
        running = make_job(id="1123456789", thread=8, machine="gpu-1", created_at=NOON + timedelta(hours=1))
        await job_rows.insert_job(connection, running)
        await job_rows.move_job(connection, running, JobState.PREPARING, NOON + timedelta(hours=1), machine="gpu-1")
        await job_rows.insert_job(
            connection,
            make_job(
                id="2123456789", repository="octo/other", created_at=NOON + timedelta(hours=2), trouble="no\nroom"
            ),
        )
    return config


async def test_jobs_are_listed_newest_first_and_by_what_is_asked_for(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    listed = (await list_jobs(settings, JobFilter())).splitlines()
    assert [line.split()[0] for line in listed] == ["job", "2123456789", "1123456789", "0123456789"]
    assert "no room" in listed[1]
    for wanted, expected in (
        (JobFilter(only_active=True), ["2123456789", "1123456789"]),
        (JobFilter(state=JobState.FAILED), ["0123456789"]),
        (JobFilter(repository="Octo/Widgets", limit=1), ["1123456789"]),
        (JobFilter(repository="octo/none"), []),
    ):
        rows = json.loads(await list_jobs(settings, wanted, as_json=True))
        assert [row["id"] for row in rows] == expected
        assert AGENT_VALUE not in str(rows)
    assert await list_jobs(settings, JobFilter(repository="octo/none")) == "There are none.\n"


async def test_the_operator_sees_which_outcomes_are_confidential(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0))
    async with open_database(tmp_path) as database, database.write() as connection:
        job = make_job(state=JobState.SUCCEEDED)
        await job_rows.insert_job(connection, job)
        await store_report(connection, make_report(body="security concern\n", job_id=job.id))
    assert "security concern, confidential" in await list_jobs(settings, JobFilter())
    (row,) = json.loads(await list_jobs(settings, JobFilter(), as_json=True))
    assert (row["outcome"], row["confidential"]) == ("security concern", True)


async def test_a_job_is_shown_with_what_was_requested_of_its_run(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0))
    async with open_database(tmp_path) as database, database.write() as connection:
        job = make_job(thinking="low", max_turns=20, max_cost_usd=2.5)
        await job_rows.insert_job(connection, job)
    shown = await show_job(settings, job.id)
    assert "thinking  low\n" in shown
    assert "limits    at most 20 turns and $2.50\n" in shown
    told = json.loads(await show_job(settings, job.id, as_json=True))
    assert (told["thinking"], told["max_turns"], told["max_cost_usd"]) == ("low", 20, 2.5)


async def test_a_job_is_shown_with_its_steps_and_how_long_each_took(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    shown = await show_job(settings, "0123456789")
    assert "octo/widgets#7, fix, attempt 1, requested by maintainer" in shown
    assert "2026-03-01 12:00:05 UTC  preparing  (+5 s)" in shown
    assert "(+1 min 0 s)" in shown
    assert "12 turns" in shown
    assert "/jobs/0123456789" in shown
    assert AGENT_VALUE not in shown
    assert "\x1b" not in shown
    with pytest.raises(UnknownJob, match="there is no job"):
        await show_job(settings, "no\x1b")


async def test_a_log_is_read_from_the_database_or_from_where_it_grows(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    kept = await read_log(settings, "0123456789", "prepare")
    assert kept.startswith("cloning\n")
    assert "\x1b" not in kept
    assert "There is no such log" in await read_log(settings, "1123456789", "agent")
    spool = Spool(settings.server.data_dir / "spool")
    spool.append("1123456789", "agent", f"looking at {AGENT_VALUE}\n".encode())
    assert await read_log(settings, "1123456789", "agent") == "looking at [redacted]\n"
    with pytest.raises(UnknownJob, match="there are prepare, agent, collect, check"):
        await read_log(settings, "1123456789", "compile")


async def test_the_log_of_a_stage_reads_as_sentences_and_raw_as_it_was_printed(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    log = "\x1e[Fetching.]\n\x1e$ git fetch\nFrom x\n" + "".join(f"\x1e[Check 1, run {n} of 2.]\n4\n" for n in (1, 2))
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.save_log(connection, "0123456789", "check", job_rows.compress_log(log.encode()))
    assert await read_log(settings, "0123456789", "check", raw=True) == log.replace("\x1e", "")
    assert await read_log(settings, "0123456789", "check") == (
        "-- Fetching.\n$ git fetch\nFrom x\n"
        "== Check 1, run 1 of 2\n4\n== Check 1, run 2 of 2\n-- The same output as in the first run.\n"
    )
    followed = list[str]()
    await follow_log(settings, "0123456789", "check", followed.append, followed.append, raw=True)
    assert log.replace("\x1e", "") in "".join(followed)


async def test_a_log_is_followed_until_its_stage_ends(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    spool, shown, states = Spool(settings.server.data_dir / "spool"), list[str](), list[str]()
    spool.append("1123456789", "prepare", b"cloning\n")
    following = asyncio.create_task(
        follow_log(settings, "1123456789", "prepare", shown.append, states.append, raw=False)
    )
    while not shown:
        await asyncio.sleep(0.01)
    spool.append("1123456789", "prepare", f"the key is {AGENT_VALUE}\n".encode())
    async with open_database(tmp_path) as database, database.write() as connection:
        job = await job_rows.fetch_job(connection, "1123456789")
        assert job
        await job_rows.move_job(connection, job, JobState.RUNNING, NOON)
    await asyncio.wait_for(following, 10)
    assert "".join(shown) == "cloning\nthe key is [redacted]\n"
    assert states == ["preparing\n", "running\n"]


async def test_what_an_agent_says_in_events_is_read_as_words(tmp_path: Path) -> None:
    config = await fill(tmp_path)
    config.write_text(config.read_text().replace('kind = "command"', 'kind = "claude"'))
    settings = load_settings(config)
    Spool(settings.server.data_dir / "spool").append("1123456789", "agent", json.dumps(EVENT).encode() + b"\n")
    assert "I see [redacted].\n" in await read_log(settings, "1123456789", "agent")
    raw = await read_log(settings, "1123456789", "agent", raw=True)
    assert json.loads(raw)["type"] == "assistant"
    assert AGENT_VALUE not in raw


async def test_jobs_that_are_under_way_are_asked_to_end_by_the_operator(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    with pytest.raises(UnknownJob):
        await cancel_jobs(settings, ["1123456789", "none"])
    said = await cancel_jobs(settings, ["1123456789", "0123456789"])
    assert said == "Job 1123456789 is being cancelled.\nJob 0123456789 has ended already (failed).\n"
    async with open_database(tmp_path) as database, database.read() as connection:
        asked, events = (
            await job_rows.fetch_job(connection, "1123456789"),
            await job_rows.fetch_events(connection, "1123456789"),
        )
    assert asked
    assert asked.canceller == "the operator", "no login at the terminal is anybody's on GitHub"
    assert [what for _, what in events if "cancel" in what] == ["cancel requested by the operator"]


async def test_all_jobs_on_a_machine_are_asked_to_end(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    assert await cancel_jobs(settings, ["1123456789"], "gpu-1") == "Job 1123456789 is being cancelled.\n"
    assert await cancel_jobs(settings, [], "gpu-1") == "Job 1123456789 is being cancelled.\n"
    with pytest.raises(NotDone, match="no job runs on a machine 'gpu-7'"):
        await cancel_jobs(settings, ["1123456789"], "gpu-7")


async def test_the_operator_tells_an_agent_something(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    said = await tell_job(settings, "1123456789", "Look at the \x1b[31mloop.")
    assert said.startswith("Noted. The agent gets your message")
    with pytest.raises(NotDone, match=r"no agent is running. After the job has ended: ptq-bot jobs retry"):
        await tell_job(settings, "0123456789", "Look.")
    shown = await show_job(settings, "1123456789")
    assert "The operator: Look at the " in shown
    assert "\x1b" not in shown
    assert "(the agent has not got this)" in shown
    (told,) = json.loads(await show_job(settings, "1123456789", as_json=True))["told"]
    assert (told["by"], told["given_at"]) == ("the operator", None)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3_661, "1 h 1 min"), (90_061, "1 d 1 h"), (-5, "0 s")],
)
def test_a_span_is_said_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert render_span(seconds) == words


@pytest.mark.slow
async def test_the_program_says_what_it_lacks(tmp_path: Path) -> None:
    config = await fill(tmp_path)
    assert program.run("jobs", "list", "--state", "failed", "--config", config).stdout.count("0123456789") == 1
    done = program.run("jobs", "show", "none", "--config", config)
    assert (done.returncode, done.stderr) == (1, "ptq-bot: there is no job 'none'\n")


async def test_a_task_is_called_otherwise_and_a_job_of_an_issue_is_not(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0))
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job())
        for number in (1, 2):
            task = make_job(id=f"{number}aaaaaaaaa", kind=JobKind.TASK, series=number, name=f"task{number}")
            await job_rows.insert_job(connection, task)
    assert await rename_job(settings, "1aaaaaaaaa", "nans") == "octo/widgets~task1 is called nans from now on.\n"
    assert "octo/widgets~nans" in await list_jobs(settings, JobFilter())
    assert "renamed from task1 by the operator" in await show_job(settings, "1aaaaaaaaa")
    for job_id, name, words in (
        ("0123456789", "nans", "belongs to octo/widgets#7"),
        ("1aaaaaaaaa", "task2", "gives tasks names such as task7 itself"),
        ("1aaaaaaaaa", "no name", "a name has 1 to 50 letters"),
        ("1aaaaaaaaa", "0123456789", "does not look like a job's id"),
        ("2aaaaaaaaa", "nans", "job 1aaaaaaaaa of octo/widgets already has this name"),
    ):
        with pytest.raises(NotDone, match=words):
            await rename_job(settings, job_id, name)


async def test_the_logs_of_an_ended_job_are_deleted_before_their_time(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path))
    assert "no such host" in await read_log(settings, "0123456789", "prepare")
    assert await clean_job(settings, "0123456789") == "The logs of job 0123456789 are deleted.\n"
    assert "There is no such log" in await read_log(settings, "0123456789", "prepare")
    assert "$0.42" in await show_job(settings, "0123456789")
    with pytest.raises(NotDone, match="job 1123456789 is preparing"):
        await clean_job(settings, "1123456789")


@pytest.mark.slow
async def test_all_logs_but_those_of_the_newest_jobs_are_deleted(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0))
    newest = CLEANED_AT_ONCE + 3
    async with open_database(tmp_path) as database, database.write() as connection:
        for number in range(newest + 1):
            ended = JobState.SUCCEEDED if number < newest else JobState.RUNNING
            at = NOON + timedelta(minutes=number)
            await job_rows.insert_job(
                connection, make_job(id=f"{number:010}", attempt=number, state=ended, created_at=at)
            )
            await job_rows.save_log(connection, f"{number:010}", "agent", job_rows.compress_log(b"working\n"))
    assert await clean_older_jobs(settings, 2) == f"The logs of {newest - 2} jobs are deleted.\n"
    assert await clean_older_jobs(settings, 2) == "The logs of 0 jobs are deleted.\n"
    for number in (newest, newest - 1, newest - 2):
        assert "working" in await read_log(settings, f"{number:010}", "agent"), number
    assert "There is no such log" in await read_log(settings, f"{newest - 3:010}", "agent")
