"""`ptq-bot bundle`: an archive that may be sent to somebody."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from bot.config.settings import load_settings
from bot.operations.bundle import NotBundled, describe_configuration, make_bundle
from bot.operations.context import UnknownJob
from handlers.text.sanitize import redact
from runner.model.job import Report
from runner.rows import job_rows
from runner.steps.spool import Spool
from tests.bot.test_cli import AGENT_VALUE, KEY, SECRET, configure
from tests.support.jobs import make_job, open_database, store_report

JOB = "0123456789"


async def fill(folder: Path, body: str = "") -> Path:
    """A job at work with a log and, with a `body`, a report. The configuration."""
    config = configure(folder, 0)
    async with open_database(folder) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job(id=JOB, prompt="what strangers wrote"))
        if body:
            report = Report(JOB, body, worklog="", pr_title="", repro="", patch="", changes=(), digest=None)
            await store_report(connection, report)
    log = f"asked with {AGENT_VALUE}\n".encode()
    Spool(load_settings(config).server.data_dir / "spool").append(JOB, "agent", log)
    return config


async def test_it_has_what_helps_and_no_secret_and_no_brief(tmp_path: Path) -> None:
    settings, target = load_settings(await fill(tmp_path)), tmp_path / "bundle.tar.gz"
    said = await make_bundle(settings, JOB, target)
    assert "Look through it" in said
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        files = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert files[f"ptq-bot-{JOB}/logs/agent.txt"] == "asked with [redacted]\n"
    assert "octo/widgets#7" in files[f"ptq-bot-{JOB}/job.txt"]
    assert "ptq-bot 0." in files[f"ptq-bot-{JOB}/about.txt"]
    assert '"slots": 1' in files[f"ptq-bot-{JOB}/configuration.json"]
    whole = "\n".join(files.values())
    for hidden in (AGENT_VALUE, SECRET, KEY.splitlines()[1], "what strangers wrote"):
        assert hidden not in whole


async def test_it_overwrites_nothing_and_tells_nothing_of_what_is_for_the_operator_alone(tmp_path: Path) -> None:
    config = await fill(tmp_path, body="security concern\n\n## Summary\nAnyone may write.\n")
    settings, target = load_settings(config), tmp_path / "bundle.tar.gz"
    with pytest.raises(NotBundled, match="for you alone"):
        await make_bundle(settings, JOB, target)
    assert not target.exists()
    with pytest.raises(UnknownJob):
        await make_bundle(settings, "none", target)


async def test_it_says_that_nobody_has_judged_the_log_of_a_run_without_a_report(tmp_path: Path) -> None:
    settings = load_settings(await fill(tmp_path, body=" \n"))
    said = await make_bundle(settings, JOB, tmp_path / "bundle.tar.gz")
    assert said.endswith("This job has no report, so its log may tell of a security concern.\n")


async def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    settings, target = load_settings(await fill(tmp_path)), tmp_path / "bundle.tar.gz"
    target.write_text("mine")
    with pytest.raises(NotBundled, match="File exists"):
        await make_bundle(settings, JOB, target)
    assert target.read_text() == "mine"


PASSWORD = "hunter@2%/q:x y"


@pytest.mark.parametrize(
    "written",
    [
        "hunter%402%25%2Fq%3Ax%20y",
        "hunter%402%25%2fq%3ax%20y",
        "%68unter%402%25%2Fq%3ax%20y",
        "%68%75nter%402%25%2fq%3Ax%20y",
    ],
)
def test_a_password_in_an_address_is_hidden_however_it_is_encoded(tmp_path: Path, written: str) -> None:
    database = f'database_url = "postgresql+asyncpg://ptq:{written}@db.example/ptq"\nport = 0'
    settings = load_settings(configure(tmp_path, 0, ("port = 0", database)))
    shown = describe_configuration(settings)
    assert "db.example" in shown
    for form in (PASSWORD, written, quote(PASSWORD), quote(PASSWORD, safe=""), quote(PASSWORD, safe="").lower()):
        assert form not in shown
        assert form not in redact(f"cannot reach it: {form} is wrong", settings.secret_values())


def test_what_a_command_calls_a_secret_is_hidden(tmp_path: Path) -> None:
    """Operators may write one where it does not belong, and nothing but its name tells what it is."""
    written = ["sh", "--api-key", "first", "--auth-token=second", "MY_PASSWORD=third run --tokenizer big -v", "last"]
    mine = ('command = ["true"]', f"command = {json.dumps(written)}")
    shown = json.loads(describe_configuration(load_settings(configure(tmp_path, 0, mine))))
    mask = "**********"
    hidden = ["sh", "--api-key", mask, f"--auth-token={mask}", f"MY_PASSWORD={mask} run --tokenizer big -v", "last"]
    assert shown["agents"]["mine"]["command"] == hidden
