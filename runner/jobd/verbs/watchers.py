"""Watches a job's commands while they run: whether the environment works, and how much disk space they use.

Each watcher is a process beside the command. A watcher can end the command, as a stop does. Its reason for that becomes
part of the result.
"""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..environment.environment import find_tree
from ..environment.trees import MAX_DESCRIPTORS, Tree
from ..files import JobPaths, open_plain, read_json, read_piece, write_file
from ..git import find_recipe
from ..safe_paths import walk
from ..sandbox.child import ask_child
from ..sandbox.namespaces import die_with, own_files
from ..sandbox.open_files import MAX_OPEN, TooManyOpen, find_deleted, find_devices
from ..sandbox.sandbox import open_sandbox
from ..stages.command import NotRunnable, StopConditions, follow, start
from ..stages.log import Log, PipeOutput
from ..stages.stage import Stage

LOOK_EVERY_S = 5.0
"""The pause between two looks at the usage, unless the request sets `look_every_s`."""
REST_FACTOR = 20
"""Measuring a large tree is slow. The pause after it is at least this many times as long as the measuring took."""
MAX_PAUSE_S = 120.0
"""The longest time between two looks, in seconds."""

MAX_SMOKE_LOG_BYTES = 100_000

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Keeps the smoke test from writing bytecode. New bytecode is then the agent's, who can forge it."""

CACHES = (".git", ".pytest_cache", ".mypy_cache", ".ruff_cache")


class Baseline(NamedTuple):
    """The folders that a job writes to, and their usage before it starts."""

    folders: Collection[Path]
    devices: Collection[int]
    """The devices on which new files in these folders are."""
    used: int
    """In bytes. This may include a whole copy of the base. With an overlay it includes only what the base lacks: files
    of a newer commit, and what the update commands made."""
    files: int


def watch_over(stage: Stage) -> None:
    """Start watchers with the agent: for its disk usage, and for its environment if there is a smoke test."""
    watch_written(stage, find_tree(stage.job))
    smoke_test = find_recipe(stage.job).get("smoke_test")
    if smoke_test:
        began = stage.job.control / "smoke.began"
        write_file(began, "")
        stage.watchers.append(lambda: _fork(lambda: try_environment(stage, smoke_test, began)))


def watch_written(stage: Stage, tree: Tree | None) -> None:
    """Start a watcher with each later command of the stage, for what it writes to a tree and to the job's folder."""
    baseline = find_baseline(stage.job, tree)  # Before anything is written.
    stage.watchers = [lambda: _fork(lambda: watch_job(stage.job, stage.request, baseline))]


def read_warning(job: JobPaths) -> str | None:
    """The reason for which a watcher would have ended the agent if it had been sure. None if there is none."""
    said = read_json(job.watcher_warning).get("reason")
    return str(said) if said else None


def record_reason(job: JobPaths, reason: str, *, is_sure: bool = True) -> None:
    """End the agent for this reason. If the watcher is not sure, only record the reason. The first reason counts."""
    path = job.watcher_stop if is_sure else job.watcher_warning
    if not path.exists():
        write_file(path, json.dumps({"reason": reason}))


def try_environment(stage: Stage, commands: Iterable[str], began: Path) -> None:
    """Run the operator's smoke test, and end the agent if it fails.

    The agent has been running since `began`. If the agent, or an earlier person or attempt, has changed the
    environment, the test may fail for that reason.
    """
    job, recipe = stage.job, find_recipe(stage.job)
    is_new = recipe.get("job_id") == job.id and not recipe.get("changes")
    with open(job.control / "smoke.log", "ab", opener=open_plain) as file:
        os.dup2(file.fileno(), 1)
    log, env = Log(MAX_SMOKE_LOG_BYTES), {**job.environment(), **NO_BYTECODE}
    for command in commands:
        shell, nothing = ["/bin/sh", "-ec", command], Path(os.devnull)
        try:
            process = start(shell, env, job.worktree, nothing, open_sandbox(job, stage.request))
        except (NotRunnable, OSError):
            return
        assert process.stdout
        output = PipeOutput(process.stdout.fileno(), log, (), None)
        follow(process, output, StopConditions(stage.deadline, None, 0.0))
        output.finish()
        if status := process.wait():
            reason = f"the environment failed its smoke test `{command}` (exit status {status}):\n{log.last_lines}"
            # The home's other files do not count: every agent writes some there as it begins.
            places = (job.worktree, job.venv, job.home / ".local" / "lib")
            record_reason(job, reason, is_sure=is_new and not has_changed(places, began))
            return


