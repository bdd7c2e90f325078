"""`pytest -p tests.mutation.recorder` writes down which test reaches which line, and how long each one takes.

Each worker of xdist measures itself. A template that Jinja has compiled counts as a file, with lines that mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

MAP = Path(".cache/mutation/map")


def hash_file(path: Path) -> str:
    """What tells whether a file is still the one that was measured."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Reached:
    """Measures one process that runs tests."""

    def __init__(self, worker: str) -> None:
        self._coverage = coverage.Coverage(
            data_file=str(MAP / "reached"),
            data_suffix=worker,
            config_file=False,
            source_dirs=[str(Path.cwd())],
            omit=["tests/*", ".venv/*", ".cache/*"],
            concurrency=["thread", "greenlet"],  # SQLAlchemy runs what waits for a database in greenlets.
        )
        self._coverage.set_option("run:relative_files", True)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """All that runs between a test's set-up and its tear-down belongs to the test."""
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        """Write the data: a worker is not asked again."""
        self._coverage.stop()
        self._coverage.save()


class Durations:
    """Keeps what the tests of all workers tell about themselves."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._unfit: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails or is skipped without a fault finds none."""
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self._unfit.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the tests that can find a fault, and what was measured."""
        fit = {name: round(seconds, 3) for name, seconds in self._seconds.items() if name not in self._unfit}
        product = [path for path in Path().rglob("*.*") if path.suffix in {".py", ".html", ".j2"}]
        hashes = {str(path): hash_file(path) for path in product if path.parts[0] not in {".venv", ".cache", "tests"}}
        (MAP / "tests.json").write_text(json.dumps({"seconds": fit, "hashes": hashes}))


def pytest_configure(config: pytest.Config) -> None:
    """Measure where tests run; listen where all reports arrive."""
    MAP.mkdir(parents=True, exist_ok=True)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Reached(worker or "alone"))
    if not worker:
        config.pluginmanager.register(Durations())
