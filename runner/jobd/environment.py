"""Where a job has its environment, and how it came there: decided when it is prepared, for all its stages."""

from __future__ import annotations

import json

from .bases import Base, Shelf, take
from .clone import changes_submodules
from .files import Failure, Job, read_json, write_file
from .git import find_clone
from .namespaces import OVERLAY, describe_cell, find_missing, have_own_mounts, is_sealable
from .recipe import check_out, run_commands
from .stage import Stage
from .trees import WAYS, Tree, make, show, throw_away


def decide(stage: Stage) -> Shelf:
    """Find out whether the job's commands get cells, and how its environment comes to be; the log says it.

    Raises `Failure` when the operator does not want what the machine can do.
    """
    job, request = stage.job, stage.request
    missing = find_missing(job.workspace)
    sealed, words = is_sealable(missing), describe_cell(missing)
    if request["must_seal"] and not sealed:
        raise Failure("not_sealed", f"the machine cannot seal the job, which its operator wants: {words}")
    possible = {"overlay": sealed and OVERLAY not in missing, "copy": sealed, "slot": True}
    way = next((way for way in request["ways"] if possible.get(way)), None)
    if way is None:
        reason = missing.get(OVERLAY, words) if request["ways"] == ["overlay"] else words
        raise Failure("no_environment", f"the machine makes no environments as its operator wants them: {reason}")
    shelf = Shelf(job, request, way)
    about = {"sealed": sealed, "way": way, "place": str(shelf.place), "gpus": request["gpus"]}
    write_file(job.environment_file, json.dumps(about))
    stage.log.write(f"[{words}]\n[environment by {way}: {WAYS[way]}]\n".encode())
    return shelf


def begin(stage: Stage, shelf: Shelf, commit: str) -> Base:
    """Make the job's environment at a commit, from its base. Raises `Failure`."""
    job = stage.job
    if shelf.way != "slot":
        have_own_mounts()
    base = take(stage, shelf, commit)
    tree = shelf.tree(base, job.tree)
    make(tree)
    show(tree)
    if base.commit != commit:
        clone = find_clone(job, stage.request["clone_url"])
        check_out(stage, commit, submodules=changes_submodules(clone, base.commit, commit))
        run_commands(stage, "update", stage.request["update"])
    return base


def enter(job: Job) -> None:
    """Let this process see the environment of a job that was prepared. Raises `Failure`."""
    tree = find_tree(job)
    if tree and tree.way != "slot":
        have_own_mounts()
        show(tree)


def find_tree(job: Job) -> Tree | None:
    """A job's tree; None where it never got one."""
    about, base = read_json(job.environment_file), read_json(job.base)
    if not about or not base:
        return None
    folder = job.workspace / "bases" / str(base["base"])
    layers = tuple(folder / str(name) for name in base["layers"])
    return Tree(str(about["way"]), job.place, layers, job.tree)


def clear(job: Job) -> None:
    """Have what a job leaves outside its own folder, and large copies, out of the way of the next. Raises `OSError`."""
    tree = find_tree(job)
    if tree and tree.way != "overlay":
        throw_away(tree.place if tree.way == "slot" else tree.content, job.workspace / "trash")
