"""`GET /metrics`, as Prometheus reads it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bot.github.errors import KINDS, ErrorCounter
from bot.observability.log_counter import COUNTED, DOCUMENTED, LogCounter
from bot.observability.metrics import MAX_MODELS, OTHER, choose_models, find_quantiles, render
from runner.model.job import NEXT
from runner.model.usage import Usage
from runner.rows.stats import Readings, measure_phases
from runner.transport.ssh_metrics import SshMetrics
from tests.support.jobs import NOON
from tests.support.metrics_manual import EMPTY
from tests.support.world import World, open_world

DOCS = Path(__file__).parents[2] / "docs"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read_documents() -> str:
    return "".join(page.read_text() for page in DOCS.glob("*.md"))


async def scrape(world: World) -> Samples:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{world.playground.service.metrics_url}/metrics") as got,
    ):
        assert got.status == 200
        text = await got.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def only(samples: Samples, name: str, **labels: str) -> float:
    (value,) = [
        value for (found, has), value in samples.items() if found == name and labels.items() <= dict(has).items()
    ]
    return value


@pytest.mark.slow
async def test_a_story_is_told_in_numbers_to_whoever_watches(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True) as world:
        assert world.playground.service.metrics_url == ""
        config = world.playground.config
        config.write_text(config.read_text().replace("public_url", "metrics_port = 0\npublic_url", 1))
        await world.playground.stop_service()
        await world.playground.start_service()
        before = await scrape(world)
        assert only(before, "ptq_jobs", state="queued") == 0
        assert only(before, "ptq_machine_slots", machine="gpu-1") == 2
        assert only(before, "ptq_deliveries", state="failed") == 0
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        after = await scrape(world)
        assert only(after, "ptq_jobs_ended_total", state="succeeded", preset="fix", agent="script") == 1
        assert only(after, "ptq_runs_total", agent="script") == 1
        assert only(after, "ptq_runs_of_unknown_cost_total", agent="script") == 1
        assert only(after, "ptq_agent_seconds_total", agent="script") > 0
        assert only(after, "ptq_deliveries", state="done") >= 2
        assert only(after, "ptq_job_phases", phase="running") == 1
        assert only(after, "ptq_job_phase_seconds", phase="queued", quantile="0.5") >= 0
        assert only(after, "ptq_inbox_oldest_seconds") < 60
        assert (
            0
            < only(after, "ptq_github_calls_left", account="octo")
            < only(after, "ptq_github_calls_limit", account="octo")
        )
        assert only(after, "ptq_ssh_round_trips_total", machine="gpu-1") > 5
        assert only(after, "ptq_claims", kind="loop") > 3
        assert only(after, "ptq_environment_seconds_count", step="base") >= 1
        assert only(after, "ptq_environment_seconds_sum", step="base") > 0
        async with aiohttp.ClientSession() as session, session.get(f"{world.playground.service.url}/metrics") as got:
            assert got.status == 404, "what is public has none"


NOTHING_YET = replace(
    EMPTY,
    readings=Readings(dict.fromkeys(map(str, NEXT), 0), {}, None, {}, None, {}, 0, 0, {}, {}),
    slots={"gpu-1": 1},
    events=LogCounter(DOCUMENTED).read(),
    github_errors=ErrorCounter().read(),
)
"""What is known of a service in its first second."""
SELECTOR = re.compile(r'(ptq_\w+)(?:\{(\w+)="([^"]+)"\})?')


def test_what_example_alerts_look_at_is_there_before_anything_has_happened() -> None:
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", read_documents(), re.DOTALL)
    families = {family.name: family for family in text_string_to_metric_families(render(NOTHING_YET).decode())}
    named = [found for rule in yaml.safe_load(rules)["groups"][0]["rules"] for found in SELECTOR.findall(rule["expr"])]
    assert len(named) > 9
    for name, label, value in named:
        family = families[name.removesuffix("_total")]
        told = [sample.value for sample in family.samples if not label or sample.labels[label] == value]
        assert not label or told == [0], "an increase is seen of what was there before"
    assert {sample.labels["kind"]: sample.value for sample in families["ptq_github_errors"].samples} == dict.fromkeys(
        KINDS, 0
    )


def test_every_event_that_the_documents_name_is_counted_from_0() -> None:
    named = set(re.findall(r'[`"]([a-z_]+\.[a-z_]+)[`"]', read_documents()))
    written: set[tuple[str, str]] = set()
    for folder in ("bot", "handlers", "runner"):
        for module in (DOCS.parent / folder).rglob("*.py"):
            found = re.findall(r'\blog\.(info|warning|error)\(\s*"([a-z_.]+)"', module.read_text())
            written |= {(event, level) for level, event in found if event in named}
    assert set(DOCUMENTED) == written
    assert LogCounter(DOCUMENTED).read() == dict.fromkeys(DOCUMENTED, 0)
    assert COUNTED.read().keys() >= set(DOCUMENTED)


def test_phases_are_measured_from_one_move_to_the_next() -> None:
    def at(seconds: int) -> timedelta:
        return timedelta(seconds=seconds)

    moves = [
        ("a", NOON, "queued"),
        ("a", NOON + at(5), "preparing"),
        ("a", NOON + at(65), "running"),
        ("a", NOON + at(665), "failed"),
        ("b", NOON, "queued"),
        ("b", NOON + at(7), "preparing"),
    ]
    assert measure_phases(moves) == {"queued": [5, 7], "preparing": [60], "running": [600]}


def test_an_agent_cannot_write_into_metrics_by_the_name_of_its_model() -> None:
    key = "sk-ant-api03-0abcdefghijklmnopqrstuvwxyz0123456789abcdefghijkl"
    made_up = [("mine", name) for name in (key, "two words", *(f"made-up-{number}" for number in range(500)))]
    taken = {("mine", "opus"): Usage(jobs=5), ("mine", ""): Usage(jobs=2), **dict.fromkeys(made_up, Usage(jobs=1))}
    shown = choose_models(taken)
    assert (shown["mine", "opus"], shown["mine", ""]) == (("mine", "opus"), ("mine", ""))
    assert shown["mine", key] == shown["mine", "two words"] == ("mine", OTHER)
    assert len({*shown.values()}) <= MAX_MODELS + 1


def test_quantiles_of_few_and_of_many() -> None:
    assert find_quantiles([3.0]) == [3.0, 3.0]
    median, ninth = find_quantiles([float(value) for value in range(101)])
    assert (round(median), round(ninth)) == (50, 90)


def test_what_a_machine_says_of_the_time_that_steps_took_is_taken_with_care() -> None:
    traffic = SshMetrics()
    traffic.count_steps({"fetch": 1.5, "base": 2.0})
    traffic.count_steps({"fetch": 0.5, "of a stranger": 1.0})
    nonsense: list[object] = [None, [], "fetch", *({"fetch": value} for value in (-1.0, "1", math.nan, 1e300, 1))]
    for told in nonsense:
        traffic.count_steps(told)
    assert traffic.steps == {"fetch": (2, 2.0), "base": (1, 2.0)}


def test_our_own_events_are_counted_and_the_sentences_of_libraries_are_not() -> None:
    counter = LogCounter()
    for level, event in (("info", "job.moved"), ("info", "job.moved"), ("error", "job.moved"), ("info", "Connected.")):
        assert counter(None, level, {"event": event, "job": "1"}) == {"event": event, "job": "1"}
    assert counter.read() == {("job.moved", "info"): 2, ("job.moved", "error"): 1}
