"""`ptq-bot report` and `ptq-bot costs`, as the processes that an operator starts."""

from __future__ import annotations

import csv
import io
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bot.demo.loopback import find_free_port
from runner.model.job import JobState, Report
from runner.rows import job_rows
from tests.bot.test_cli import AGENT_VALUE, configure
from tests.support import program
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.meters import make_meter

pytestmark = pytest.mark.slow

REPORT = Report(
    "0123456789",
    body="security concern\n\n## Summary\nAnyone\x1b[2J may\rwrite. \u202eevil\n",
    worklog=f"used {AGENT_VALUE} and https://user:password@host\n",
    pr_title="",
    repro="print('it')\n",
    patch=f"--- a/a.py\n+++ b/a.py\n@@ -1 +1,3 @@\n+closed\n-{AGENT_VALUE}\n \u202e\n",
    changes=(),
    digest=None,
)
METER = make_meter(
    "0123456789",
    model="=model()",
    turns=12,
    tool_calls=34,
    input_tokens=1000,
    cached_tokens=200,
    output_tokens=50,
    cost_usd=0.4242,
    cost_is_estimate=True,
    output_bytes=9,
    run_s=61.5,
    ending="finished",
)


async def fill(folder: Path) -> None:
    """Three jobs on three days; the first has a meter and a report."""
    async with open_database(folder) as database, database.write() as connection:
        for day, job_id in enumerate(("0123456789", "1123456789", "2123456789")):
            created_at = NOON.replace(hour=0) + timedelta(days=day)
            changes: dict[str, Any] = {"state": JobState.FAILED, "thread": day + 1, "requested_by": "-dash"}
            await job_rows.insert_job(connection, make_job(id=job_id, created_at=created_at, **changes))
        await job_rows.save_meter(connection, METER)
        await store_report(connection, REPORT)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


async def test_a_report_is_printed_whole_and_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = program.run("report", "0123456789", "--config", configure(tmp_path, 0))
    assert done.returncode == 0, done.stderr
    masked = "1 removed line with what looks like a secret, masked in the diff of ``\n"
    for part in ("octo/widgets#1", "=== Report ===", "Anyone", f"=== Diff ===\n\n{masked}", "print('it')"):
        assert part in done.stdout
    assert "user:password@host" in done.stdout, "it may be what the report is about"
    assert AGENT_VALUE not in done.stdout
    for written_out in ("⟨U+001B⟩[2J", "⟨U+000D⟩", "⟨U+202E⟩"):
        assert written_out in done.stdout
    assert "+closed\n-[redacted]\n ⟨U+202E⟩\n" in done.stdout
    assert not set("\x1b\r\u202e") & set(done.stdout)


async def test_a_job_without_a_result_says_so(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = program.run("report", "1123456789", "--config", configure(tmp_path, 0))
    assert (done.returncode, "Nothing was collected." in done.stdout) == (0, True)


async def test_an_unknown_job_is_one_sentence(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = program.run("report", "nothing\x1b[2J", "--config", configure(tmp_path, 0))
    assert done.returncode == 1
    assert done.stderr == "ptq-bot: there is no job 'nothing⟨U+001B⟩[2J'\n"
    assert done.stdout == ""


@pytest.mark.parametrize("command", [("report", "0123456789"), ("costs",)])
def test_what_only_reads_makes_no_database(tmp_path: Path, command: Sequence[str]) -> None:
    done = program.run(*command, "--config", configure(tmp_path, 0))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("ptq.db: the file does not exist")
    assert not (tmp_path / "ptq.db").exists()


async def test_costs_are_a_table_in_which_unknown_is_empty_and_no_cell_is_a_formula(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = program.run(
        "costs", "--config", configure(tmp_path, 0, ('command = ["true"]', 'command = ["true"]\nmodel = "m"'))
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "job,created_at,repository,issue,requested_by,preset,attempt,agent,model,state,ending,turns,tool_calls,"
        "retries,unknown_events,input_tokens,cached_tokens,output_tokens,cost_usd,cost_is_estimate,run_s"
    )
    first, second, _ = read(done.stdout)
    assert first == {
        **{"job": "0123456789", "created_at": "2026-03-01T00:00:00+00:00", "repository": "octo/widgets", "issue": "1"},
        **{"requested_by": "'-dash", "preset": "fix", "attempt": "1", "agent": "mine", "model": "'=model()"},
        **{"state": "failed", "ending": "finished", "turns": "12", "tool_calls": "34", "input_tokens": "1000"},
        **{
            "retries": "0",
            "unknown_events": "0",
            "cached_tokens": "200",
            "output_tokens": "50",
            "cost_usd": "0.4242",
            "cost_is_estimate": "true",
        },
        "run_s": "61.5",
    }
    assert second["model"] == "m"
    assert {second[name] for name in ("turns", "cost_usd", "cost_is_estimate", "run_s", "ending")} == {""}


@pytest.mark.parametrize(
    ("days", "issues"),
    [
        (("--since", "2026-03-02"), ["2", "3"]),
        (("--until", "2026-03-02"), ["1", "2"]),
        (("--since", "2026-03-02", "--until", "2026-03-02"), ["2"]),
        (("--since", "2026-04-01"), []),
    ],
)
async def test_costs_are_of_the_days_that_were_asked_for(
    tmp_path: Path, days: Sequence[str], issues: list[str]
) -> None:
    await fill(tmp_path)
    done = program.run("costs", "--config", configure(tmp_path, 0), *days)
    assert [row["issue"] for row in read(done.stdout)] == issues
    assert done.stdout.startswith("job,")


@pytest.mark.parametrize(
    "days", [("--since", "2026-02-30"), ("--until", "today"), ("--since", "2026-03-02", "--until", "2026-03-01")]
)
def test_a_wrong_date_is_said_so(tmp_path: Path, days: Sequence[str]) -> None:
    done = program.run("costs", "--config", configure(tmp_path, 0), *days)
    assert done.returncode == 2
    assert days[-2] in done.stderr
    assert "Traceback" not in done.stderr


async def test_both_work_beside_a_running_service(tmp_path: Path) -> None:
    await fill(tmp_path)
    port = find_free_port()
    config = configure(tmp_path, port)
    with program.start(tmp_path, "serve", "--config", config) as service:
        service.wait_for_http(f"http://127.0.0.1:{port}/healthz")
        assert len(read(program.run("costs", "--config", config).stdout)) == 3
        assert "=== Report ===" in program.run("report", "0123456789", "--config", config).stdout
        assert service.stop(signal.SIGTERM)[0] == 0
