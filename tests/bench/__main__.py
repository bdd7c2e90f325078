"""`make bench`: how fast deliveries are acknowledged, beside Probot and a webhook in the manner of bedevere."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median

from handlers.inbox.receiving import MAX_PENDING
from tests.bench import figures, needs
from tests.bench.comments import SLEEPER, measure_comments
from tests.bench.figures import BEDEVERE, OURS, PROBOT
from tests.bench.load import LoadFailed, Round, make_payloads, run_round
from tests.bench.needs import Need
from tests.bench.servers import (
    SERVE,
    Installation,
    Server,
    install_probot,
    start_bedevere_style,
    start_floor,
    start_probot,
)
from tests.support.npm import NpmFailed

CONNECTIONS = 32
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
ROUND_S = 1.0
MOST = MAX_PENDING // 2
"""Deliveries of a round. Ours takes in a crowd first and works it afterwards: a fast machine would fill its inbox."""
ISSUES = 256
"""How many issues the deliveries are about."""
COMMENTS = 100


def run_interleaved(servers: Mapping[str, Server]) -> dict[str, list[Round]]:
    """Rounds in turn against each; the first of each only warms it up and does not count."""
    rounds: dict[str, list[Round]] = {name: [] for name in servers}
    for number in range(ROUNDS + 1):
        for name, server in servers.items():
            requests = islice(server.requests, MOST)
            one = run_round(server.port, requests, ROUND_S if number else ROUND_S / 2, CONNECTIONS)
            server.drain()
            rounds[name].append(one)
            if number:
                print(f"  round {number}: {name} {one.rate:.0f}/s", file=sys.stderr)
    return rounds


def find_probot() -> Need:
    """Probot, which is brought here where it is missing."""
    try:
        install_probot()
    except NpmFailed as error:
        return Need("Probot from npm's registry", False, f"it could not be brought here: {error}")
    return Need("Probot from npm's registry", True, "")


def describe_limit(floor: Server) -> str:
    """What the load manages against a server that does nothing, and what each side pays for it."""
    server_s, load_s = floor.watched.cpu_s(), time.process_time()
    rounds = [run_round(floor.port, floor.requests, ROUND_S, CONNECTIONS) for _ in range(ROUNDS)]
    count = sum(len(one.latencies) for one in rounds)
    server_us, load_us = (
        (end - begin) * 1e6 / count for end, begin in ((floor.watched.cpu_s(), server_s), (time.process_time(), load_s))
    )
    rates = sorted(one.rate for one in rounds)
    return (
        f"The load against a server that does nothing: {median(rates):.0f}/s ({rates[0]:.0f} to {rates[-1]:.0f}), "
        f"for {load_us:.0f} us of CPU in the load and {server_us:.0f} us in the server."
    )


async def measure_servers(folder: Path, core: int) -> tuple[dict[str, figures.Figures], dict[str, float]]:
    """The figures of each server and its throughput over Probot's."""
    payloads = make_payloads(ISSUES)
    with ExitStack() as stack:
        floor = stack.enter_context(start_floor(folder, core, payloads))
        print(await asyncio.to_thread(describe_limit, floor))
    async with Installation(folder, core, SERVE, SLEEPER) as installation:
        installation.as_server([])  # Its very first start makes the database, which takes memory that no other does.
        await installation.stop_service()
        await installation.start_service()
        with ExitStack() as stack:
            servers = {
                PROBOT: stack.enter_context(start_probot(folder, core, payloads)),
                OURS: installation.as_server(payloads),
                BEDEVERE: stack.enter_context(start_bedevere_style(folder, core, payloads)),
            }
            idle = {name: server.watched.cpu_s() for name, server in servers.items()}
            rounds = await asyncio.to_thread(run_interleaved, servers)
            used = {name: server.watched.cpu_s() - idle[name] for name, server in servers.items()}
            measured = {
                name: figures.summarize(rounds[name], used[name], server.watched.peak)
                for name, server in servers.items()
            }
    return measured, {name: figures.find_ratio(rounds[name][1:], rounds[PROBOT][1:]) for name in servers}


def main() -> int:
    """Measure, print, judge: the exit status."""
    wanted = [needs.two_cores("one for the servers, one for the load"), needs.quiet_machine(), needs.memory(1_000)]
    if not needs.may_run([*wanted, find_probot()]):
        return 2
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    try:
        with tempfile.TemporaryDirectory(prefix="ptq-bench-", ignore_cleanup_errors=True) as folder:
            places = [Path(folder, name) for name in ("servers", "comments")]
            for place in places:
                place.mkdir()
            measured, ratios = asyncio.run(measure_servers(places[0], cores[0]))
            waits = asyncio.run(measure_comments(places[1], cores[0], COMMENTS))
    except LoadFailed as error:
        print(f"the bench could not be run: {error}", file=sys.stderr)
        return 2
    p50, p99 = (figures.find_percentile(waits, percent) * 1000 for percent in (50, 99))
    print(f"\n{figures.render_table(measured, ratios)}\n")
    print(f"From 202 to the status comment: p50 {p50:.0f} ms, p99 {p99:.0f} ms.\n")
    verdicts = figures.judge(measured, ratios[OURS])
    for holds, words in verdicts:
        print("pass" if holds else "FAIL", words)
    return int(not all(holds for holds, _ in verdicts))


if __name__ == "__main__":
    sys.exit(main())
