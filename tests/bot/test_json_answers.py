"""`--json`: what commands print for programs."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from bot.config.settings import Settings, load_settings
from bot.operations.deliveries import read_deliveries
from bot.operations.holds import list_holds
from bot.operations.jobs import JobFilter, list_jobs, show_job
from bot.operations.reports import read_costs, read_report
from handlers.cases import casebook
from runner.db.schema import deliveries
from runner.model.job import JobState, Report
from runner.rows import job_rows
from runner.rows.holds import Hold, save_hold
from tests.bot.test_cli import AGENT_VALUE, configure
from tests.support.cli_manual import list_commands
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.meters import make_meter

JOB = "0123456789"
PULL = "https://git.example/octo/widgets/pull/9"
LISTS_AND_SHOWS = (
    *(
        "agents list",
        "costs",
        "deliveries",
        "doctor",
        "holds",
        "jobs list",
        "jobs show",
        "machines check",
        "machines list",
    ),
    *("report", "sweep"),
)


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """A job with a report, a pull request, costs and a hold, a verify job, and a delivery that failed."""
    report = Report(JOB, f"**Outcome:** fix staged\n\nIt said {AGENT_VALUE}.", "", "", "", "", (), None)
    ended = {"state": JobState.SUCCEEDED, "ended_at": NOON + timedelta(minutes=4), "machine": "here"}
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job(**ended))
        await job_rows.insert_job(connection, make_job(id="1123456789", preset="verify", thread=8, **ended))
        await job_rows.save_meter(connection, make_meter(JOB, turns=12, output_tokens=50, cost_usd=0.42))
        await store_report(connection, report)
        pull = casebook.Pull(
            JOB, "d", "note", "maintainer", "", "branch", NOON, next_attempt_at=NOON, number=9, url=PULL
        )
        await casebook.save_pull(connection, pull)
        await save_hold(connection, Hold(JOB, "maintainer", "ssh-ed25519 AAAA", NOON, NOON + timedelta(hours=8)))
        row = {"id": "one", "event": "issues", "lane": "octo/widgets#7", "body": b"{}", "error": AGENT_VALUE}
        times = {"received_at": NOON, "next_attempt_at": NOON}
        await connection.execute(deliveries.insert().values(**row, **times, state="failed", attempts=3))
    return load_settings(configure(tmp_path, 0))


def test_every_command_that_lists_or_shows_has_json() -> None:
    has_json = {
        name for name, command in list_commands().items() if any("--json" in one.opts for one in command.params)
    }
    assert has_json == set(LISTS_AND_SHOWS)


async def test_a_list_of_jobs_has_outcome_pull_request_and_cost(settings: Settings) -> None:
    fixed, verified = json.loads(await list_jobs(settings, JobFilter(), as_json=True))
    assert (fixed["outcome"], fixed["pull_request"], fixed["cost_usd"]) == ("fix staged", PULL, 0.42)
    assert (verified["outcome"], verified["pull_request"], verified["cost_usd"]) == ("not settled", None, None)
    assert (fixed["agent"], verified["agent"]) == ("mine", None)
    head, row, _ = (await list_jobs(settings, JobFilter())).splitlines()
    assert head.split()[4:9] == ["outcome", "PR", "age", "took", "cost"]
    assert "succeeded  fix staged   #9" in row
    assert "4 min 0 s  $0.42" in row


async def test_a_job_its_report_holds_deliveries_and_costs_are_values(settings: Settings) -> None:
    job = json.loads(await show_job(settings, JOB, as_json=True))
    assert job["usage"]["turns"] == 12
    assert job["hold"]["person"] == "maintainer"
    report = json.loads(await read_report(settings, JOB, as_json=True))
    assert report["body"] == "**Outcome:** fix staged\n\nIt said [redacted]."
    (hold,) = json.loads(await list_holds(settings, as_json=True))
    assert hold["ssh"][0] == "ssh"
    (delivery,) = json.loads(await read_deliveries(settings, failed=True, as_json=True))
    assert (delivery["id"], delivery["error"]) == ("one", "[redacted]")
    costs = json.loads(await read_costs(settings, None, None, as_json=True))
    assert [row["cost_usd"] for row in costs] == [0.42, None]
