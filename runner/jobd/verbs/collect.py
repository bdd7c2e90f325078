"""The stage `collect`. It collects the results of the agent's run: its texts, and the change in its worktree."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..environment.carry import HeldBack, find_held_back, put_back
from ..environment.change import compute_change
from ..environment.environment import find_tree, mount_environment
from ..environment.hide import bring_back
from ..environment.trees import open_up
from ..files import Failure, is_folder, read_json, read_piece, require_worktree, write_file
from ..git import GitFolders, find_git_folders
from ..safe_paths import give_access
from ..sandbox.processes import kill_processes
from ..stages.stage import Stage
from .watchers import watch_written

TEXTS = {"report": "report.md", "worklog": "worklog.md", "pr_title": "pr_title.txt", "repro": "repro.py"}
"""The files of the output folder, by the key of each in the result."""


def collect(stage: Stage) -> dict[str, Any]:
    """Lint, then write the result. Raises `Failure` if the change cannot be found. The result then has the rest."""
    job, request = stage.job, stage.request
    kill_processes(job.id)
    mount_environment(job, stage.limit_s)  # An agent's finished work must not be lost.
    if is_folder(job.place):
        job.place.chmod(0o700)
    problems: list[str] = []
    found: dict[str, Any] = {"changes": [], "patch": ""}
    if not os.path.lexists(job.environment_file):  # A job without a sandbox can delete this file, too.
        write_file(job.result, json.dumps({**found, **dict.fromkeys(TEXTS, ""), "problems": problems}))
        require_worktree(job.worktree)
    # Control files cannot be read in the sandbox, so they are read here.
    folders, held_back = find_git_folders(job), find_held_back(job, request["max_changes"])
    change_request = {**request, "left": read_json(job.layers).get("left", [])}
    try:
        do_inside(stage, problems, lambda: restore(folders, request, held_back, problems, stage.deadline))
        if request["lint"]:
            watch_written(stage, find_tree(job))
        for command in request["lint"]:
            require_worktree(folders.worktree)
            lint(stage, command, problems)
        found = do_inside(stage, problems, lambda: find_change(folders, change_request, problems, stage.limit_s))
    finally:
        texts = do_inside(stage, problems, lambda: read_texts(job.output, request["max_text_bytes"], problems))
        write_file(job.result, json.dumps({**found, **texts, "problems": problems}))
    return {}


def do_inside(stage: Stage, problems: list[str], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Work on the job's files in its sandbox. Raises `Failure`. Either way, `problems` has what the work added."""

    def do() -> dict[str, Any]:
        try:
            return {"found": work(), "problems": problems}
        except Failure as failure:
            return {"failure": [failure.name, failure.message], "problems": problems}

    answer = stage.do_inside(do, stage.limit_s)
    problems[:] = answer["problems"]
    if "failure" in answer:
        raise Failure(*answer["failure"])
    found: dict[str, Any] = answer["found"]
    return found


def restore(
    folders: GitFolders, request: Mapping[str, Any], held_back: HeldBack, problems: list[str], deadline: float
) -> dict[str, Any]:
    """Put files and edits that were hidden from the agent back into the worktree. Raises `Failure`."""
    require_worktree(folders.worktree)
    bring_back(folders, request)
    put_back(folders, request, held_back, problems, deadline)
    return {}


def find_change(folders: GitFolders, request: Mapping[str, Any], problems: list[str], limit_s: float) -> dict[str, Any]:
    """The change in the worktree. Raises `Failure`."""
    require_worktree(folders.worktree)
    # The change has a time limit of its own. The time of the stage may be over, because a lint command may hang.
    open_up(folders.worktree, time.monotonic() + limit_s)
    return compute_change(folders, request, problems)


def lint(stage: Stage, command: str, problems: list[str]) -> None:
    """Run one of the profile's lint commands. A failure is only reported."""
    stage.say("Running the lint commands.")
    try:
        stage.must("lint_failed", "failed", ["/bin/sh", "-ec", command], stage.job.environment(), stage.job.worktree)
    except Failure as failure:
        problems.append(f"the lint command `{command}` {failure.message.splitlines()[0]}".rstrip(":"))


def read_texts(output: Path, limit: int, problems: list[str]) -> dict[str, str]:
    """The texts that the agent wrote, each cut at `limit` bytes. A missing text is empty."""
    if not is_folder(output):
        problems.append("the agent deleted the folder for its report, or put something else in its place")
        return dict.fromkeys(TEXTS, "")
    for path in (output, *(output / file for file in TEXTS.values())):
        with suppress(OSError):
            give_access(str(path))
    return {name: read_text(output / file, limit, problems) for name, file in TEXTS.items()}


def read_text(path: Path, limit: int, problems: list[str]) -> str:
    """One text. Empty if it is missing."""
    piece = read_piece(path, 0, limit)
    if piece is None:
        if os.path.lexists(path):
            problems.append(f"{path.name} was left out: it is not a regular file")
        return ""
    if piece.size > limit:
        problems.append(f"{path.name} was cut: it has {piece.size} bytes, and {limit} are allowed")
    return piece.data.decode(errors="replace")
