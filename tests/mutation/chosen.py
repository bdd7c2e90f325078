"""`pytest -p tests.mutation.chosen` runs the tests of a list, in its order, and writes what became of each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CHOSEN = "PTQ_MUTATION_TESTS"
"""The variable that names the list: one test a line."""
REPORTS = "PTQ_MUTATION_REPORTS"
"""The variable that names the file of what became of them: `passed NAME` or `failed NAME`, one a line."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen tests."""
    order = {name: number for number, name in enumerate(Path(os.environ[CHOSEN]).read_text().splitlines())}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Only where the reports of all workers arrive."""
    if "PYTEST_XDIST_WORKER" not in os.environ and (report.failed or report.when == "call"):
        with Path(os.environ[REPORTS]).open("a") as file:
            file.write(f"{report.outcome} {report.nodeid}\n")
