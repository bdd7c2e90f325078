"""`make mutation`: plants small faults in the product, one at a time, and says which of them the tests find.

    make mutation ARGS="map"                            # once: which test reaches which line; runs the whole suite
    make mutation                                       # plant the recorded faults, `faults.toml`
    make mutation ARGS="--only handlers-03"             # one of them
    make mutation ARGS="--seed 7 --faults 10"           # other ones, without recording them
    make mutation ARGS="choose --seed 1 --faults 40"    # record another choice

What follows `map` goes to pytest: `map tests/handlers -n 0` measures a part. The map is in `.cache/mutation/map`, the
result in `.cache/mutation/result.json`. A recorded fault is found again after code has moved to other files, so
the same faults can be planted before and after the tests change; a fault that is no longer there is "gone". Make a new
map when code has moved, and when tests have changed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutation.faults import Fault, choose, find_all, locate, read_record, read_tree, write_record
from tests.mutation.reach import Reach
from tests.mutation.recorder import MAP
from tests.mutation.trial import Outcome, judge, open_copy

RESULT = MAP.with_name("result.json")


def main() -> int:
    """Map, choose or run; a survivor is no error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("map", "choose", "run"), nargs="?", default="run")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--only", action="append", help="the id of a fault, or how it begins")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600, help="seconds for one fault")
    arguments, rest = parser.parse_known_args()
    if arguments.what == "map":
        return record_map(rest)
    if rest:
        parser.error(f"what is {' '.join(rest)}?")
    found = find_all(read_tree(Path.cwd()))
    faults = read_record() if arguments.seed is None else choose(found, arguments.seed, arguments.faults)
    if arguments.what == "choose":
        write_record(arguments.seed or 0, faults)
        return 0
    chosen = [fault for fault in faults if not arguments.only or fault.id.startswith(tuple(arguments.only))]
    run(chosen, arguments.workers, arguments.limit)
    return 0


def record_map(rest: Sequence[str]) -> int:
    """Run the suite, or what is named of it, and measure it."""
    shutil.rmtree(MAP, ignore_errors=True)
    arguments = rest or ("-n", "4", "-m", "not agents")
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.mutation.recorder", *arguments]).returncode


def run(faults: Sequence[Fault], workers: int, limit_s: float) -> None:
    """Plant each fault, print a line about it, and write all results after each."""
    reach, found = Reach.read(), find_all(read_tree(Path.cwd()))
    results = []
    with open_copy(Path.cwd(), workers, limit_s) as copy:
        for fault in faults:
            place = locate(fault, found)
            outcome = judge(copy, *place, reach.choose_tests(fault, *place)) if place else Outcome("gone")
            print(render(fault, place[0] if place else fault.path, outcome), flush=True)
            results.append({**asdict(fault), **asdict(outcome)})
            RESULT.write_text(json.dumps(results, indent=1))
    counts = Counter(result["verdict"] for result in results)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


def render(fault: Fault, path: str, outcome: Outcome) -> str:
    """One line about what became of a fault, and one about what it is."""
    asked = f"{outcome.ran} of {outcome.tests} tests"
    head = f"{fault.id:13} {outcome.verdict:9} {outcome.seconds:6.0f} s  {asked:>20}  {outcome.by}".rstrip()
    return f"{head}\n{'':14}{path} {fault.function}: {fault.operator}: {fault.line[:90]}"


if __name__ == "__main__":
    sys.exit(main())
