"""The environment of a job: where it is and how it is made. Both are decided at the beginning, for all stages."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..files import Failure, JobPaths, read_json, write_file
from ..git import find_clone
from ..locks import keep_locked
from ..sandbox.namespaces import CLONE, OVERLAY, unshare_mounts
from ..sandbox.sealing import NAME, has_sealed, remember_sealing
from ..sandbox.shortage import FORBIDDEN, Shortage, explain_shortage, wait_for_room
from ..sandbox.trial import can_sandbox, describe_sandbox, find_missing
from ..stages.stage import Stage
from .bases import Base, BaseStore, describe_use, get_or_build
from .clone import changes_submodules
from .recipe import check_out, list_untracked, run_commands
from .trees import WAYS, Tree, make_tree, mount_tree, move_to_trash

LOCK_TIMEOUT_S = 20.0
"""How long a stage waits for the previous one to end."""

OWN = "it has its own users, mounts, processes and shared memory"
"""The namespaces of a sealed job, in words for people."""


def decide(stage: Stage) -> BaseStore:
    """Decide whether the job gets a sandbox, and how its environment is made. Writes both to the log.

    Raises `Failure` if the machine cannot do what its operator requires, or cannot seal jobs any more.
    """
    job, request = stage.job, stage.request
    missing = find_missing(job.workspace, stage.patience_s)
    sealed, words = can_sandbox(missing), describe_sandbox(missing)
    if sealed:
        remember_sealing(job.workspace)
    elif request["must_seal"]:
        raise Failure("not_sealed", f"the operator requires a sandbox, but the machine cannot provide one: {words}")
    elif has_sealed(job.workspace):
        fix = f"repair that, or delete the file `{NAME}` in its workspace to run jobs without a sandbox"
        raise Failure("not_sealed", f"the machine sealed jobs before and cannot now: {words} ({fix})")
    possible = list_ways(missing)
    way = next((way for way in request["ways"] if possible.get(way)), None)
    if way is None:
        reason = missing.get(OVERLAY, words) if request["ways"] == ["overlay"] else words
        raise Failure("no_environment", f"the machine cannot make environments as its operator requires: {reason}")
    store = BaseStore(job, request, way)
    about = {"sealed": sealed, "way": way, "place": str(store.place), "gpus": request["gpus"]}
    write_file(job.environment_file, json.dumps(about))
    stage.say(f"This job is {words.replace(', '.join(CLONE), OWN)}.")
    stage.say(f"The environment is made by {way}: {WAYS[way]}.")
    return store


def list_ways(missing: Mapping[str, str]) -> dict[str, bool]:
    """The methods of `WAYS`, best first, and whether each works without what is `missing`."""
    sealed = can_sandbox(missing)
    return {"overlay": sealed and OVERLAY not in missing, "copy": sealed, "slot": True}


def create_environment(stage: Stage, store: BaseStore, commit: str) -> Base:
    """Make the job's environment at a commit, from its base. Raises `Failure`."""
    job = stage.job
    keep_locked(job.tree_lock, LOCK_TIMEOUT_S)
    require_free(job, store)
    isolate_mounts(store.way, stage.patience_s)
    with stage.timing("base"):
        base = get_or_build(stage, store, commit)
    tree = store.tree(base, job.tree)
    with stage.timing("tree"):
        make_tree(tree, job.trash)
        mount_tree(tree)
    if base.commit != commit:
        clone = find_clone(job, stage.request["clone_url"])
        with stage.timing("checkout"):
            check_out(stage, commit, submodules=changes_submodules(clone, base.commit, commit))
        with stage.timing("update"):
            run_commands(stage, "update", stage.request["update"])
        if stage.request["update"]:
            describe_use(job, store, base._replace(left=tuple(list_untracked(stage, commit))))
    return base


def require_free(job: JobPaths, store: BaseStore) -> None:
    """Raises `Failure` if a person holds the environment at the slot's place, because it would be replaced."""
    for path in job.folder.parent.glob("*/control/hold.json") if store.way == "slot" else ():
        about = read_json(path.with_name(job.environment_file.name))
        if path != job.hold and about.get("place") == str(store.place):
            raise Failure("held", "a person is using the environment at this slot's place")


def mount_environment(job: JobPaths, room_patience_s: float, patience_s: float = LOCK_TIMEOUT_S) -> None:
    """Show this process the environment of a prepared job. Other processes must wait until this process ends.

    Otherwise the upper folder of an overlay could be mounted twice, and then the overlay loses data. Raises `Failure`,
    also if another process does not end within `patience_s`, or if the machine has no room for new namespaces within
    `room_patience_s`.
    """
    keep_locked(job.tree_lock, patience_s)
    tree = find_tree(job)
    if tree:
        isolate_mounts(tree.way, room_patience_s)
        mount_tree(tree)


def isolate_mounts(way: str, patience_s: float) -> None:
    """Give this process its own mounts, if the method needs them. Raises `Failure`."""
    if way != "slot":
        wait_for_room(_isolate_mounts, patience_s)


def _isolate_mounts() -> None:
    try:
        unshare_mounts()
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise Shortage(explain_shortage(error.errno)) from None
        reason = (error.strerror or "").lower()
        raise Failure("not_sealed", f"the machine no longer allows mount namespaces: {reason}") from None


def find_tree(job: JobPaths) -> Tree | None:
    """A job's tree. None if the job never got one."""
    about, base = read_json(job.environment_file), read_json(job.layers)
    if not about or not base:
        return None
    folder = job.workspace / "bases" / str(base["base"])
    layers = tuple(folder / str(name) for name in base["layers"])
    return Tree(str(about["way"]), job.place, layers, job.tree)


def clear_leftovers(job: JobPaths) -> None:
    """Move what a job leaves outside its own folder, and large copies, to the trash. Raises `OSError`."""
    tree = find_tree(job)
    if tree and tree.way != "overlay":
        move_to_trash(tree.place if tree.way == "slot" else tree.content, job.trash)
