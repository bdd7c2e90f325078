"""The base of a repository: its environment, made once by the operator's commands, from which each job's begins.

A base is a stack of layers that nobody changes. To refresh it is to put one more on top, while jobs go on with those
that they began with; what no job and no base needs any more is removed. Whoever needs a base that is not there makes
it, and all others wait; what was begun and cut short is gone on with.
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
from .recipe import check_out, list_left, make_venv, refresh_index, run_commands
from .trees import Tree, make, show, take_away, throw_away

MAX_LAYERS = 20
"""With more, a base is made anew: each costs a little at every mount, and keeps what later ones replaced."""

UNUSED_S = 7 * 86_400
"""How long a base is kept that no job has begun from; as it was made by commands that the operator has changed, say."""


class Base(NamedTuple):
    """A finished base."""

    layers: tuple[str, ...]
    """Names of folders, from the newest to the oldest."""
    commit: str
    made_at: float
    """When the newest layer was made, in seconds since the epoch."""
    left: tuple[str, ...]
    """Files in the worktree that are not git's, and no part of any change."""


class Shelf:
    """Where the bases of one repository lie that are made by the same commands, and for the same place."""

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
        """The base as it is; None when there is none yet."""
        found = read_json(self.folder / "base.json")
        if not found:
            return None
        return Base(tuple(found["layers"]), str(found["commit"]), float(found["made_at"]), tuple(found["left"]))

    def tree(self, base: Base | None, top: Path) -> Tree:
        """A tree of its own on top of a base, or of nothing."""
        return Tree(self.way, self.place, tuple(self.folder / name for name in (base.layers if base else ())), top)


RECIPE = ("create_venv", "setup", "submodules", "smoke_test")
"""What of a request says how a base is made. With any of it changed, it is made anew."""


def take(stage: Stage, shelf: Shelf, commit: str) -> Base:
    """The base that a job at a commit begins from, which is made when there is none. It is kept for the job.

    A commit that is not the trunk's may be a stranger's, and others begin from the base too. Raises `Failure`.
    """
    request, trunk = stage.request, stage.request["trunk"]
    shelf.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with locked(shelf.folder / "lock", stage.deadline):
            base = shelf.read()
            if base:
                os.utime(shelf.folder)
                describe_use(stage.job, shelf, base)
                return base
        is_trunk = trunk == request["base_branch"] and not request["base_commit"]
        of_trunk = commit if is_trunk else fetch_commit(stage, trunk)
        build(stage, shelf, of_trunk, only_if_missing=True)


def refresh(stage: Stage, shelf: Shelf, commit: str) -> Base:
    """Bring a base to a commit by one more layer, or make it when there is none. Raises `Failure`."""
    shelf.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return build(stage, shelf, commit, only_if_missing=False)


def build(stage: Stage, shelf: Shelf, commit: str, *, only_if_missing: bool) -> Base:
    """Make a base, or its next layer, once nobody else does. Raises `Failure`."""
    began, deadline, limit_s = time.monotonic(), stage.deadline, stage.limit_s
    stage.limit_s = stage.request["base_timeout_s"]
    stage.deadline = began + stage.limit_s
    stage.say_phase("base")
    try:
        with locked(shelf.folder / "building.lock", stage.deadline, partial(say_waiting, stage)):
            base = shelf.read()
            if base and (only_if_missing or base.commit == commit):
                return base
            made = _build(stage, shelf, base if base and len(base.layers) < MAX_LAYERS else None, commit)
        with locked(shelf.folder / "lock", stage.deadline):
            remove_unused(stage.job, shelf)
        return made
    finally:
        stage.say_phase("")
        stage.limit_s, stage.deadline = limit_s, deadline + (time.monotonic() - began)


def say_waiting(stage: Stage) -> None:
    """Tell a job's log why nothing happens."""
    stage.log.write(b"[another job is making this repository's base: waiting for it]\n")


