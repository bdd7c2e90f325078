"""`ptq-bot demo`, as a newcomer runs it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import program

pytestmark = pytest.mark.slow

ACTS = (
    "A stranger files an issue",
    "chunked() drops the last chunk when it is shorter",
    "A maintainer labels it",
    "signed: the service answered 202",
    "A machine takes the job",
    ": queued by @maintainer",
    ": preparing",
    ": running",
    ": collecting",
    "environment",
    "$ git --git-dir=",
    "checkout",
    " -m venv ",
    "agent log",
    "Ran the issue's script: exit status 1",
    "Ran all tests: exit status 0",
    "The issue gets its report",
    "Root cause",
    "The maintainer is in a hurry",
    "in your own words",
    "The maintainer writes a human note",
    "Draft pull request #2: Keep the last, shorter chunk in chunked()",
    "The range stopped at the last start of a full chunk",
    "Fixes #1",
    "+    for start in range(0, len(items), size):",
    "That was the whole story",
)
"""What is told, in this order."""


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files that must be empty again afterwards, with no process in it or about it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder
    program.wait_until_no_process(str(folder))
    assert list(folder.iterdir()) == []


def assert_in_order(text: str, parts: tuple[str, ...]) -> None:
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is not told, or too early:\n{text}"
        at = found + len(part)


def test_the_demo_tells_the_whole_story_and_leaves_nothing_behind(empty: Path) -> None:
    done = program.run_installed("demo", TMPDIR=str(empty), COLUMNS="160")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_in_order(done.stdout, ACTS)
    assert done.stderr == ""
    assert len(re.findall(r"/ptq pr [0-9a-f]{12}", done.stdout)) >= 3
    assert str(empty) not in done.stdout.partition("agent log")[0], "the place of the demo is no part of the story"


def test_with_keep_everything_goes_on_until_it_is_stopped(tmp_path: Path, empty: Path) -> None:
    with program.start_installed(tmp_path, "demo", "--keep", TMPDIR=str(empty), COLUMNS="50") as demo:
        demo.wait_for("configuration ")
        story, _, told = demo.text().partition("Everything is still running.")
        assert max(map(len, story.splitlines())) <= 50, "it is readable in a narrow terminal"
        places = dict(re.findall(r"^ +(the [a-z]+|configuration) +(\S+)", told, re.MULTILINE))
        with urlopen(places["the issue"], timeout=60) as issue:
            assert "chunked() drops the last chunk when it is shorter" in issue.read().decode()
        with urlopen(places["the jobs"], timeout=60) as jobs:
            (job,) = set(re.findall(r"/jobs/[0-9a-f]{10}", jobs.read().decode()))
        with urlopen(places["the jobs"].removesuffix("/jobs") + job, timeout=60) as page:
            assert "succeeded" in page.read().decode()
        assert Path(places["the repository"], "HEAD").is_file()
        assert Path(places["configuration"]).is_file()
        status, seconds = demo.stop(signal.SIGINT)
    assert status == 0
    assert seconds < 30
    assert demo.text().endswith("Stopped.\n")
    assert "Traceback" not in demo.text()


@pytest.mark.parametrize(("moment", "number"), [(": preparing", signal.SIGINT), (": running", signal.SIGTERM)])
def test_a_demo_that_is_stopped_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, empty: Path, moment: str, number: signal.Signals
) -> None:
    with program.start_installed(tmp_path, "demo", TMPDIR=str(empty), PYTHONUNBUFFERED="1") as demo:
        demo.wait_for(moment)
        assert demo.stop(number)[0] == 0
    assert demo.text().endswith("Stopped.\n")
