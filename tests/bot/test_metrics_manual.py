"""`docs/metrics.md`, whose table is made from the metrics, and the alerts that go by them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.support.metrics_manual import render_manual

DOCS = Path(__file__).parents[2] / "docs"
MANUAL = DOCS / "metrics.md"


def test_the_reference_has_what_prometheus_reads() -> None:
    head, mark, _ = MANUAL.read_text().partition("<!-- The rest is made from bot/metrics.py. -->\n")
    whole = f"{head}{mark}\n{render_manual()}"
    if os.environ.get("PTQ_REWRITE_DOCS"):
        MANUAL.write_text(whole)
    assert MANUAL.read_text() == whole, "rewrite it: PTQ_REWRITE_DOCS=1 pytest tests/bot/test_metrics_manual.py"
    assert mark
    assert re.findall(r"^\|.*\| *\|.*$", whole, re.MULTILINE) == []


def test_the_alerts_and_the_explanations_name_metrics_and_labels_that_there_are() -> None:
    table = render_manual()
    prose = MANUAL.read_text().partition("<!--")[0] + (DOCS / "operations.md").read_text()
    named = set(re.findall(r"\bptq_\w+\b(?!\.\.\.)", prose))
    assert len(named) > 8
    assert named <= set(re.findall(r"`(ptq_\w+)`", table))
    by = {label for labels in re.findall(r"\bby \(([^)]*)\)", prose) for label in labels.split(", ")}
    assert by <= set(re.findall(r"`([a-z]+)`", table))
