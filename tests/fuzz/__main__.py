"""`make fuzz`: each target reads many nasty texts, and GitHub's own parser says what came of them."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context

from tests.fuzz import inbound, outbound
from tests.fuzz.run import Failure, Target, find_failure

TARGETS: Mapping[str, Target] = {"outbound": outbound.find_faults, "inbound": inbound.find_faults}

BATCH = 2_000
"""Texts of one process: the parser's bindings never give memory back."""


def main() -> int:
    """Run the targets; 1 when a text fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first text")
    parser.add_argument("--target", choices=TARGETS, action="append", help="all of them by default")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.texts)
    print(f"seed {arguments.seed}, {arguments.texts:,} texts", flush=True)
    failed = False
    for name in arguments.target or TARGETS:
        began = time.monotonic()
        failure = _run(name, arguments.seed, numbers)
        took = f"{time.monotonic() - began:.0f} s"
        print(_describe(name, arguments.seed, failure) if failure else f"{name}: clean after {took}", flush=True)
        failed = failed or failure is not None
    return int(failed)


def _run(name: str, seed: int, numbers: Sequence[int]) -> Failure | None:
    batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
    with get_context("fork").Pool(maxtasksperchild=1) as pool:
        failures = pool.imap(partial(_run_batch, name, seed), batches)
        return next((failure for failure in failures if failure), None)


def _run_batch(name: str, seed: int, numbers: Sequence[int]) -> Failure | None:
    return find_failure(TARGETS[name], seed, numbers)


def _describe(name: str, seed: int, failure: Failure) -> str:
    repeat = f'make fuzz ARGS="--target {name} --seed {seed} --first {failure.number} --texts 1"'
    faults = "\n".join(f"  {fault}" for fault in failure.faults)
    return f"{name}: text {failure.number} fails\n{faults}\nsmallest text: {failure.smallest!r}\nrepeat: {repeat}"


if __name__ == "__main__":
    sys.exit(main())
