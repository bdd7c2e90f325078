"""`ptq-bot takeover`, `worktree`, `assign`, `release` and `holds` as they are typed, beside a database of a service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.model.job import JobState
from runner.rows import job_rows
from tests.bot.test_cli import configure
from tests.support import program
from tests.support.jobs import make_job, open_database
from tests.support.people import make_key

pytestmark = pytest.mark.slow

WORKTREE = ("worktree", "try", "--repo", "octo/widgets", "--machine", "here", "--by", "casey")


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """One with a database, a configuration and a key."""
    async with open_database(tmp_path) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job(state=JobState.QUEUED))
    configure(tmp_path, 0)
    make_key(tmp_path / "keys")
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    key = ("--key", str(folder / "keys" / "me.pub")) if words[0] in ("takeover", "worktree") else ()
    done = program.run(*words, *key, "--config", folder / "ptq.toml")
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("takeover", "0123456789"), "the job has no environment yet; wait until its agent runs"),
        (("takeover", "nobody"), "there is no job 'nobody'"),
        (("takeover", "0123456789", "--hours", "1000"), "a job is held for up to 168 hours"),
        (("release", "0123456789"), "nobody holds this job"),
        (("release", "0123456789", "--drop"), "nobody holds this job"),
        (("assign", "0123456789", "Go on."), "nobody holds this job"),
        ((*WORKTREE, "--repo", "octo/other"), "there is no repository 'octo/other'; configured: octo/widgets"),
        (("worktree", "a/b", *WORKTREE[2:]), "a name has 1 to 50 letters, digits"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(folder: Path, words: Sequence[str], said: str) -> None:
    status, out, error = run(folder, *words)
    assert (status, out) == (1, "")
    assert error.startswith(f"ptq-bot: {said}")


def test_a_machine_that_is_not_configured_is_a_wrong_command(folder: Path) -> None:
    status, _, error = run(folder, *WORKTREE, "--machine", "there")
    assert status == 2
    assert error == "ptq-bot: there is no machine 'there'; configured: here\n"


def test_nobody_holds_anything(folder: Path) -> None:
    assert run(folder, "holds") == (0, "Nobody holds a job.\n", "")
