"""`ptq-bot db`, and what `serve` says of a database, as an operator sees them."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from bot.cli.db import upgrade_command
from bot.demo.loopback import find_free_port
from handlers.cases import casebook
from runner.model.job import JobState
from runner.rows import job_rows
from tests.bot.test_cli import assert_no_secret, configure, refuse_to_start
from tests.support import program
from tests.support.jobs import NOON, make_job, open_database

pytestmark = pytest.mark.slow


def read_job_page(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/jobs/{make_job().id}", timeout=60) as answer:
        page: bytes = answer.read()
        return page.decode()


async def add_finished_job(folder: Path) -> None:
    """A job of which nothing is left to be done."""
    job = make_job(state=JobState.CANCELLED, failure="enough of it")
    report = casebook.draft_reply("r", "report", job, "It is over.", NOON)
    async with open_database(folder) as database, database.write() as connection:
        await job_rows.insert_job(connection, job)
        await casebook.insert_reply(connection, replace(report, posted_body=report.body, comment_id=1, final=True))


def test_the_command_that_upgrades_a_database_can_be_typed_as_it_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    asyncio.run(add_finished_job(folder))
    name, *arguments = shlex.split(upgrade_command(configure(folder, find_free_port())))
    assert name == "ptq-bot"
    done = program.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(": nothing to do\n")


@pytest.mark.parametrize(
    ("version", "words"),
    [("9999", "install a newer version"), ("0022", "move it away; ptq-bot creates a new one")],
)
def test_a_database_of_another_version_is_refused_with_what_to_do(tmp_path: Path, version: str, words: str) -> None:
    asyncio.run(add_finished_job(tmp_path))
    with sqlite3.connect(tmp_path / "ptq.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    line = refuse_to_start(configure(tmp_path, 0))
    assert f"it has schema {version}" in line
    assert words in line


def test_a_second_service_on_a_database_is_refused_and_other_commands_are_not(tmp_path: Path) -> None:
    port = find_free_port()
    config = configure(tmp_path, port)
    with program.start(tmp_path, "serve", "--config", config) as service:
        service.wait_for_http(f"http://127.0.0.1:{port}/healthz")
        assert "another ptq-bot service is using it; stop that one first" in refuse_to_start(config)
        upgrade = program.run("db", "upgrade", "--config", config)
        assert (upgrade.returncode, "another ptq-bot service" in upgrade.stderr) == (1, True)
        assert program.run("costs", "--config", config).returncode == 0
        service.stop(signal.SIGKILL)
    with program.start(tmp_path, "serve", "--config", config) as service:
        service.wait_for_http(f"http://127.0.0.1:{port}/healthz")


def test_a_backup_of_a_running_service_makes_a_new_service(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    asyncio.run(add_finished_job(old))
    old_port, new_port = find_free_port(), find_free_port()
    config = configure(old, old_port)
    with program.start(old, "serve", "--config", config) as service:
        service.wait_for_http(f"http://127.0.0.1:{old_port}/healthz")
        done = program.run("db", "backup", new / "ptq.db", "--config", config)
        assert (done.returncode, done.stdout) == (0, f"copied to {new / 'ptq.db'}\n")
        page = read_job_page(old_port)
    assert [path.name for path in new.iterdir()] == ["ptq.db"]
    assert stat.S_IMODE((new / "ptq.db").stat().st_mode) == 0o600
    with program.start(new, "serve", "--config", configure(new, new_port)) as service:
        service.wait_for_http(f"http://127.0.0.1:{new_port}/healthz")
        assert read_job_page(new_port) == page
    assert "enough of it" in page


def test_a_backup_of_postgresql_is_left_to_its_own_tool(tmp_path: Path, postgres_url: str) -> None:
    done = program.run("db", "backup", "x", "--config", configure(tmp_path, 0), PTQ_SERVER__DATABASE_URL=postgres_url)
    assert done.returncode == 1
    assert "pg_dump" in done.stderr
    assert postgres_url not in done.stderr


def test_the_service_runs_on_postgresql_and_is_as_silent_about_its_password(tmp_path: Path, postgres_url: str) -> None:
    port = find_free_port()
    config = configure(tmp_path, port)
    password = postgres_url.partition("ptq:")[2].partition("@")[0]
    with program.start(tmp_path, "serve", "--config", config, PTQ_SERVER__DATABASE_URL=postgres_url) as service:
        service.wait_for_http(f"http://127.0.0.1:{port}/readyz")
        status, _ = service.stop(signal.SIGTERM)
    assert status == 0
    events = [json.loads(line)["event"] for line in service.text().splitlines()]
    ours = [event for event in events if event.startswith("service.")]
    assert ours == ["service.started", "service.stopping", "service.stopped"]
    assert password not in service.text()
    assert_no_secret(service.text())
    wrong = postgres_url.replace(password, f"{password}-hunter2")
    line = refuse_to_start(config, PTQ_SERVER__DATABASE_URL=wrong)
    assert "password authentication failed" in line
    assert password not in line
