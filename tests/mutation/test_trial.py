"""One fault in a copy of a small project: who finds it, and that the project is as before afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutation.mutants import find_python_mutants
from tests.mutation.trial import Outcome, judge, open_copy

SOURCE = "def is_small(number: int) -> bool:\n    return number < 10\n"
TESTS = """
from bot import is_small
def test_far_away(): assert is_small(1)
def test_that_never_works(): assert is_small(11)
def test_on_the_edge(): assert not is_small(10)
"""


@pytest.mark.slow
def test_a_fault_is_found_by_a_test_that_works_without_it(tmp_path: Path) -> None:
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / "__init__.py").write_text(SOURCE)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_bot.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    far, broken, edge = (f"checks/test_bot.py::test_{name}" for name in ("far_away", "that_never_works", "on_the_edge"))
    (swapped,) = (mutant for mutant in find_python_mutants(SOURCE) if mutant.operator == "swap comparison")

    with open_copy(tmp_path, workers=0, limit_s=60) as copy:
        found = judge(copy, "bot/__init__.py", swapped, [far, broken, edge])
        assert (found.verdict, found.by, found.tests, found.ran) == ("found", edge, 2, 2)
        assert judge(copy, "bot/__init__.py", swapped, []) == Outcome("unreached")
        assert (copy.root / "bot" / "__init__.py").read_text() == SOURCE
        root = copy.root
    assert not root.exists()
