"""`make bench-live-log`: what it costs to follow a log, and how soon a line on the machine is in 500 browsers.

The service has a core of its own; sshd, the agent and the readers have the other.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from bot.demo.loopback import find_free_port
from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from bot.pace import Pace
from tests.bench import needs
from tests.bench.figures import find_percentile
from tests.bench.servers import SERVE, Installation
from tests.support.sshd import OpenSshServer, find_sshd

READERS = 500
MEASURED_S = float(os.environ.get("PTQ_BENCH_S", "20"))
SETTLE_S = 5.0
"""Within which all readers are there, and what they are sent at first is behind them."""

MAX_P99_MS = 500.0
MAX_COST = 1.25
"""Questions to the machine with all readers, in those with one: it is the machine that sets the pace."""

TICK = re.compile(rb"tick ([0-9]+)")
AGENT = """
import random, time
while True:
    print("tick", time.time_ns(), flush=True)
    time.sleep(random.uniform(0.1, 0.9))
"""


async def read(session: aiohttp.ClientSession, url: str, latencies: list[float]) -> None:
    """Be a browser: note how late each line is."""
    async with session.get(url) as reply:
        async for line in reply.content:
            now = time.time_ns()
            latencies.extend((now - int(tick)) / 1e6 for tick in TICK.findall(line))


async def tail(log: Path, latencies: list[float]) -> None:
    """What a bare `tail -f` on the machine sees: no service could be sooner."""
    process = await asyncio.create_subprocess_exec("tail", "-n0", "-f", log, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout
        async for line in process.stdout:
            now = time.time_ns()
            latencies.extend((now - int(tick)) / 1e6 for tick in TICK.findall(line))
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def begun(work: Sequence[asyncio.Task[None]]) -> AsyncIterator[None]:
    """While they are at work."""
    try:
        yield
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


def find_program(workspace: Path) -> int:
    """The one that is asked there. Raises `LookupError` where it is not the only one of ours."""
    mark = f"{workspace}/jobd/".encode()
    words = {path: path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")}
    ours = [path for path, argv in words.items() if any(mark in word for word in argv) and b"stage" not in argv]
    if len(ours) != 1:
        raise LookupError(f"{len(ours)} programs of ours are at work on the machine, where one should be")
    return int(ours[0].parent.name)


async def count_questions(session: aiohttp.ClientSession, url: str) -> int:
    """What was sent to the machine until now."""
    async with session.get(url) as reply:
        return sum(map(int, re.findall(r"^ptq_ssh_round_trips_total\{.*\} ([0-9]+)", await reply.text(), re.MULTILINE)))


async def measure(readers: int, url: str, metrics: str, workspace: Path) -> tuple[float, list[float]]:
    """Questions a second to the one program on the machine, and how late lines were, in milliseconds."""
    latencies: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [asyncio.create_task(read(session, url, latencies)) for _ in range(readers)]
        async with begun(tasks):
            await asyncio.sleep(SETTLE_S)
            latencies.clear()
            program, began = find_program(workspace), time.monotonic()
            before = await count_questions(session, metrics)
            await asyncio.sleep(MEASURED_S)
            assert find_program(workspace) == program, "it was asked by a command of its own meanwhile"
            asked, took = await count_questions(session, metrics) - before, time.monotonic() - began
            assert not [task for task in tasks if task.done()], "a reader was sent away"
    return asked / took, [*latencies]


async def run(folder: Path, core: int, sshd: Path) -> dict[str, tuple[float, list[float]]]:
    """All figures, by who follows."""
    metrics_port = find_free_port()
    metrics = f"http://127.0.0.1:{metrics_port}/metrics"
    serve = ("env", f"PTQ_SERVER__METRICS_PORT={metrics_port}", *SERVE)
    workspace, agent = folder / "machine" / "workspace", folder / "agent.py"
    agent.write_text(AGENT)
    ssh = OpenSshServer(folder / "sshd", sshd)
    await ssh.start()
    try:
        async with Installation(folder, core, serve, (sys.executable, str(agent)), ssh=ssh) as installation:
            installation.as_server([])
            issue = await installation.github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
            await installation.github.label_issue(NAME, issue, LABEL, MAINTAINER)
            log = await find_log(workspace / "jobs")
            job_id = log.parent.parent.name
            url = f"http://127.0.0.1:{installation.service_port}/jobs/{job_id}/log/agent/events"
            found = {
                f"{readers} readers": await measure(readers, url, metrics, workspace) for readers in (0, 1, READERS)
            }
            latencies: list[float] = []
            async with begun([asyncio.create_task(tail(log, latencies))]):
                await asyncio.sleep(MEASURED_S)
            return {**found, "tail -f": (0.0, latencies)}
    finally:
        await ssh.stop()


async def find_log(jobs: Path) -> Path:
    """The agent's log on the machine, once it ticks."""
    async with asyncio.timeout(180):
        while not (found := [path for path in jobs.glob("*/control/agent.log") if path.stat().st_size]):
            await asyncio.sleep(0.1)
    return found[0]


def main() -> int:
    """Measure, print, judge: the exit status."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = [needs.two_cores("one for the service, one for everything else"), needs.quiet_machine()]
    sshd = find_sshd()
    if not needs.may_run([*wanted, needs.memory(1_000), needs.sshd(sshd)]) or not sshd:
        return 2
    os.sched_setaffinity(0, {cores[-1]})
    with tempfile.TemporaryDirectory(prefix="ptq-bench-", ignore_cleanup_errors=True, dir="/var/tmp") as name:
        found = asyncio.run(run(Path(name), cores[0], sshd))
    print("| | questions a second to the machine | lines | p50 ms | p99 ms |\n|---|--:|--:|--:|--:|")
    p99 = {}
    for who, (rate, latencies) in found.items():
        p50, p99[who] = (find_percentile(latencies, percent) if latencies else 0.0 for percent in (50, 99))
        print(f"| {who} | {rate:.2f} | {len(latencies)} | {p50:.0f} | {p99[who]:.0f} |")
    all_of_them, one = f"{READERS} readers", "1 readers"
    ratio, poll_ms = found[all_of_them][0] / found[one][0], Pace().poll_s * 1000
    verdicts = [
        (
            ratio <= MAX_COST,
            f"{ratio:.2f} of the questions that one reader costs the machine, at most {MAX_COST} is allowed",
        ),
        (p99[all_of_them] < MAX_P99_MS, f"p99 {p99[all_of_them]:.0f} ms, less than {MAX_P99_MS:.0f} is needed"),
    ]
    print(
        f"\nThat p99 is {p99[all_of_them] / poll_ms:.2f} of the time between two polls of a job that nobody follows.\n"
    )
    for holds, words in verdicts:
        print("pass" if holds else "FAIL", words)
    return int(not all(holds for holds, _ in verdicts))


if __name__ == "__main__":
    sys.exit(main())
