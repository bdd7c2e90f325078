"""Our own environments, through the real machine-side program, as a service asks for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.jobd.environment.environment import find_tree
from tests.bench.environment import disk
from tests.bench.environment.figures import Times, find_environment_s
from tests.support.jobd import Jobd
from tests.support.writes import MISSING, make_all_script

PATIENCE_S = 7_200

UNTIL_SMOKE = 'until [ -e "$PTQ_OUTPUT_DIR/smoke" ]; do sleep 0.01; done'
"""An agent that is at work for as long as the smoke test beside it runs."""


@dataclass
class Ours:
    """The program on a machine where the repository's base is made once."""

    jobd: Jobd
    recipe: Mapping[str, Any]
    environment_s: list[float] = field(default_factory=list)
    """What the log tells of each environment alone."""

    def prepare(self, job: Jobd) -> dict[str, Any]:
        """Have an environment, from the request until it is there. Raises `AssertionError`."""
        limits = {"timeout_s": PATIENCE_S, "base_timeout_s": PATIENCE_S}
        job.call("prepare", **job.prepare_request(**self.recipe, **limits))
        poll = job.wait("prepare", PATIENCE_S)
        assert poll["state"] == "done", (poll["error"], poll["message"])
        return poll

    def make_base(self) -> tuple[float, Path, str]:
        """Have the base made by a first job: the seconds that it takes, its folder, and the way in which jobs begin."""
        began = time.monotonic()
        way: str = self.prepare(self.jobd)["result"]["way"]
        made_s = time.monotonic() - began
        tree = find_tree(self.jobd.job)
        assert tree
        self.jobd.call("clean")
        return made_s, tree.layers[0], way

    def measure(self) -> Times:
        """One job, from its request to its end."""
        job = self.jobd.beside()
        began = time.monotonic()
        poll = self.prepare(job)
        ready = time.monotonic() - began
        self.environment_s.append(find_environment_s(poll["log"]))
        job.start(UNTIL_SMOKE, timeout_s=PATIENCE_S)
        assert job.wait("agent", PATIENCE_S)["result"]["exit_status"] == 0
        with_smoke_test = time.monotonic() - began
        ended = time.monotonic()
        job.call("clean")
        return Times(ready, with_smoke_test, time.monotonic() - ended)

    def measure_extra(self) -> tuple[int, int]:
        """Bytes and inodes of an environment that nobody has worked in yet."""
        job = self.jobd.beside()
        self.prepare(job)
        tree = find_tree(job.job)
        assert tree
        extra = disk.count(job.root, *([tree.place] if tree.way == "slot" else []))
        job.call("clean")
        return extra

    def measure_at_once(self, jobs: int) -> float:
        """Seconds until so many jobs, which are asked for at once, all have their environments."""
        many = [self.jobd.beside() for _ in range(jobs)]
        began = time.monotonic()
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.prepare, many))
        took = time.monotonic() - began
        for job in many:
            job.call("clean")
        return took

    def write_everywhere(self) -> int:
        """Have one job write in every way that this machine has, and return how many these are."""
        job = self.jobd.beside()
        self.prepare(job)
        writes = make_all_script('"$PTQ_OUTPUT_DIR"')
        job.start(f"cd build\n{writes}", timeout_s=PATIENCE_S)
        ended = job.wait("agent", PATIENCE_S)
        statuses = []
        for path in (job.root / "output").iterdir():
            with suppress(UnicodeDecodeError):
                statuses.append(path.read_text().strip())
        assert {*statuses} <= {"0", MISSING, ""}, ended["log"].decode()
        job.call("clean")
        return statuses.count("0")
