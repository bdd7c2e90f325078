"""`make bench-gateway`: what it costs to ask a model through relay, OpenSSH and gateway, beside asking it directly."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bot.demo.loopback import find_free_port
from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from tests.bench import needs
from tests.bench.figures import find_percentile
from tests.bench.gateway import client, model
from tests.bench.gateway.stalls import is_stalled, watching
from tests.bench.processes import read_cpu_s, read_memory
from tests.bench.servers import SERVE, Installation
from tests.support.sshd import OpenSshServer, find_sshd

PATIENCE_S = 180.0
MAX_ADDED_MS = 3.0
MAX_EVENT_RATIO = 1.05
MAX_LEFT_OUT = 0.5
"""The share of requests beyond which too few say anything."""
TOML = """
[agents.asking]
kind = "command"
command = {command}
[agents.asking.gateway]
url = "{url}"
key = "sk-of-the-bench"
[prices.m]
input = 1.0
output = 2.0
[caps]
job = {{ cost_usd = "unlimited" }}
user_day = {{ cost_usd = "unlimited" }}
repository_month = {{ cost_usd = "unlimited" }}
"""


async def run(folder: Path, core: int, sshd: Path) -> tuple[dict[str, Any], float, int]:
    """What the agent found, and what the service took for the streams: CPU seconds, and bytes more than before."""
    url = f"http://127.0.0.1:{(port := find_free_port())}"
    command = json.dumps([sys.executable, client.__file__, url])
    ssh = OpenSshServer(folder / "sshd", sshd)
    await ssh.start()
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", model.__name__, str(port))
    # A model is as far from a machine as we are: both ways leave the machine's core.
    os.sched_setaffinity(server.pid, {core})
    options = {"more_toml": TOML.format(command=command, url=url), "repository_agent": "asking", "ssh": ssh}
    try:
        async with Installation(folder, core, SERVE, (), **options) as installation:
            installation.as_server([])
            issue = await installation.github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
            await installation.github.label_issue(NAME, issue, LABEL, MAINTAINER)
            return await watch(folder / "machine" / "workspace" / "jobs", installation.watched.process.pid)
    finally:
        server.terminate()
        await server.wait()
        await ssh.stop()


async def watch(jobs: Path, service: int) -> tuple[dict[str, Any], float, int]:
    """Look at the service while the agent measures."""
    # To look costs time of the core on which the first bytes are measured.
    begun = await wait_for(jobs, "direct-0", every_s=0.5)
    cpu_s, memory, last = 0.0, 0, (begun, read_cpu_s(service), read_memory(service))
    before = last[2]
    for number in range(client.ROUNDS):
        await wait_for(jobs, f"gateway-{number}")
        began = read_cpu_s(service)
        name = f"direct-{number + 1}" if number + 1 < client.ROUNDS else "found.json"
        found = await wait_for(jobs, name)
        cpu_s += read_cpu_s(service) - began
        memory = max(memory, read_memory(service) - before)
    return json.loads(found.read_text()), cpu_s, memory


async def wait_for(jobs: Path, name: str, every_s: float = 0.05) -> Path:
    """The file of the agent, once it is there."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := [*jobs.glob(f"*/files/output/{name}")]):
            await asyncio.sleep(every_s)
    return found[0]


def main(sshd: Path | None) -> int:
    """Measure, print, judge: the exit status. `sshd` is OpenSSH's server, where there is one."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = [needs.two_cores("one for the service and the model, one for the machine"), needs.quiet_machine()]
    if not needs.may_run([*wanted, needs.memory(1_000), needs.sshd(sshd), needs.real_time()]) or not sshd:
        return 2
    os.sched_setaffinity(0, {cores[-1]})
    with tempfile.TemporaryDirectory(prefix="ptq-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with watching({cores[0], cores[-1]} if needs.may_go_first() else ()) as stalls:
            found, cpu_s, memory = asyncio.run(run(folder, cores[0], sshd))
    calm = {way: [one for one in asked if not is_stalled(stalls, *one[:2])] for way, (asked, _) in found.items()}
    share = 1 - sum(map(len, calm.values())) / (2 * client.FIRST_BYTES)
    print(f"{share:.1%} of the requests are left out: a core was not ours meanwhile, {len(stalls)} times in all.\n")
    if not all(calm.values()):
        print("nothing is left to measure: this machine has too much else to do", file=sys.stderr)
        return 2
    print("| | first byte p50 ms | p99 ms | whole answer p99 ms | ms for an event, 100 streams | slowest stream |")
    print("|---|--:|--:|--:|--:|--:|")
    firsts, events = {}, {}
    for way, (_, streams) in found.items():
        waits = [first - began for began, first, _ in calm[way]]
        firsts[way] = [find_percentile(waits, percent) * 1000 for percent in (50, 99)]
        whole = find_percentile([last - began for began, _, last in calm[way]], 99) * 1000
        took = [last - first for _, first, last in streams]
        events[way] = [find(took) * 1000 / client.EVENTS for find in (median, max)]
        print(f"| {way} | {' | '.join(f'{value:.2f}' for value in (*firsts[way], whole, *events[way]))} |")
    event_us = cpu_s * 1e6 / (client.STREAMS * client.EVENTS * client.ROUNDS)
    print(f"\nThe service: {event_us:.0f} us of CPU for an event, {memory / 1e6:.0f} MB for 100 streams.\n")
    added, ratio = firsts["gateway"][1] - firsts["direct"][1], events["gateway"][0] / events["direct"][0]
    if share > MAX_LEFT_OUT:
        print("This machine had too much else to do for a verdict.")
        return 2
    verdicts = [
        (added <= MAX_ADDED_MS, f"{added:.2f} ms added to the first byte at p99, at most {MAX_ADDED_MS} are allowed"),
        (ratio <= MAX_EVENT_RATIO, f"{ratio:.3f} of the time for an event, at most {MAX_EVENT_RATIO} is allowed"),
    ]
    for holds, words in verdicts:
        print("pass" if holds else "FAIL", words)
    return int(not all(holds for holds, _ in verdicts))


if __name__ == "__main__":
    sys.exit(main(find_sshd()))
