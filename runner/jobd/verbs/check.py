"""The stage `check`: runs scripts and tests several times, each time in an environment where nothing else has run.

The stage begins in an environment that was prepared for it, and that no agent has seen. What a run writes, in the
environment or in scratch folders, is removed before the next run. The stage does not judge the results.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import SystemRandom
from typing import Any

from ..environment.carry import carry_over
from ..environment.environment import LOCK_TIMEOUT_S, find_tree, isolate_mounts
from ..environment.recipe import run_commands
from ..environment.trees import Tree, discard, make_tree, mount_tree, put_on_top, unmount_tree
from ..files import Failure, require_folders
from ..locks import keep_locked
from ..safe_paths import open_folder, write_safely
from ..stages.command import NotRunnable
from ..stages.stage import Stage
from .watchers import watch_written

MAX_WORDS = 4_000
"""How many bytes are kept of the end of a run's output."""

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
"""Makes Python run files as they are now, even if they are changed later (PEP 552, unchecked hashes).

A module that does not exist yet stays unknown: its import fails as it does now, and names the first missing package.
A folder that only later becomes a package acts as an empty package.
"""


def check(stage: Stage) -> dict[str, Any]:
    """Run everything in turns. What could not be run is left out, and `troubles` says why. Raises `Failure`."""
    job, request = stage.job, stage.request
    keep_locked(job.tree_lock, LOCK_TIMEOUT_S)
    prepared = find_tree(job)
    if prepared is None:
        raise Failure("not_prepared", "the environment for the checks is not prepared")
    isolate_mounts(prepared.way, stage.patience_s)
    if prepared.way == "slot":  # The other trees need the same place.
        unmount_tree(prepared)
    found: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, str] = {}
    grounds: dict[str, Tree | Failure] = {}
    for run in take_turns(request["runs"], request["times"]):
        if run["name"] in failures:
            continue
        try:
            require_time(stage)
            ground: Tree | Failure = prepared
            if has_ground(prepared, run):
                side = json.dumps([run["changed"], run["edits"], run["frozen"]])
                if side not in grounds:
                    grounds[side] = try_to_build(stage, prepared, run, f"ground-{len(grounds)}")
                ground = grounds[side]
            if isinstance(ground, Failure):
                raise ground
            runs = found.setdefault(run["name"], [])
            title = f"{run['title']}, run {len(runs) + 1} of {request['times']}."
            runs.append(run_once(stage, ground, run, title))
        except Failure as failure:
            failures[run["name"]] = failure.message
    return {"runs": found, "troubles": failures}


def take_turns(runs: list[list[Mapping[str, Any]]], times: int) -> Iterator[Mapping[str, Any]]:
    """All runs, each of them `times` times. The runs of one list take turns, so that the time does not tell them apart.

    Each round has a random order. So a script that finds out how many runs there were before it still does not know
    which run it is in.
    """
    for turns in runs:
        for _ in range(times):
            yield from SystemRandom().sample(turns, len(turns))


def require_time(stage: Stage) -> None:
    """Raises `Failure` if no time is left."""
    if time.monotonic() > stage.deadline:
        raise Failure("timed_out", f"the checks took longer than {stage.limit_s} seconds")


def has_ground(prepared: Tree, run: Mapping[str, Any]) -> bool:
    """Whether the edits of a run are made once, in a tree that is under all runs of its side.

    With overlays, all sides have such a tree, even a side without edits. So a script cannot tell the sides apart by the
    number of layers, or by whether a file is older than its environment. With copies it can, because each such tree
    would take a whole copy.
    """
    return prepared.way == "overlay" or bool(run["changed"])


def try_to_build(stage: Stage, prepared: Tree, run: Mapping[str, Any], name: str) -> Tree | Failure:
    """The environment with the edits of a run, or the failure of its build.

    Called once for each side, because a build may take long to fail.
    """
    try:
        return build_ground(stage, prepared, run, name)
    except Failure as failure:
        return failure


def build_ground(stage: Stage, prepared: Tree, run: Mapping[str, Any], name: str) -> Tree:
    """An environment with the edits of a run. Raises `Failure`."""
    tree = put_on_top(prepared, stage.job.control / name)
    make_tree(tree, stage.job.trash)
    mount_tree(tree)
    try:
        clear_scratch(stage)
        watch_written(stage, tree)
        make_edits(stage, run)
    finally:
        unmount_tree(tree)
    return tree


def make_edits(stage: Stage, run: Mapping[str, Any]) -> None:
    """Make the edits of a run. If `changed`, apply the whole change and rebuild. Otherwise apply the run's `edits`.

    For these, first preserve the code of the `frozen` files. Raises `Failure`.
    """
    job = stage.job
    if run["changed"]:
        apply(stage, stage.request["changes"])
        run_commands(stage, "rebuild", stage.request["rebuild"])
        return
    if run["frozen"]:
        write_safely(job.root, f"{job.output.name}/{FREEZER}", FREEZE.encode())
        words = [*stage.request["script_argv"], str(job.output / FREEZER), *run["frozen"]]
        stage.say("Preserving the base's code, because it runs while the files hold the changed text.")
        stage.must("not_frozen", "the base's code could not be preserved", words, job.environment(), job.worktree)
        require_folders(job.output)
        with open_folder(job.root, [job.output.name]) as folder:
            os.unlink(FREEZER, dir_fd=folder)
    apply(stage, run["edits"])


def run_once(stage: Stage, ground: Tree, run: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Run one script or test in a new environment. The log shows `title`. Raises `Failure`."""
    job, tree = stage.job, put_on_top(ground, stage.job.control / "run")
    make_tree(tree, job.trash)
    mount_tree(tree)
    try:
        clear_scratch(stage)
        watch_written(stage, tree)
        if not has_ground(ground, run):
            make_edits(stage, run)
        return follow(stage, run, title)
    finally:
        unmount_tree(tree)
        discard(tree.top, job.trash)


def clear_scratch(stage: Stage) -> None:
    """Remove what was written outside the environment. Raises `Failure`.

    The folder `root` itself is replaced, because a run could count the runs in the folder's mode or attributes.
    """
    job = stage.job
    discard(job.root, job.trash)
    for folder in (job.root, job.tmp, job.output):
        folder.mkdir(mode=0o700)


def apply(stage: Stage, changes: list[Mapping[str, Any]]) -> None:
    """Apply edits to the worktree. Raises `Failure`."""
    carry_over(stage, stage.request["base_commit"], changes)


def follow(stage: Stage, run: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Run the script or the test command, and return its result. Raises `Failure`."""
    job, argv = stage.job, [*stage.request["test_argv"], *run["words"]]
    if run["script"]:
        script = Path(job.output / SCRIPT)
        require_folders(job.output)
        write_safely(job.root, f"{job.output.name}/{SCRIPT}", run["script"].encode())
        argv = [*stage.request["script_argv"], str(script)]
    stage.say(title)
    try:
        with stage.at_most(stage.request["run_timeout_s"]):
            ended = stage.run(argv, job.environment(), job.worktree)
    except NotRunnable as error:
        raise Failure("not_runnable", f"its command {error}") from None
    if ended.objection:
        raise Failure("ended_by_watcher", ended.objection)
    words = stage.log.last_words[-MAX_WORDS:].decode(errors="replace")
    return {"status": ended.status, "timed_out": ended.timed_out, "words": words}
