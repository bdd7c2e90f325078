"""`ptq-bot demo`, as a newcomer runs and stops it. `tests/test_packaging.py` reads the whole of its story."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import program

pytestmark = pytest.mark.slow


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files that must be empty again afterwards, with no process in it or about it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder
    program.wait_until_no_process(str(folder))
    assert list(folder.iterdir()) == []


def test_with_keep_everything_goes_on_until_it_is_stopped(tmp_path: Path, empty: Path) -> None:
    with program.start(tmp_path, "demo", "--keep", TMPDIR=str(empty), COLUMNS="50") as demo:
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
        assert Path(places["the repository"]).is_relative_to(empty)
        assert Path(places["the repository"], "HEAD").is_file()
        assert Path(places["configuration"]).is_file()
        status, seconds = demo.stop(signal.SIGINT)
    assert status == 0
    assert seconds < 30
    assert demo.text().endswith("Stopped.\n")
    assert "Traceback" not in demo.text()


def test_a_demo_that_is_stopped_in_the_middle_leaves_nothing_behind(tmp_path: Path, empty: Path) -> None:
    with program.start(tmp_path, "demo", TMPDIR=str(empty)) as demo:
        demo.wait_for(": running")
        assert [path.name for path in empty.glob("*/octo")] == ["octo"], "everything is there"
        assert demo.stop(signal.SIGTERM)[0] == 0
    assert demo.text().endswith("Stopped.\n")
