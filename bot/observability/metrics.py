"""The metrics for Prometheus: numbers from the database, and this replica's counters of log events, GitHub and SSH.

They are only for the operator, so they have a separate listener.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import quantiles
from typing import TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from bot.github.errors import GITHUB_ERRORS
from bot.github.limits import Left, ListLeft
from bot.observability.log_counter import COUNTED
from handlers.context import Context
from handlers.effects.outbox import Backlog, count_backlog
from handlers.text.sanitize import redact
from handlers.words.report_comment import MODEL_NAME
from runner.model.inventory import Sighting
from runner.model.machines import USABLE, Lease, MachineState
from runner.model.usage import Usage
from runner.rows import job_rows
from runner.rows.claims import fetch_claimed
from runner.rows.machine_states import fetch_machine_states, fetch_sightings
from runner.rows.pauses import fetch_pauses
from runner.rows.stats import Readings, take_readings
from runner.transport.ssh_metrics import SSH_METRICS, SshMetrics

Labels = TypeVar("Labels", bound=tuple[str, ...])

QUANTILES = (0.5, 0.9)

MAX_MODELS, OTHER = 100, "other"
"""The most pairs of agent and model with series of their own, and the name of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """The data for all metrics, at one moment."""

    now: datetime
    readings: Readings
    backlog: Backlog
    slots: Mapping[str, int]
    leases: tuple[Lease, ...]
    states: Mapping[str, MachineState]
    sightings: Mapping[str, Sighting]
    pauses: int
    held_labels: int
    events: Mapping[tuple[str, str], int]
    left: Sequence[tuple[str, Left]]
    ssh: SshMetrics
    github_errors: Mapping[str, int]
    claims: Mapping[str, int]

    @property
    def age_queued(self) -> float:
        """The seconds that the oldest queued job has waited."""
        return self._age(self.readings.oldest_queued_at)

    @property
    def age_pending(self) -> float:
        """The seconds that the oldest pending delivery has waited."""
        return self._age(self.readings.oldest_pending_at)

    def _age(self, since: datetime | None) -> float:
        return max((self.now - since).total_seconds(), 0.0) if since else 0.0


