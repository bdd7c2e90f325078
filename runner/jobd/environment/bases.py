"""The base of a repository: an environment that the operator's commands build once, and from which each job begins.

A base is a stack of layers that never change. A refresh adds a layer on top; running jobs keep the layers that they
began with. Layers that no job and no base needs are removed. If a base is missing, the first job that needs it builds
it, and the others wait. An interrupted build is continued.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..files import Failure, JobPaths, read_json, write_file
from ..git import find_clone
from ..locks import locked
from ..stages.stage import Stage
from .clone import fetch_commit
from .recipe import check_imports, check_out, list_untracked, make_venv, refresh_index, run_commands
from .trees import Tree, make_tree, mount_tree, move_to_trash, unmount_tree

MAX_LAYERS = 20
"""A base with this many layers is rebuilt. Each one slows mounts a little, and keeps files that newer ones replaced."""

UNUSED_S = 7 * 86_400
"""How long a base is kept while no job begins from it, in seconds: its commands may have changed since."""


class Base(NamedTuple):
    """A finished base."""

    layers: tuple[str, ...]
    """Names of folders, from the newest to the oldest."""
    commit: str
    made_at: float
    """When the newest layer was made, in seconds since 1970."""
    left: tuple[str, ...]
    """Untracked files in the worktree, which are not part of any change."""


class BaseStore:
    """The folder for the bases of one repository that are built by the same commands, for the same place."""

    def __init__(self, job: JobPaths, request: Mapping[str, Any], way: str) -> None:
        clone = find_clone(job, request["clone_url"])
        self.place = job.workspace / "env" / clone.name
        if way == "slot":
            self.place = job.workspace / "slots" / str(request["slot"]) / clone.name
        recipe = json.dumps([way, str(self.place), *(request[name] for name in RECIPE)])
        self.name = f"{clone.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
        self.folder = job.workspace / "bases" / self.name
        self.building = self.folder / "building"
        self.way = way

    def read(self) -> Base | None:
        """The current base. None if there is none yet."""
        found = read_json(self.folder / "base.json")
        if not found:
            return None
        return Base(tuple(found["layers"]), str(found["commit"]), float(found["made_at"]), tuple(found["left"]))

    def tree(self, base: Base | None, top: Path) -> Tree:
        """A new tree on top of a base, or on top of nothing."""
        return Tree(self.way, self.place, tuple(self.folder / name for name in (base.layers if base else ())), top)


RECIPE = ("create_venv", "setup", "submodules", "smoke_test", "imports")
"""The fields of a request that decide how a base is built. If one changes, the base is rebuilt."""


def get_or_build(stage: Stage, store: BaseStore, commit: str) -> Base:
    """The base for a job at a commit, built if it is missing, and kept for as long as the job needs it.

    It is built at a commit of the trunk: another commit may come from a stranger, and other jobs use the same base.
    Raises `Failure`.
    """
    request, trunk = stage.request, stage.request["trunk"]
    store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with locked(store.folder / "lock", stage.deadline):
            base = store.read()
            if base:
                os.utime(store.folder)
                describe_use(stage.job, store, base)
                return base
        is_trunk = trunk == request["base_branch"] and not request["base_commit"]
        of_trunk = commit if is_trunk else fetch_commit(stage, trunk)
        build(stage, store, of_trunk, only_if_missing=True)


def refresh(stage: Stage, store: BaseStore, commit: str) -> Base:
    """Add a layer that brings a base to a commit, or build the base if it is missing. Raises `Failure`."""
    store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return build(stage, store, commit, only_if_missing=False)


def build(stage: Stage, store: BaseStore, commit: str, *, only_if_missing: bool) -> Base:
    """Build a base or its next layer, one process at a time. Raises `Failure`."""
    stage.say_phase("base")
    try:
        with stage.with_own_limit(stage.request["base_timeout_s"]):
            with locked(store.folder / "building.lock", stage.deadline, partial(log_waiting, stage)):
                base = store.read()
                if base and (only_if_missing or base.commit == commit):
                    return base
                made = _build(stage, store, base if base and len(base.layers) < MAX_LAYERS else None, commit)
            with locked(store.folder / "lock", stage.deadline):
                remove_unused(stage.job, store)
            return made
    finally:
        stage.say_phase("")


def log_waiting(stage: Stage) -> None:
    """Tell a job's log what it waits for."""
    stage.say("Waiting for another job that is building this repository's base.")


