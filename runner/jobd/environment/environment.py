"""Where a job has its environment, and how it came there: decided when it is prepared, for all its stages."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..files import Failure, JobPaths, read_json, write_file
from ..git import find_clone
from ..locks import keep_locked
from ..sandbox.namespaces import OVERLAY, describe_cell, find_missing, have_own_mounts, is_sealable
from ..stages.stage import Stage
from .bases import Base, Shelf, describe_use, take
from .clone import changes_submodules
from .recipe import check_out, list_left, run_commands
from .trees import WAYS, Tree, empty, make, show, throw_away

PATIENCE_S = 20.0
"""How long one that comes next waits for one that is just ending."""


def decide(stage: Stage) -> Shelf:
    """Find out whether the job's commands get cells, and how its environment comes to be; the log says it.

    Raises `Failure` when the operator does not want what the machine can do.
    """
    job, request = stage.job, stage.request
    missing = find_missing(job.workspace)
    sealed, words = is_sealable(missing), describe_cell(missing)
    if request["must_seal"] and not sealed:
        raise Failure("not_sealed", f"the machine cannot seal the job, which its operator wants: {words}")
    possible = list_ways(missing)
    way = next((way for way in request["ways"] if possible.get(way)), None)
    if way is None:
        reason = missing.get(OVERLAY, words) if request["ways"] == ["overlay"] else words
        raise Failure("no_environment", f"the machine makes no environments as its operator wants them: {reason}")
    shelf = Shelf(job, request, way)
    about = {"sealed": sealed, "way": way, "place": str(shelf.place), "gpus": request["gpus"]}
    write_file(job.environment_file, json.dumps(about))
    stage.log.write(f"[{words}]\n[environment by {way}: {WAYS[way]}]\n".encode())
    return shelf


def list_ways(missing: Mapping[str, str]) -> dict[str, bool]:
    """The ways of `WAYS`, best first, and whether a machine without what is `missing` can go them."""
    sealed = is_sealable(missing)
    return {"overlay": sealed and OVERLAY not in missing, "copy": sealed, "slot": True}


def begin(stage: Stage, shelf: Shelf, commit: str) -> Base:
    """Make the job's environment at a commit, from its base. Raises `Failure`."""
    job = stage.job
    keep_locked(job.tree_lock, PATIENCE_S)
    require_free(job, shelf)
    separate(shelf.way)
    with stage.timing("base"):
        base = take(stage, shelf, commit)
    tree = shelf.tree(base, job.tree)
    with stage.timing("tree"):
        make(tree)
        show(tree)
    if base.commit != commit:
        clone = find_clone(job, stage.request["clone_url"])
        with stage.timing("checkout"):
            check_out(stage, commit, submodules=changes_submodules(clone, base.commit, commit))
        with stage.timing("update"):
            run_commands(stage, "update", stage.request["update"])
        if stage.request["update"]:
            describe_use(job, shelf, base._replace(left=tuple(list_left(stage, commit))))
    return base


def require_free(job: JobPaths, shelf: Shelf) -> None:
    """Raises `Failure` where a person is in what lies at the one place of a slot: it would be gone."""
    for path in job.root.parent.glob("*/control/hold.json") if shelf.way == "slot" else ():
        about = read_json(path.with_name(job.environment_file.name))
        if path != job.hold and about.get("place") == str(shelf.place):
            raise Failure("held", "a person is at work in the environment that lies where it would have to be")


def enter(job: JobPaths, patience_s: float = PATIENCE_S) -> None:
    """Let this process see the environment of a job that was prepared, and no other process until it ends.

    An overlay whose top is mounted twice loses what is written there. Raises `Failure`, also when another process does
    not end in time.
    """
    keep_locked(job.tree_lock, patience_s)
    tree = find_tree(job)
    if tree:
        separate(tree.way)
        show(tree)


def separate(way: str) -> None:
    """Let this process have mounts of its own, where the way needs them. Raises `Failure`."""
    if way == "slot":
        return
    try:
        have_own_mounts()
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise Failure("not_sealed", f"the machine allows no namespaces of mounts any more: {reason}") from None


def find_tree(job: JobPaths) -> Tree | None:
    """A job's tree; None where it never got one."""
    about, base = read_json(job.environment_file), read_json(job.layers)
    if not about or not base:
        return None
    folder = job.workspace / "bases" / str(base["base"])
    layers = tuple(folder / str(name) for name in base["layers"])
    return Tree(str(about["way"]), job.place, layers, job.tree)


def clear(job: JobPaths) -> None:
    """Have what a job leaves outside its own folder, and large copies, out of the way of the next. Raises `OSError`."""
    tree, trash = find_tree(job), job.workspace / "trash"
    if tree and tree.way != "overlay":
        throw_away(tree.place if tree.way == "slot" else tree.content, trash)
    empty(trash)
