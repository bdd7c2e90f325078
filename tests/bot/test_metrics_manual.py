"""`docs/metrics.md`, whose table is made from the metrics, and the alerts that go by them."""

from __future__ import annotations

import re

from tests.support.manuals import DOCS, check_manual
from tests.support.metrics_manual import render_manual


def test_the_reference_has_what_prometheus_reads() -> None:
    whole = check_manual("metrics.md", "bot/observability/metrics.py", render_manual())
    assert re.findall(r"^\|.*\| *\|.*$", whole, re.MULTILINE) == []


def test_the_alerts_and_the_explanations_name_metrics_and_labels_that_there_are() -> None:
    table = render_manual()
    prose = (DOCS / "metrics.md").read_text().partition("<!--")[0] + (DOCS / "operations.md").read_text()
    named = set(re.findall(r"\bptq_\w+\b(?!\.\.\.)", prose))
    assert len(named) > 8
    assert named <= set(re.findall(r"`(ptq_\w+)`", table))
    by = {label for labels in re.findall(r"\bby \(([^)]*)\)", prose) for label in labels.split(", ")}
    assert by <= set(re.findall(r"`([a-z]+)`", table))
