"""`make bench-environment`: how fast a job has its environment, beside our predecessor's recipe and plain copies."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Protocol

from tests.bench import needs
from tests.bench.environment import disk, scene
from tests.bench.environment.figures import UNTOUCHED, Row, Times, judge, render_table
from tests.bench.environment.ours import Ours
from tests.bench.environment.rivals import Copy, Impossible, Recipe, Reflink
from tests.support.contents import Entry, find_told_differences, read_entries
from tests.support.git_daemon import serve
from tests.support.jobd import Jobd

CHANGED_FILES = 20
"""Between the base's commit and that of the jobs of one day later."""


class Way(Protocol):
    """A way to make environments."""

    def measure(self) -> Times: ...

    def measure_extra(self) -> tuple[int, int]: ...

    def write_everywhere(self) -> int: ...


def say(text: str) -> None:
    """Tell a person who waits what is going on."""
    print(f"  {text}", file=sys.stderr, flush=True)


def measure(name: str, way: Way, rounds: int, cold_rounds: int) -> Row:
    """The figures of one way; the first time only warms up."""
    try:
        way.measure()
        warm = [way.measure() for _ in range(rounds)]
        say(f"{name}: {', '.join(f'{one.ready:.2f}' for one in warm)} s")
        cold = []
        for _ in range(cold_rounds):
            disk.forget()
            cold.append(way.measure())
        return Row(name, warm, cold, *way.measure_extra())
    except Impossible as reason:
        return Row(name, impossible=str(reason))


class Base:
    """A base, and whether it is still what it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries = self._read()

    def _read(self) -> dict[str, Entry]:
        return read_entries(self._folder)

    def judge(self, row: Row, write_everywhere: Callable[[], int]) -> Row:
        """What becomes of it when an environment is written to in every way."""
        if row.impossible:
            return row
        count, before = write_everywhere(), self._entries
        self._entries = self._read()
        # What `git worktree` writes down in the base's own folder is meant to be there.
        changed = [path for path in find_told_differences(before, self._entries) if "/.git" not in path]
        return replace(row, base=f"{len(changed)} files changed by {count} writes" if changed else UNTOUCHED)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-environment", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of PyTorch's size (default 1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="leave a cold disk out: to have one slows all else down")
    parser.add_argument("--jobs", type=int, default=20, help="how many begin at once")
    parser.add_argument("--way", choices=["overlay", "copy", "slot"], help="by default the best that this machine has")
    parser.add_argument("--torch", action="store_true", help="with torch's own wheel, which pip has to bring")
    parser.add_argument("--folder", type=Path, help="where to work, on the disk that is to be measured")
    return parser.parse_args()


def measure_all(folder: Path, options: argparse.Namespace, wheels: Path | None) -> int:
    """Measure, print, judge: the exit status."""
    size, cold_rounds = scene.Size(options.scale), 0 if options.warm or not disk.can_forget() else options.rounds
    project = scene.make_repositories(folder / "served", size)
    say("the repositories are made")
    with serve(folder / "served") as address:
        machine = folder / "machine"
        machine.mkdir()
        recipe = scene.make_recipe(size, wheels)
        ways = {"ways": [options.way]} if options.way else {}
        ours = Ours(Jobd(machine, scene.Served(project, f"{address}/project")), {**recipe, **ways})
        made_s, layer, way = ours.make_base()
        print(f"By {way}; the base was made in {made_s:.0f} s: {describe(layer)}, {options.scale} of PyTorch's.")
        place, plain = ours.jobd.place, folder / "plain"
        subprocess.run(["cp", "-a", layer, plain], check=True)
        mine = Base(layer).judge(measure("ptq-bot", ours, options.rounds, cold_rounds), ours.write_everywhere)
        environment_s = median(ours.environment_s)
        at_once_s = median(ours.measure_at_once(options.jobs) for _ in range(3))
        smoke_test = str(recipe["smoke_test"][0])  # type: ignore[index]
        their_base = Base(plain)
        rows = [mine]
        for name, kind in {"its predecessor's recipe": Recipe, "cp -a": Copy, "cp -a --reflink": Reflink}.items():
            rival = kind(plain, folder / "target", place, smoke_test)
            rows.append(their_base.judge(measure(name, rival, options.rounds, cold_rounds), rival.write_everywhere))
        scene.commit_some(project, CHANGED_FILES)
        later = measure(f"ptq-bot, {CHANGED_FILES} files later", ours, options.rounds, cold_rounds)
        rows.insert(1, replace(later, base=mine.base))
    print(f"\n{render_table(rows)}\n")
    print(f"Of ours, the environment alone takes {environment_s:.2f} s, by its log.")
    print(f"{options.jobs} jobs at once: {at_once_s:.2f} s.\n")
    verdicts = judge(mine, rows[2], at_once_s, options.jobs)
    for holds, words in verdicts:
        print("met   " if holds else "MISSED", words)
    return int(not all(holds for holds, _ in verdicts))


def describe(layer: Path) -> str:
    """How large a base is, in words."""
    size, inodes = disk.count(layer)
    return f"{inodes} files, {size / 1e9:.2f} GB"


def main() -> int:
    """Run the bench: the exit status."""
    options = read_options()
    where = options.folder or Path(tempfile.gettempdir())
    if not needs.may_run([needs.disk(where, 20 * options.scale), needs.quiet_machine(), needs.memory(1_000)]):
        return 2
    print(f"{os.cpu_count()} cores, and a load of {os.getloadavg()[0]:.1f} from others.", flush=True)
    if not disk.can_forget():
        print("A cold disk cannot be had here: /proc/sys/vm/drop_caches is root's.")
    with tempfile.TemporaryDirectory(prefix="ptq-bench-", dir=options.folder) as name:
        folder = Path(name)
        try:
            wheels = scene.download_torch(folder / "wheels") if options.torch else None
        except subprocess.CalledProcessError:
            print("the bench could not be run: pip does not bring torch here", file=sys.stderr)
            return 2
        began = time.monotonic()
        try:
            return measure_all(folder, options, wheels)
        finally:
            say(f"{time.monotonic() - began:.0f} s in all")
            for left in folder.iterdir():
                disk.remove(left)


if __name__ == "__main__":
    sys.exit(main())
