"""`docs/security.md`: what stops whom, and that each row has its test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_row_names_tests_that_are_there() -> None:
    manual = (ROOT / "docs" / "security.md").read_text()
    rows = [line.strip("|").split("|") for line in manual.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    for row in rows:
        assert len(row) == 4, row
        named = re.findall(r"`(tests/[^`]+)`", row[3])
        assert named, row
        assert [name for name in named if not (ROOT / name).is_file()] == []