def has_changed(folders: Iterable[Path], since: Path) -> bool:
    """Whether a file in these folders was written or moved after the file `since` was written.

    Ignores caches and git's files. Does not notice deletions.
    """
    names = [word for name in CACHES for word in ("-name", name, "-o")][:-1]
    look = ["(", *names, ")", "-prune", "-o", "!", "-type", "d", "-newercm", str(since), "-print", "-quit"]
    words = ["find", *map(str, folders), *look]
    return bool(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout)


def watch_job(job: JobPaths, request: Mapping[str, Any], baseline: Baseline) -> None:
    """Check the job's usage again and again, until there is a reason to end the command."""
    began = time.monotonic()
    while True:
        looked_at = time.monotonic()
        try:
            used, files = find_usage(job, baseline, request["max_files"])
        except TooManyOpen:
            return record_reason(job, f"the job's processes had more than {MAX_OPEN:,} files open")
        reason = find_reason(request, used, files, looked_at - find_last_asked(job, began))
        if reason:
            return record_reason(job, reason)
        pause_s = max(request.get("look_every_s", LOOK_EVERY_S), REST_FACTOR * (time.monotonic() - looked_at))
        time.sleep(min(pause_s, MAX_PAUSE_S))


def find_reason(request: Mapping[str, Any], used: int, files: int, unasked_s: float) -> str | None:
    """Why the command must end, as a clause for people. None if it may go on."""
    if used > request["max_disk_bytes"]:
        return f"the job wrote {used:,} bytes to its machine's disk, and {request['max_disk_bytes']:,} are allowed"
    if files > request["max_files"]:
        return f"the job made {files:,} files on its machine, and {request['max_files']:,} are allowed"
    if unasked_s > request["orphan_after_s"]:
        return f"no service had asked for the job for {request['orphan_after_s']:,} seconds"
    return None


def find_last_asked(job: JobPaths, otherwise: float) -> float:
    """When a service last asked for the job, on the monotonic clock. Not earlier than `otherwise`."""
    piece = read_piece(job.asked, 0, 100)
    with suppress(ValueError):
        return max(float(piece.data), otherwise) if piece else otherwise
    return otherwise


def find_baseline(job: JobPaths, tree: Tree | None) -> Baseline:
    """The folders that a job may write to, and what is in them so far. Raises `OSError`.

    The job's whole folder counts. The tree's own files are in it, except with the method `slot`.
    """
    folders = [job.folder, tree.place] if tree and tree.way == "slot" else [job.folder]
    devices = find_devices([job.folder, tree.place] if tree else [job.folder])
    return Baseline(folders, devices, *measure(folders))


def find_usage(job: JobPaths, baseline: Baseline, max_files: int) -> tuple[int, int]:
    """Bytes and files that the job has written and that still take space. Deleted files count, too.

    May stop once there are more than `max_files`. Raises `TooManyOpen`.
    """
    deleted = find_deleted(job.id, baseline.devices)  # First: a file that is deleted later must not count twice.
    used, files = measure(baseline.folders, baseline.files + max_files)
    return used - baseline.used + sum(file.size for file in deleted), files - baseline.files + len(deleted)


def measure(folders: Iterable[Path], max_files: float = math.inf) -> tuple[int, int]:
    """Bytes and names in folders. Stops at more than `max_files` names.

    If the account has no room for another process just now, folders that the job has closed may be left out.
    """
    found = None
    with suppress(OSError):
        found = ask_child(lambda: _count_as_owner(folders, max_files))
    used, files = found or _count(folders, max_files)
    return used, files


def _count_as_owner(folders: Iterable[Path], max_files: float) -> tuple[int, int]:
    with suppress(OSError):  # A machine without namespaces: folders that the job has closed are left out.
        own_files()
    return _count(folders, max_files)


def _count(folders: Iterable[Path], max_files: float) -> tuple[int, int]:
    used, files, linked = 0, 0, set[tuple[int, int]]()
    for about in (entry.about for folder in folders for entry in walk(folder)):
        files += 1
        # A file with several names takes its space once.
        if about.st_nlink == 1 or stat.S_ISDIR(about.st_mode) or (about.st_dev, about.st_ino) not in linked:
            used += 512 * about.st_blocks
            if about.st_nlink > 1 and not stat.S_ISDIR(about.st_mode):
                linked.add((about.st_dev, about.st_ino))
        if files > max_files:
            break
    return used, files


def _fork(work: Callable[[], None]) -> None:
    """Do work in a child process. It ends when the work is done, or when this process ends."""
    stage = os.getpid()
    if os.fork():
        return
    with suppress(BaseException):
        die_with(stage)
        # Close inherited files, because one of them is the stage's lock.
        os.closerange(3, MAX_DESCRIPTORS)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work()
    os._exit(0)
