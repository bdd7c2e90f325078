"""The stages `prepare`, which makes a job's environment, and `base`, which brings a repository's base up to date."""

from __future__ import annotations

import time
from typing import Any

from ..environment.bases import refresh
from ..environment.carry import carry_over
from ..environment.clone import fetch_commit, require_commit
from ..environment.environment import begin, decide, separate
from ..files import Failure, write_file
from ..git import find_clone, say
from ..sandbox.sandbox import is_sealed
from ..stages.stage import Stage

CONFLICTS = "conflicts.txt"
"""The file of the output folder that tells an agent which paths are in conflict, one a line."""


def prepare(stage: Stage) -> dict[str, Any]:
    """Make the environment. Raises `Failure` with the last words of what went wrong."""
    job, request = stage.job, stage.request
    make_folders(stage)
    with stage.timing("fetch"):
        commit = fetch_commit(stage, request["base_branch"], request["base_commit"])
        if begun_at := request["changes_from"]:
            require_commit(stage, begun_at)
    shelf = decide(stage)
    began = time.monotonic()
    base = begin(stage, shelf, commit)
    stage.log.write(f"[the environment took {time.monotonic() - began:.2f} s]\n".encode())
    # Only now: nothing that an earlier attempt wrote may run before its successor does, for it could command that.
    clone = find_clone(job, request["clone_url"])
    with stage.timing("edits"):
        conflicts = carry_over(job, clone, commit, request["changes"], request["timeout_s"], begun_at)
    if conflicts:
        write_file(job.output / CONFLICTS, "".join(f"{say(path)}\n" for path in conflicts))
    about = {"commit": base.commit, "made_at": base.made_at}
    made = {"way": shelf.way, "sealed": is_sealed(job), "base": about, "took": stage.took}
    return {"base_commit": commit, "conflicts": [say(path) for path in conflicts], **made}


def make_base(stage: Stage) -> dict[str, Any]:
    """Make a repository's base, unless only one that is there should be kept up, or bring it up to date.

    By the way `slot` there is none for all. Raises `Failure`.
    """
    make_folders(stage)
    shelf = decide(stage)
    if stage.request["only_existing"] and (shelf.way == "slot" or shelf.read() is None):
        return {"way": shelf.way, "base": None}
    if shelf.way == "slot":
        reason = "each slot has a base of its own, at the slot's place, and the slot's own jobs make it"
        raise Failure("slots_own", reason)
    commit = fetch_commit(stage, stage.request["trunk"])
    separate(shelf.way)
    base = refresh(stage, shelf, commit)
    return {"way": shelf.way, "base": {"commit": base.commit, "made_at": base.made_at}}


def make_folders(stage: Stage) -> None:
    """Make what every job has of its own, whatever its base."""
    for folder in (stage.job.output, stage.job.tmp):
        folder.mkdir(mode=0o700)