def _build(stage: Stage, shelf: Shelf, below: Base | None, commit: str) -> Base:
    number = 1 + max((int(path.name) for path in shelf.folder.iterdir() if path.name.isdecimal()), default=0)
    tree, record = shelf.tree(below, shelf.building), Record(shelf.folder / "building.json")
    begun = {"layers": [path.name for path in tree.layers]}
    # By the way `slot` somebody else's tree may be at its place by now.
    resumed = shelf.way != "slot" and tree.content.is_dir() and record.begun == begun
    if not resumed:
        stage.log.write(b"[making this repository's base]\n" if not below else b"[refreshing this repository's base]\n")
        record.begin(begun)
        make(tree)
    else:
        stage.log.write(b"[going on with this repository's base, whose making was cut short]\n")
    show(tree)
    try:
        follow_recipe(stage, record, commit, fresh=not below)
        left = list_left(stage, commit)
    except Failure:
        if resumed:  # Something of before may be the reason.
            record.begin({})
        raise
    finally:
        # A stage that fails has other things to do, with nothing of this in its way.
        take_away(tree)
    tree.content.rename(shelf.folder / str(number))
    # By any other way it has the content of those below in it, which would cover it.
    kept = below.layers if below and shelf.way == "overlay" else ()
    base = Base((str(number), *kept), commit, time.time(), tuple(left))
    with locked(shelf.folder / "lock", stage.deadline):
        write_file(shelf.folder / "base.json", json.dumps(base._asdict()))
    record.begin({})
    stage.log.write(b"[the base is made]\n")
    return base


class Record:
    """What of a base has been done, in a file: the steps that a later try need not repeat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = read_json(path)

    @property
    def begun(self) -> Any:
        """What it was begun with."""
        return self._found.get("begun")

    def begin(self, begun: Mapping[str, Any]) -> None:
        """Begin anew."""
        self._found = {"begun": dict(begun), "done": []}
        self._save()

    def is_done(self, step: str) -> bool:
        """Whether a step was done before."""
        return step in self._found["done"]

    def add(self, step: str) -> None:
        """Say that a step is done."""
        self._found["done"].append(step)
        self._save()

    def _save(self) -> None:
        write_file(self._path, json.dumps(self._found))


def follow_recipe(stage: Stage, record: Record, commit: str, *, fresh: bool) -> None:
    """Do what makes a base at a commit, but for what was done before. Raises `Failure`."""
    request = stage.request
    steps = {"check out": partial(check_out, stage, commit)}
    if fresh:
        steps["venv"] = partial(make_venv, stage)
    for number, command in enumerate(request["setup"]):
        steps[f"setup {number}"] = partial(run_commands, stage, "setup", [command])
    steps["index"] = partial(refresh_index, stage)
    steps["smoke test"] = partial(run_commands, stage, "smoke_test", request["smoke_test"])
    for name, do in steps.items():
        step = f"{name} at {commit}"
        if not record.is_done(step):
            do()
            record.add(step)


# What is still needed


def describe_use(job: JobPaths, shelf: Shelf, base: Base) -> None:
    """Write down that a job needs layers. Its folder goes with it."""
    write_file(job.layers, json.dumps({"base": shelf.name, **base._asdict()}))


def remove_unused(job: JobPaths, shelf: Shelf) -> None:
    """Remove layers, and bases of the same repository, that no job needs. To be called with the base's lock held."""
    trash = job.workspace / "trash"
    used = {(about.get("base"), name) for about in list_uses(job) for name in about.get("layers", ())}
    base = shelf.read()
    for path in shelf.folder.iterdir():
        is_needed = (shelf.name, path.name) in used or (base and path.name in base.layers)
        if path.name.isdecimal() and not is_needed:
            throw_away(path, trash)
    for folder in shelf.folder.parent.glob(f"{shelf.name.rpartition('-')[0]}-*"):
        if folder != shelf.folder and is_old(folder):
            # Not while somebody takes or makes it; what was taken since we looked is not old any more.
            with suppress(OSError, Failure), locked(folder / "building.lock", 0.0), locked(folder / "lock", 0.0):
                if is_old(folder) and not any(about.get("base") == folder.name for about in list_uses(job)):
                    throw_away(folder, trash)


def is_old(folder: Path) -> bool:
    """Whether no job has begun from a base for long."""
    with suppress(OSError):
        return folder.stat().st_mtime < time.time() - UNUSED_S
    return False


def list_uses(job: JobPaths) -> Iterator[Mapping[str, Any]]:
    """What the jobs of the machine need."""
    for path in job.root.parent.glob("*/control/layers.json"):
        yield read_json(path)
