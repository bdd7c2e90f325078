"""The reference of `GET /metrics`, from the metrics themselves. Pure."""

from __future__ import annotations

from prometheus_client.core import Metric

from bot.observability.metrics import MetricsSnapshot, collect
from handlers.effects.outbox import Backlog
from runner.rows.stats import Readings
from runner.transport.ssh_metrics import SshMetrics
from tests.support.jobs import NOON

UNITS = {"_seconds": "seconds", "_bytes": "bytes", "_usd": "USD", "_tokens": "tokens"}
NOTHING = Readings({}, {}, None, {}, None, {}, 0, 0, {}, {})
EMPTY = MetricsSnapshot(
    now=NOON,
    readings=NOTHING,
    backlog=Backlog(0, 0, {}),
    slots={},
    leases=(),
    states={},
    sightings={},
    pauses=0,
    held_labels=0,
    events={},
    left=(),
    ssh=SshMetrics(),
    github_errors={},
    claims={},
)


def render_manual() -> str:
    """A row for each metric, in the order in which they are told."""
    head = "| metric | kind | labels | unit | what it is |\n|---|---|---|---|---|\n"
    return head + "".join(_render(metric) for metric in collect(EMPTY))


def _render(metric: Metric) -> str:
    ends = {"counter": ("_total",), "summary": ("_sum", "_count")}.get(metric.type, ("",))
    names = ", ".join(f"`{metric.name}{end}`" for end in ends)
    labels = ", ".join(f"`{label}`" for label in vars(metric)["_labelnames"]) or "–"  # It has no public name for them.
    unit = "seconds, and how often" if metric.type == "summary" else None
    unit = unit or next((unit for end, unit in UNITS.items() if metric.name.endswith(end)), "count")
    return f"| {names} | {metric.type} | {labels} | {unit} | {metric.documentation} |\n"
