"""The stage `check`: runs scripts and tests, each several times, and each time where nothing else has run before.

It begins from an environment that was prepared for it, in which no agent was. What a run writes, there or in its folder
for scratch files, is gone before the next one. It refuses to judge how they end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..environment.carry import carry_over
from ..environment.environment import PATIENCE_S, find_tree, separate
from ..environment.recipe import run_commands
from ..environment.trees import Tree, discard, make, put_on_top, show, take_away
from ..files import Failure, write_file
from ..git import find_own_clone
from ..locks import keep_locked
from ..stages.command import NotRunnable
from ..stages.stage import Stage
from .watchers import read_objection, watch_written

MAX_WORDS = 4_000
"""Bytes that are kept of what one run said last."""

SCRIPT, FREEZER = "repro.py", "freeze.py"

FREEZE = '''\
import os, py_compile, sys, tempfile
from importlib.util import cache_from_source

ABSENT = """\\
name = __name__.rsplit(".", {})[0]
raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
"""

def keep(source, path):
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(source, cache_from_source(path), path, doraise=False, invalidation_mode=mode)

def find_depth(path):
    folders = path.split("/")[:-1]
    missing = [at for at in range(len(folders)) if not os.path.isdir("/".join(folders[: at + 1]))]
    return len(missing) - path.endswith("/__init__.py")

depths = {path: find_depth(path) for path in sys.argv[1:] if not os.path.lexists(path)}
for path in sys.argv[1:]:
    if os.path.isfile(path):
        keep(path, path)
for path, depth in depths.items():
    with tempfile.NamedTemporaryFile("w", suffix=".py") as stub:
        stub.write("" if depth < 0 else ABSENT.format(depth))
        stub.flush()
        keep(stub.name, path)
'''
"""Has files go on to be run as they are now, whatever is written into them later (PEP 552, unchecked hashes).

A module that is not there yet stays unknown: importing it fails as it does now, in the name of the first package that
is missing. A folder that becomes a package is an empty one, as it is now.
"""


def check(stage: Stage) -> dict[str, Any]:
    """Run everything, in its order. What could not be run is left out, and `troubles` say why. Raises `Failure`."""
    job, request = stage.job, stage.request
    keep_locked(job.tree_lock, PATIENCE_S)
    prepared = find_tree(job)
    if prepared is None:
        raise Failure("not_prepared", "the environment for the checks is not prepared")
    separate(prepared.way)
    if prepared.way == "slot":  # Where it is, the others have to be.
        take_away(prepared)
    found: dict[str, list[dict[str, Any]]] = {}
    troubles: dict[str, str] = {}
    changed: Tree | Failure | None = None
    for run in take_turns(request["runs"], request["times"]):
        if run["name"] in troubles:
            continue
        try:
            require_time(stage)
            if run["changed"] and changed is None:
                changed = try_to_build(stage, prepared)
            ground = changed if run["changed"] else prepared
            if isinstance(ground, Failure):
                raise ground
            assert ground
            found.setdefault(run["name"], []).append(run_once(stage, ground, run))
        except Failure as failure:
            troubles[run["name"]] = failure.message
    return {"runs": found, "troubles": troubles}


def take_turns(runs: list[list[Mapping[str, Any]]], times: int) -> Iterator[Mapping[str, Any]]:
    """What is to be run, in its order: of each list one after the other, and anew, so that no clock tells them."""
    for turns in runs:
        for _ in range(times):
            yield from turns


def require_time(stage: Stage) -> None:
    """Raises `Failure` when there is no time left."""
    if time.monotonic() > stage.deadline:
        raise Failure("timed_out", f"the checks took longer than {stage.limit_s} seconds")


def try_to_build(stage: Stage, prepared: Tree) -> Tree | Failure:
    """The environment with the change, or why there is none: once, for a build may take long to fail."""
    try:
        return build_changed(stage, prepared)
    except Failure as failure:
        return failure


def build_changed(stage: Stage, prepared: Tree) -> Tree:
    """An environment with the whole change in it, built anew by the operator's commands. Raises `Failure`."""
    tree = put_on_top(prepared, stage.job.control / "changed")
    make(tree)
    show(tree)
    try:
        clear_scratch(stage)
        apply(stage, stage.request["changes"])
        run_commands(stage, "rebuild", stage.request["rebuild"])
    finally:
        take_away(tree)
    return tree


def run_once(stage: Stage, ground: Tree, run: Mapping[str, Any]) -> dict[str, Any]:
    """Run one, in an environment of its own. Raises `Failure`."""
    job, tree = stage.job, put_on_top(ground, stage.job.control / "run")
    make(tree)
    show(tree)
    try:
        clear_scratch(stage)
        if run["frozen"]:
            write_file(job.output / FREEZER, FREEZE)
            words = [*stage.request["script_argv"], str(job.output / FREEZER), *run["frozen"]]
            stage.must("not_frozen", "the base's code could not be kept", words, job.environment(), job.worktree)
            (job.output / FREEZER).unlink()
        apply(stage, run["edits"])
        watch_written(stage, tree)
        return follow(stage, run)
    finally:
        take_away(tree)
        discard(tree.top)


def clear_scratch(stage: Stage) -> None:
    """Remove what was written beside the environment. Raises `Failure`."""
    job = stage.job
    for left in [path for path in job.root.iterdir() if path != job.control]:
        discard(left)
    for folder in (job.tmp, job.output):
        folder.mkdir(mode=0o700)


def apply(stage: Stage, changes: list[Mapping[str, Any]]) -> None:
    """Write edits into the worktree. Raises `Failure`."""
    job, request = stage.job, stage.request
    carry_over(job, find_own_clone(job), request["base_commit"], changes, request["timeout_s"])


def follow(stage: Stage, run: Mapping[str, Any]) -> dict[str, Any]:
    """Run the command, and say how it ended. Raises `Failure`."""
    job, argv, deadline = stage.job, [*stage.request["test_argv"], *run["words"]], stage.deadline
    if run["script"]:
        script = Path(job.output / SCRIPT)
        write_file(script, run["script"])
        argv = [*stage.request["script_argv"], str(script)]
    stage.log.write(f"[{run['name']}]\n".encode())
    stage.deadline = min(deadline, time.monotonic() + stage.request["run_timeout_s"])
    try:
        ended = stage.run(argv, job.environment(), job.worktree)
    except NotRunnable as error:
        raise Failure("not_runnable", f"the command for it {error}") from None
    finally:
        stage.deadline = deadline
    if objection := read_objection(job):
        job.objection.unlink()
        raise Failure("objected", objection)
    words = stage.log.last_words[-MAX_WORDS:].decode(errors="replace")
    return {"status": ended.status, "timed_out": ended.timed_out, "words": words}