def _build(stage: Stage, store: BaseStore, below: Base | None, commit: str) -> Base:
    number = 1 + max((int(path.name) for path in store.folder.iterdir() if path.name.isdecimal()), default=0)
    tree, record = store.tree(below, store.building), Record(store.folder / "building.json")
    begun = {"layers": [path.name for path in tree.layers]}
    # With `slot`, another tree may be at the place by now.
    resumed = store.way != "slot" and tree.content.is_dir() and record.begun == begun
    if not resumed:
        stage.say(f"{'Refreshing' if below else 'Building'} this repository's base: later jobs start from it.")
        record.begin(begun)
        make_tree(tree, stage.job.trash)
    else:
        stage.say("Continuing an interrupted build of this repository's base: later jobs start from it.")
    mount_tree(tree)
    try:
        follow_recipe(stage, record, commit, fresh=not below)
        left = list_untracked(stage, commit)
    except Failure:
        if resumed:  # The interrupted build may be the reason: start from the beginning next time.
            record.begin({})
        raise
    finally:
        # The stage needs the place for what it does next, also after a failure.
        unmount_tree(tree)
    tree.content.rename(store.folder / str(number))
    # With `copy` and `slot`, the content includes a copy of the layers under it.
    kept = below.layers if below and store.way == "overlay" else ()
    base = Base((str(number), *kept), commit, time.time(), tuple(left))
    with locked(store.folder / "lock", stage.deadline):
        write_file(store.folder / "base.json", json.dumps(base._asdict()))
    record.begin({})
    stage.say("The base is built.")
    return base


class Record:
    """A file that records which steps of a build are done, so that a later attempt can skip them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = read_json(path)

    @property
    def begun(self) -> Any:
        """What `begin` was called with. None if there is no record."""
        return self._found.get("begun")

    def begin(self, begun: Mapping[str, Any]) -> None:
        """Start a new record."""
        self._found = {"begun": dict(begun), "done": []}
        self._save()

    def is_done(self, step: str) -> bool:
        """Whether a step is done."""
        return step in self._found["done"]

    def add(self, step: str) -> None:
        """Record that a step is done."""
        self._found["done"].append(step)
        self._save()

    def _save(self) -> None:
        write_file(self._path, json.dumps(self._found))


def follow_recipe(stage: Stage, record: Record, commit: str, *, fresh: bool) -> None:
    """Build a base at a commit; skip the steps that are done. Raises `Failure`."""
    request = stage.request
    steps = {"check out": partial(check_out, stage, commit)}
    if fresh:
        steps["venv"] = partial(make_venv, stage)
    for number, command in enumerate(request["setup"]):
        steps[f"setup {number}"] = partial(run_commands, stage, "setup", [command])
    steps["index"] = partial(refresh_index, stage)
    steps["smoke test"] = partial(run_commands, stage, "smoke_test", request["smoke_test"])
    steps["imports"] = partial(check_imports, stage)
    for name, do in steps.items():
        step = f"{name} at {commit}"
        if not record.is_done(step):
            do()
            record.add(step)


# Which layers are in use


def describe_use(job: JobPaths, store: BaseStore, base: Base) -> None:
    """Record which layers a job needs. The record is in the job's folder, and is removed with it."""
    write_file(job.layers, json.dumps({"base": store.name, **base._asdict()}))


def remove_unused(job: JobPaths, store: BaseStore) -> None:
    """Remove layers, and bases of the same repository, that no job needs. The caller holds the base's lock."""
    used = {(about.get("base"), name) for about in list_uses(job) for name in about.get("layers", ())}
    base = store.read()
    for path in store.folder.iterdir():
        is_needed = (store.name, path.name) in used or (base and path.name in base.layers)
        if path.name.isdecimal() and not is_needed:
            move_to_trash(path, job.trash)
    for folder in store.folder.parent.glob(f"{store.name.rpartition('-')[0]}-*"):
        if folder != store.folder and is_old(folder):
            # The locks are free only if no process uses or builds the base. It may have been used meanwhile.
            with suppress(OSError, Failure), locked(folder / "building.lock", 0.0), locked(folder / "lock", 0.0):
                if is_old(folder) and not any(about.get("base") == folder.name for about in list_uses(job)):
                    move_to_trash(folder, job.trash)


def is_old(folder: Path) -> bool:
    """Whether no job has begun from a base for `UNUSED_S`."""
    with suppress(OSError):
        return folder.stat().st_mtime < time.time() - UNUSED_S
    return False


def list_uses(job: JobPaths) -> Iterator[Mapping[str, Any]]:
    """The records of all jobs on the machine."""
    for path in job.folder.parent.glob("*/control/layers.json"):
        yield read_json(path)
