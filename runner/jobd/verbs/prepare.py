"""The stages `prepare`, which makes a job's environment, and `base`, which brings a repository's base up to date."""

from __future__ import annotations

import time
from typing import Any

from ..environment.bases import refresh
from ..environment.carry import carry_over
from ..environment.clone import fetch_commit, require_commit
from ..environment.companions import check_out_companions
from ..environment.environment import create_environment, decide, isolate_mounts
from ..environment.facts import read_facts
from ..files import Failure, blame_job, require_folders
from ..git import to_text
from ..safe_paths import write_safely
from ..sandbox.sandbox import is_sandboxed
from ..stages.stage import Stage

CONFLICTS = "conflicts.txt"
"""A file in the output folder that lists the conflicting paths for the agent, one per line."""


def prepare(stage: Stage) -> dict[str, Any]:
    """Make the environment. Raises `Failure`."""
    job, request = stage.job, stage.request
    make_folders(stage)
    with stage.timing("fetch"):
        commit = fetch_commit(stage, request["base_branch"], request["base_commit"])
        if begun_at := request["changes_from"]:
            require_commit(stage, begun_at)
        companions = check_out_companions(stage)
    store = decide(stage)
    began = time.monotonic()
    with blame_job():
        base = create_environment(stage, store, commit)
        stage.say(f"The environment took {time.monotonic() - began:.2f} s.")
        with stage.timing("facts"):
            facts = read_facts(stage)
        # Only now: files that an earlier attempt wrote must not run before this job's agent does.
        with stage.timing("edits"):
            conflicts = carry_over(stage, commit, request["changes"], begun_at)
        if conflicts:
            require_folders(job.output)
            text = "".join(f"{to_text(path)}\n" for path in conflicts)
            write_safely(job.root, f"{job.output.name}/{CONFLICTS}", text.encode())
    about = {"commit": base.commit, "made_at": base.made_at}
    made = {"way": store.way, "sealed": is_sandboxed(job), "base": about, "facts": facts, "took": stage.took}
    found = {"base_commit": commit, "conflicts": [to_text(path) for path in conflicts], "companions": companions}
    return {**found, **made}


def make_base(stage: Stage) -> dict[str, Any]:
    """Build a repository's base, or bring it up to date. With `only_existing`, do not build a base that is missing.

    With the method `slot`, there is no shared base. Raises `Failure`.
    """
    make_folders(stage)
    store = decide(stage)
    if stage.request["only_existing"] and (store.way == "slot" or store.read() is None):
        return {"way": store.way, "base": None}
    if store.way == "slot":
        reason = "each slot has its own base, which the slot's jobs build"
        raise Failure("slots_own", reason)
    commit = fetch_commit(stage, stage.request["trunk"])
    isolate_mounts(store.way, stage.patience_s)
    with blame_job():
        base = refresh(stage, store, commit)
    return {"way": store.way, "base": {"commit": base.commit, "made_at": base.made_at}}


def make_folders(stage: Stage) -> None:
    """Create the folders that every job has outside its environment."""
    for folder in (stage.job.output, stage.job.tmp):
        folder.mkdir(mode=0o700)
