"""The machine's clone of a repository: the objects that all its jobs share. Each job brings it up to date."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from ..files import Failure, read_boot_id, read_json, read_piece, write_file
from ..git import CLONE_CONFIG, GIT, find_clone, git_environment
from ..locks import locked
from ..stages.stage import Stage
from .fetching import must_fetch

SUBMODULE = b"160000"
"""The mode of a submodule (git-diff(1), "raw output format")."""

HEAD = "HEAD"
"""Git's name for the repository's default branch."""

COMMIT_IS_GONE = ("not our ref", "unadvertised object", "find remote ref")
"""Phrases with which servers say that they do not have a commit."""


def fetch_commit(stage: Stage, branch: str, commit: str = "") -> str:
    """Fetch a commit, or the newest one of a branch. Returns its full id. Raises `Failure`."""
    clone = find_clone(stage.job, stage.request["clone_url"])
    source, ref = name_refs(branch)
    base = commit or ref
    clone.mkdir(mode=0o700, parents=True, exist_ok=True)
    fetched, wanted_at = clone / "fetched.json", time.monotonic()
    with locked(clone.with_name(f"{clone.name}.lock"), stage.deadline):
        make_usable(stage, clone)
        if was_fetched_since(wanted_at, read_json(fetched).get(source), read_boot_id()):
            stage.say("Another job has just fetched the repository.")
        else:
            began_at = time.monotonic()
            stage.say("Fetching the repository.")
            fetch_branch(stage, clone, branch, f"+{source}:{ref}")
            write_file(fetched, json.dumps({source: [began_at, read_boot_id()]}))
        if not find_commit(clone, base):
            fetch_lost(stage, clone, base)
        return find_commit(clone, base)


def name_refs(branch: str) -> tuple[str, str]:
    """The ref of a branch in the repository, and in the clone."""
    # Refs are files, and `release/1.0` may replace `release`: only hashes as names let both refs exist.
    ref = f"refs/ptq/{hashlib.sha256(branch.encode()).hexdigest()[:12]}"
    return branch if branch.startswith("refs/") or branch == HEAD else f"refs/heads/{branch}", ref


def require_commit(stage: Stage, commit: str) -> None:
    """Fetch a commit if the clone lacks it, even if it is no longer on any branch. Raises `Failure`."""
    clone = find_clone(stage.job, stage.request["clone_url"])
    with locked(clone.with_name(f"{clone.name}.lock"), stage.deadline):
        if not find_commit(clone, commit):
            fetch_lost(stage, clone, commit)


def was_fetched_since(wanted_at: float, record: Any, boot_id: str) -> bool:
    """Whether a recorded fetch began after `wanted_at`. The boot id tells whether both times are on the same clock.

    If several jobs fetch at once, the first one fetches for all. Each gets at least what existed when it asked.
    """
    if not isinstance(record, list) or len(record) != 2 or not isinstance(record[0], float):
        return False
    began_at, boot = record
    return bool(boot == boot_id and wanted_at <= began_at <= time.monotonic())


def fetch_branch(stage: Stage, clone: Path, branch: str, refspec: str) -> None:
    """Fetch a branch. Raises `Failure`, named `branch_missing` if the branch does not exist."""
    try:
        fetch(stage, clone, refspec)
    except Failure as failure:
        if "find remote ref" in failure.message:
            raise Failure("branch_missing", f"the repository has no branch {branch}") from None
        raise


def make_usable(stage: Stage, clone: Path) -> None:
    """Create the clone if it is missing, and make it safe to use. Raises `Failure`."""
    disarm(clone)
    if not all((clone / name).exists() for name in ("HEAD", "objects", "refs")):
        stage.say("Making this machine's clone of the repository.")
        run_git(stage, clone, "the machine's clone could not be made", "init", "--quiet", "--bare", "--template=")


def run_git(stage: Stage, clone: Path, what: str, *words: str) -> None:
    """Run a git command in the clone. Raises `Failure`, with `what` as the start of its message."""
    argv = [*GIT, f"--git-dir={clone}", *words]
    stage.must("clone_failed", what, argv, git_environment(), stage.job.root, in_sandbox=False)


def fetch(stage: Stage, clone: Path, refspec: str) -> None:
    """Fetch into the clone. Raises `Failure`."""
    words = ("fetch", "--no-tags", "--no-write-fetch-head", "--", stage.request["clone_url"], refspec)
    argv, what = [*GIT, f"--git-dir={clone}", *words], "the repository could not be fetched"
    must_fetch(stage, "clone_failed", what, argv, git_environment(), stage.job.root, in_sandbox=False)


def fetch_lost(stage: Stage, clone: Path, commit: str) -> None:
    """Fetch a commit that is no longer on the branch. Raises `Failure`."""
    stage.say("Fetching a commit that is no longer on the branch.")
    try:
        fetch(stage, clone, commit)
    except Failure as failure:
        if any(words in failure.message for words in COMMIT_IS_GONE):
            reason = "the commit that the earlier attempt started from is no longer in the repository"
            raise Failure("base_gone", reason) from None
        raise


def find_commit(clone: Path, name: str) -> str:
    """The full id of a commit in the clone. Empty if the clone does not have it."""
    words = [*GIT, f"--git-dir={clone}", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"]
    found = subprocess.run(words, env=git_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return found.stdout.decode().strip()


def disarm(clone: Path) -> None:
    """Make a clone safe, because an agent may have written to it, and usable, if a git process was killed in it."""
    settings = [clone / "commondir", clone / "info" / "attributes"]
    # jobd holds its own lock on the clone, so git's lock files are left over from a killed process.
    for path in [*settings, *clone.glob("*.lock"), *clone.glob("refs/ptq/*.lock")]:
        path.unlink(missing_ok=True)
    config = read_piece(clone / "config", 0, len(CLONE_CONFIG) + 1)
    if not config or config.data != CLONE_CONFIG.encode():
        write_file(clone / "config", CLONE_CONFIG)


def changes_submodules(clone: Path, before: str, after: str) -> bool:
    """Whether two commits have different submodules."""
    words = [*GIT, f"--git-dir={clone}", "diff-tree", "-r", "--raw", before, after]
    lines = subprocess.run(words, env=git_environment(), stdout=subprocess.PIPE, check=True).stdout.splitlines()
    return any(SUBMODULE in line.split(b"\t")[0].split()[:2] for line in (raw.lstrip(b":") for raw in lines))