class Metrics:
    """Answers `GET /metrics`."""

    def __init__(
        self, context: Context, slots: Mapping[str, int], count_held: Callable[[], int], list_left: ListLeft
    ) -> None:
        """`slots` are the slots of each configured machine. `count_held` counts the missed labels that wait for the
        operator. `list_left` lists what is left of GitHub's rate limits."""
        self._list_left = list_left
        self._context = context
        self._slots = slots
        self._count_held = count_held

    def make_application(self) -> web.Application:
        """The web application of the metrics listener."""
        application = web.Application()
        application.router.add_get("/metrics", self.show)
        return application

    async def show(self, request: web.Request) -> web.Response:
        """The current metrics in Prometheus's text format."""
        backlog = await count_backlog(self._context.db)
        async with self._context.db.read() as connection:
            now = self._context.now()
            snapshot = MetricsSnapshot(
                now=now,
                readings=await take_readings(connection, now),
                slots=self._slots,
                leases=tuple(await job_rows.fetch_leases(connection)),
                states=await fetch_machine_states(connection),
                sightings=await fetch_sightings(connection),
                pauses=len(await fetch_pauses(connection)),
                claims=Counter(
                    "job" if name.startswith("job:") else "loop" for name in await fetch_claimed(connection)
                ),
                backlog=backlog,
                held_labels=self._count_held(),
                events=COUNTED.read(),
                left=self._list_left(),
                ssh=SSH_METRICS,
                github_errors=GITHUB_ERRORS.read(),
            )
        return web.Response(body=render(snapshot), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class _Once:
    """A collector that returns given metrics."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """The given metrics."""
        return self._metrics


def render(snapshot: MetricsSnapshot) -> bytes:
    """The metrics in Prometheus's text format. Pure."""
    registry = CollectorRegistry()
    registry.register(_Once(collect(snapshot)))
    return generate_latest(registry)


def collect(snapshot: MetricsSnapshot) -> list[Metric]:
    """All metrics, including those without a value yet. Pure."""
    families = (_list_work, _list_taken, _list_machines, _list_waiting, _list_traffic)
    return [metric for family in families for metric in family(snapshot)]


def _list_work(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    readings = snapshot.readings
    yield _gauge("ptq_jobs", "Jobs that are under way, by state.", ["state"], _by_one(readings.active))
    labels = ["state", "preset", "agent"]
    yield _counter("ptq_jobs_ended", "Jobs that have ended, by state, preset and agent.", labels, readings.ended)
    yield _plain("ptq_queue_oldest_seconds", "How long the job that waits longest has waited.", snapshot.age_queued)
    phases = GaugeMetricFamily(
        "ptq_job_phase_seconds",
        "How long jobs spent in each phase that ended within the last hour.",
        labels=["phase", "quantile"],
    )
    counts = {phase: len(took) for phase, took in readings.phases.items()}
    for phase, took in readings.phases.items():
        for share, value in zip(QUANTILES, find_quantiles(took), strict=True):
            phases.add_metric([phase, str(share)], value)
    yield phases
    yield _gauge("ptq_job_phases", "Phases of jobs that ended within the last hour.", ["phase"], _by_one(counts))


def _list_taken(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    labels = ["agent", "model"]
    families = {
        "jobs": CounterMetricFamily("ptq_runs", "Runs of agents.", labels=labels),
        "unpriced": CounterMetricFamily("ptq_runs_of_unknown_cost", "Runs whose cost is unknown.", labels=labels),
        "input_tokens": CounterMetricFamily("ptq_input_tokens", "Tokens that models have read.", labels=labels),
        "output_tokens": CounterMetricFamily("ptq_output_tokens", "Tokens that models have written.", labels=labels),
        "known_usd": CounterMetricFamily("ptq_cost_usd", "Money that is known to be spent, in USD.", labels=labels),
        "run_s": CounterMetricFamily("ptq_agent_seconds", "How long agents have been at work.", labels=labels),
    }
    shown = choose_models(snapshot.readings.taken)
    for name, family in families.items():
        sums = defaultdict[tuple[str, str], float](float)
        for of, usage in snapshot.readings.taken.items():
            sums[shown[of]] += getattr(usage, name)
        for of, value in sums.items():
            family.add_metric(of, value)
    yield from families.values()


def choose_models(taken: Mapping[tuple[str, str], Usage]) -> Mapping[tuple[str, str], tuple[str, str]]:
    """Agent and model -> how metrics call them. Pure.

    An agent without the gateway can report any name, and a new one in each run. Names that are none, or hold a secret,
    and those beyond the `MAX_MODELS` with the most runs, are `OTHER`.
    """
    most = {*sorted(taken, key=lambda of: taken[of].jobs, reverse=True)[:MAX_MODELS]}
    return {
        (agent, model): (agent, model if (agent, model) in most and _is_harmless(model) else OTHER)
        for agent, model in taken
    }


def _is_harmless(model: str) -> bool:
    return not model or (MODEL_NAME.fullmatch(model) is not None and redact(model, ()) == model)


def _list_machines(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    leased = Counter(lease.machine for lease in snapshot.leases)
    names = [*snapshot.slots, *(name for name in leased if name not in snapshot.slots)]
    states = {name: snapshot.states.get(name, USABLE) for name in names}
    seen = {name: snapshot.sightings[name] for name in names if name in snapshot.sightings}
    by_machine: dict[tuple[str, str], Mapping[str, float]] = {
        ("ptq_machine_slots", "Slots that are configured."): {name: snapshot.slots.get(name, 0) for name in names},
        ("ptq_machine_leases", "Slots that jobs have."): {name: leased[name] for name in names},
        ("ptq_machine_out", "1 while a machine is out."): {name: states[name].outage is not None for name in names},
        ("ptq_machine_drained", "1 while an operator keeps jobs away."): {
            name: states[name].drained_at is not None for name in names
        },
        ("ptq_machine_free_bytes", "Room on the disk, when it was last seen."): {
            name: sighting.inventory.free_bytes for name, sighting in seen.items()
        },
        ("ptq_machine_gpus", "GPUs, when it was last seen."): {
            name: len(sighting.inventory.gpus) for name, sighting in seen.items()
        },
    }
    for (metric, words), values in by_machine.items():
        yield _gauge(metric, words, ["machine"], _by_one(values))


def _list_waiting(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    readings, backlog = snapshot.readings, snapshot.backlog
    kept = {state: readings.deliveries.get(state, 0) for state in ("pending", "done", "failed")}
    yield _gauge("ptq_deliveries", "Deliveries that are kept, by state.", ["state"], _by_one(kept))
    yield _plain("ptq_inbox_oldest_seconds", "How long the oldest delivery has waited.", snapshot.age_pending)
    replies = {"waiting": backlog.waiting, "abandoned": backlog.abandoned}
    yield _gauge("ptq_replies", "Comments that GitHub does not show as they should stand.", ["state"], _by_one(replies))
    yield _gauge("ptq_pulls", "Pull requests that notes asked for.", ["state"], _by_one(readings.pulls))
    claims = {kind: snapshot.claims.get(kind, 0) for kind in ("job", "loop")}
    yield _gauge("ptq_claims", "What replicas act on just now, as jobs and as loops.", ["kind"], _by_one(claims))
    yield _plain("ptq_holds", "Environments that are kept for people.", readings.holds)
    yield _plain("ptq_pauses", "What keeps new jobs from beginning.", snapshot.pauses)
    yield _plain("ptq_held_labels", "Missed labels that wait for the operator.", snapshot.held_labels)
    yield _plain("ptq_notifications", "What the operator has not been told yet.", readings.notifications)
    yield _counter("ptq_log_events", "Events in this replica's log.", ["event", "level"], snapshot.events)


def _list_traffic(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    """The metrics about GitHub and machines, from this replica's own data since it started."""
    labels = ["account", "bucket"]
    left = {(account, left.bucket): left for account, left in snapshot.left}
    calls = {key: one.calls for key, one in left.items()}
    yield _gauge("ptq_github_calls_left", "Calls that GitHub's rate limit leaves for this hour.", labels, calls)
    limits = {key: one.limit for key, one in left.items()}
    yield _gauge("ptq_github_calls_limit", "Calls that GitHub's rate limit allows in an hour.", labels, limits)
    errors = _by_one(snapshot.github_errors)
    yield _counter("ptq_github_errors", "Calls of GitHub's API that came to nothing.", ["kind"], errors)
    ssh = snapshot.ssh
    words = "Commands and questions that were sent to a machine."
    yield _counter("ptq_ssh_round_trips", words, ["machine"], _by_one(ssh.trips))
    words = "Commands that a machine did not answer, by how they failed."
    yield _counter("ptq_ssh_errors", words, ["machine", "kind"], ssh.failures)
    words = "Rests in reading from a machine that keeps the service too busy."
    yield _counter("ptq_ssh_rests", words, ["machine"], _by_one(ssh.rests))
    steps = SummaryMetricFamily("ptq_environment_seconds", "What making environments took, by step.", labels=["step"])
    for step, took in ssh.steps.items():
        steps.add_metric([step], took.times, took.seconds)
    yield steps


def _gauge(name: str, words: str, labels: list[str], values: Mapping[Labels, float]) -> Metric:
    return _fill(GaugeMetricFamily(name, words, labels=labels), values)


def _counter(name: str, words: str, labels: list[str], values: Mapping[Labels, float]) -> Metric:
    return _fill(CounterMetricFamily(name, words, labels=labels), values)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Labels, float]) -> Metric:
    for keys, value in values.items():
        family.add_metric(keys, value)
    return family


def _plain(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)


def _by_one(values: Mapping[str, float]) -> Mapping[tuple[str, ...], float]:
    return {(key,): value for key, value in values.items()}


def find_quantiles(values: Sequence[float]) -> list[float]:
    """The quantiles of the values for each share in `QUANTILES`. Pure."""
    if len(values) < 2:
        return [*values] * len(QUANTILES)
    cuts = quantiles(values, n=100, method="inclusive")
    return [cuts[round(share * 100) - 1] for share in QUANTILES]
