"""Companions: other repositories whose files a job's agent can read, beside its worktree.

The files are the job's own copy, without git's folder, so nothing that happens to them reaches another job. Companions
are fetched in the same way as the job's own repository, but into separate clones, which no job sees. Only newest
commits are fetched, and for a job of a public repository only what GitHub gives to everybody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..files import Failure
from ..git import GIT, GitFolders, find_clone, git_environment, open_throwaway
from ..locks import locked
from ..stages.stage import Stage
from .clone import find_commit, make_usable, name_refs
from .fetching import WANTS_LOGIN, must_fetch

PUBLIC_ONLY = (
    "\nMachines fetch without a login, so it is private, or it does not exist. Jobs of a public repository get public "
    "repositories only. For a private one, see `with` in docs/environment.md."
)


def check_out_companions(stage: Stage) -> dict[str, str]:
    """Write the files of the job's companions. Returns the commit of each, by its name. Raises `Failure`."""
    return {companion["name"]: check_out_companion(stage, companion) for companion in stage.request["companions"]}


def check_out_companion(stage: Stage, companion: Mapping[str, str]) -> str:
    """Write the files of one companion, and return their commit. Raises `Failure`."""
    name, job = companion["name"], stage.job
    clone = find_clone(job, f"{companion['url']}#files")
    clone.mkdir(mode=0o700, parents=True, exist_ok=True)
    stage.say(f"Fetching the companion {name}.")
    with locked(clone.with_name(f"{clone.name}.lock"), stage.deadline):
        make_usable(stage, clone)
        commit = fetch_newest(stage, clone, companion)
        target = job.companions / name
        target.mkdir(mode=0o700, parents=True)
        # Needs no sandbox: no command of the repository has run yet, and nobody else can write here.
        with open_throwaway(GitFolders(target, clone, job.git), commit, stage.limit_s) as git:
            git.run("read-tree", commit)
            git.run("checkout-index", "--all")
    return commit


def fetch_newest(stage: Stage, clone: Path, companion: Mapping[str, str]) -> str:
    """Fetch the newest commit of a companion's branch, and return its id. Raises `Failure`."""
    source, ref = name_refs(companion["branch"])
    options = ("--no-tags", "--no-write-fetch-head", "--depth=1")
    argv = [*GIT, f"--git-dir={clone}", "fetch", *options, "--", companion["url"], f"+{source}:{ref}"]
    # Without a home there is no .netrc, whose logins git would use.
    env, what = git_environment(HOME=os.devnull), f"the companion {companion['name']} could not be fetched"
    try:
        must_fetch(stage, "companion_failed", what, argv, env, stage.job.root, in_sandbox=False)
    except Failure as failure:
        if WANTS_LOGIN in failure.message and not stage.request["git"]:
            raise Failure(failure.name, failure.message + PUBLIC_ONLY) from None
        raise
    return find_commit(clone, ref)
