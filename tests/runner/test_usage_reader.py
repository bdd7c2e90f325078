from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from runner.agents import Agent, AgentSpec, build_agent
from runner.agents.prices import Price
from runner.model.meter import Meter
from runner.steps.spool import Spool
from runner.steps.usage_reader import UsageReader
from tests.support.cpu_time import takes_at_most
from tests.support.jobs import NOON, make_job

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
UNKNOWN = b'{"type": "nothing known"}\n'
JOB = make_job(started_at=NOON, model="priced")


class Harness:
    def __init__(self, folder: Path, kind: str = "claude") -> None:
        self.spool = Spool(folder)
        self.agent: Agent = build_agent(AgentSpec("mine", kind))
        self.now = NOON
        self.reader = self.new_reader()

    def new_reader(self) -> UsageReader:
        return UsageReader(self.spool, {"priced": Price(1.0, 0.5, 10.0)}, lambda: self.now)

    def add(self, text: str | bytes) -> None:
        self.spool.append(JOB.id, "agent", text if isinstance(text, bytes) else text.encode())

    def meter(self, *, whole: bool = False) -> Meter:
        return self.reader.read(JOB, self.agent, whole=whole)[1]


def test_a_log_is_read_to_the_same_end_however_it_arrives(tmp_path: Path) -> None:
    log = (TRANSCRIPTS / "claude" / "finished.jsonl").read_bytes()
    at_once, in_pieces = Harness(tmp_path / "a"), Harness(tmp_path / "b")
    at_once.add(log)
    for start in range(0, len(log), 1000):
        in_pieces.add(log[start : start + 1000])
        in_pieces.meter()
    assert at_once.meter() == in_pieces.meter()
    assert at_once.meter().usage.tokens == 2200
    assert at_once.meter().usage.cost_usd == pytest.approx(0.015)


def test_a_restart_reads_the_log_again_and_comes_to_the_same(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.add((TRANSCRIPTS / "pi" / "finished.jsonl").read_bytes())
    harness.agent = build_agent(AgentSpec("mine", "pi"))
    before = harness.meter()
    harness.reader = harness.new_reader()
    assert harness.meter() == before


def test_a_last_line_without_an_end_counts_once_the_log_is_whole(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.add(json.dumps({"type": "nothing known"}))
    assert harness.meter().unknown_events == 0
    assert harness.meter(whole=True).unknown_events == 1
    assert harness.meter(whole=True).unknown_events == 1


def test_money_is_computed_from_the_price_table_where_the_agent_is_silent(tmp_path: Path) -> None:
    harness = Harness(tmp_path, "codex")
    usage = {"input_tokens": 1_000_000, "cached_input_tokens": 500_000, "output_tokens": 100_000}
    harness.add(json.dumps({"type": "turn.completed", "usage": usage}) + "\n")
    assert harness.meter().usage.cost_usd == pytest.approx(0.5 * 1.0 + 0.5 * 0.5 + 0.1 * 10.0)
    assert harness.meter().cost_is_estimate


def test_a_model_without_a_price_costs_nobody_knows_what(tmp_path: Path) -> None:
    harness = Harness(tmp_path, "codex")
    harness.add(json.dumps({"type": "turn.completed", "usage": {"input_tokens": 10}}) + "\n")
    job = replace(JOB, model="of our own")
    assert harness.reader.read(job, harness.agent)[1].usage.cost_usd is None


def test_silence_is_measured_from_the_last_event(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.add('{"type": "nothing known"}\n')
    harness.meter()
    harness.now += timedelta(seconds=70)
    assert harness.reader.read(JOB, harness.agent)[2] == 70
    harness.add("a warning between the events\n")
    assert harness.reader.read(JOB, harness.agent)[2] == 70
    harness.add('{"type": "nothing known"}\n')
    assert harness.reader.read(JOB, harness.agent)[2] == 0


def test_what_is_no_line_of_json_and_what_has_no_end_is_borne(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.add(b"\xff\xfe\0garbage\n" + b"x" * 5_000_000)
    assert harness.meter().usage.tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("line", ["\n", " \n", "0\n"])
def test_half_a_megabyte_of_lines_without_events_takes_less_than_to_parse_each(tmp_path: Path, line: str) -> None:
    harness = Harness(tmp_path)
    harness.add(line * (500_000 // len(line)))
    assert takes_at_most(5, parse_many, lambda: harness.new_reader().read(JOB, harness.agent))


def parse_many() -> None:
    for _ in range(100_000):
        json.loads("0")


def test_an_answer_of_unknown_cost_leaves_the_whole_run_to_the_price_table(tmp_path: Path) -> None:
    harness = Harness(tmp_path, "pi")
    for cost in ({"total": 5.0}, {}):
        usage = {"input": 500_000, "output": 0, "cost": cost}
        message = {"role": "assistant", "model": "m", "content": [], "usage": usage}
        harness.add(json.dumps({"type": "message_end", "message": message}) + "\n")
    meter = harness.meter()
    assert (meter.usage.cost_usd, meter.cost_is_estimate) == (1.0, True)
    unpriced = harness.reader.read(replace(JOB, model="of our own"), harness.agent)[1]
    assert unpriced.usage.cost_usd is None, "what is known of it is not its cost"


@pytest.mark.slow
async def test_long_logs_are_read_in_turns_and_take_no_thread_of_others(tmp_path: Path) -> None:
    harness, ended = Harness(tmp_path), list[str]()
    jobs = [make_job(id=f"aaaaaaaaa{number}", thread=number) for number in range(4)]
    for job in jobs[:3]:
        harness.spool.append(job.id, "agent", UNKNOWN * 25_000)
    harness.spool.append(jobs[3].id, "agent", UNKNOWN)
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    asyncio.get_running_loop().set_default_executor(closed)

    async def read(job_id: str) -> None:
        tally, _, _ = await harness.reader.read_aside(make_job(id=job_id), harness.agent)
        ended.append(job_id)
        assert tally.unknown == (1 if job_id == jobs[3].id else 25_000)

    await asyncio.gather(*(read(job.id) for job in jobs))
    assert ended[0] == jobs[3].id, "who has a short log waits for one piece of each of the others"
