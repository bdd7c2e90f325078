"""Watches a job while its agent runs: whether its environment works, and how much disk space it uses.

Each watcher is a process beside the agent. It can end the agent, as a stop does; its reason becomes part of the result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..environment.environment import find_tree
from ..environment.trees import Tree
from ..files import JobPaths, open_plain, read_json, read_piece, write_file
from ..git import find_recipe
from ..sandbox.namespaces import die_with
from ..sandbox.sandbox import open_sandbox
from ..stages.command import NotRunnable, StopConditions, follow, start
from ..stages.log import Log, PipeOutput
from ..stages.stage import TAIL_LINES, Stage

LOOK_EVERY_S = 5.0
"""The default, unless the request sets `look_every_s`."""
REST_FACTOR = 20
"""Measuring a large tree is slow: the watcher then rests for this many times as long."""
MAX_PAUSE_S = 120.0
"""The longest time between two looks, in seconds."""

MAX_SMOKE_LOG_BYTES = 100_000

CACHES = (".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")

MAX_DESCRIPTORS = 1024
"""More than a stage opens."""


def watch_over(stage: Stage) -> None:
    """Start the watchers. They end with the job's other processes."""
    smoke_test = find_recipe(stage.job).get("smoke_test")
    if smoke_test:
        began = stage.job.control / "smoke.began"
        write_file(began, "")
        _fork(lambda: try_environment(stage, smoke_test, began))
    watch_written(stage, find_tree(stage.job))


def watch_written(stage: Stage, tree: Tree | None) -> None:
    """Start the watcher of disk usage, for a tree and the job's scratch folders. It ends as the others do."""
    written = list_written(stage.job, tree)  # Before anything is written.
    _fork(lambda: watch_job(stage.job, stage.request, written))


def read_stop_reason(job: JobPaths) -> str | None:
    """Why a watcher ended the agent, as a clause for people; None if none did."""
    return _read_reason(job.watcher_stop)


def read_warning(job: JobPaths) -> str | None:
    """Why a watcher might have ended the agent, although it was not sure; None if there is no such reason."""
    return _read_reason(job.watcher_warning)


def _read_reason(path: Path) -> str | None:
    said = read_json(path).get("reason")
    return str(said) if said else None


def record_reason(job: JobPaths, reason: str, *, is_sure: bool = True) -> None:
    """End the agent for this reason; or, if the watcher is not sure, only record it. The first reason counts."""
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
    log = Log(MAX_SMOKE_LOG_BYTES)
    for command in commands:
        shell, nothing = ["/bin/sh", "-ec", command], Path(os.devnull)
        try:
            process = start(shell, job.environment(), job.worktree, nothing, open_sandbox(job, stage.request))
        except (NotRunnable, OSError):
            return
        assert process.stdout
        output = PipeOutput(process.stdout.fileno(), log, (), None)
        follow(process, output, StopConditions(stage.deadline, None, 0.0))
        output.finish()
        if status := process.wait():
            tail = "\n".join(log.last_words.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])
            reason = f"the environment failed its smoke test `{command}` (exit status {status}):\n{tail}"
            record_reason(job, reason, is_sure=is_new and not has_changed((job.worktree, job.venv), began))
            return


def has_changed(folders: Iterable[Path], since: Path) -> bool:
    """Whether a file in these folders was written or moved after another file was; ignores caches and git's files.

    Does not notice deletions.
    """
    names = [word for name in CACHES for word in ("-name", name, "-o")][:-1]
    look = ["(", *names, ")", "-prune", "-o", "!", "-type", "d", "-newercm", str(since), "-print", "-quit"]
    done = subprocess.run(["find", *map(str, folders), *look], capture_output=True, check=False)
    return bool(done.stdout)


def watch_job(job: JobPaths, request: Mapping[str, Any], written: tuple[list[Path], tuple[int, int]]) -> None:
    """Check the job's usage again and again, until there is a reason to end the agent."""
    folders, (bytes_before, files_before) = written
    began = time.monotonic()
    while True:
        looked_at = time.monotonic()
        try:
            used, files = measure(folders)
        except OSError:  # The account has no room for another process just now. The next look counts.
            used, files = bytes_before, files_before
        reason = find_reason(
            request, used - bytes_before, files - files_before, looked_at - find_last_asked(job, began)
        )
        if reason:
            return record_reason(job, reason)
        pause_s = max(request.get("look_every_s", LOOK_EVERY_S), REST_FACTOR * (time.monotonic() - looked_at))
        time.sleep(min(pause_s, MAX_PAUSE_S))


def find_reason(request: Mapping[str, Any], used: int, files: int, unasked_s: float) -> str | None:
    """Why the agent must end, as a clause for people."""
    if used > request["max_disk_bytes"]:
        return f"the job wrote {used:,} bytes to its machine's disk, and {request['max_disk_bytes']:,} are allowed"
    if files > request["max_files"]:
        return f"the job made {files:,} files on its machine, and {request['max_files']:,} are allowed"
    if unasked_s > request["orphan_after_s"]:
        return f"no service had asked for the job for {request['orphan_after_s']:,} seconds"
    return None


def find_last_asked(job: JobPaths, otherwise: float) -> float:
    """When a service last asked for the job, on the monotonic clock."""
    piece = read_piece(job.asked, 0, 100)
    with suppress(ValueError):
        return max(float(piece.data), otherwise) if piece else otherwise
    return otherwise


def list_written(job: JobPaths, tree: Tree | None) -> tuple[list[Path], tuple[int, int]]:
    """The folders that a job writes to, and their usage before it starts.

    This may include a whole copy of the base. On an overlay it is what the base lacks: files of a newer commit, and
    what the update commands made. The job's whole folder counts, because the agent can rename everything in it.
    """
    folders = [job.root]
    if tree:
        folders.append(tree.place if tree.way == "slot" else tree.content)
    return folders, measure(folders)


def measure(folders: Iterable[Path]) -> tuple[int, int]:
    """Bytes and files in folders, counted by `du`, because trees may be deeper than paths may be long."""
    paths = [str(folder) for folder in folders if folder.is_dir() and not folder.is_symlink()]
    return _run_du("--block-size=1", paths), _run_du("--inodes", paths)


def _run_du(what: str, paths: Iterable[str]) -> int:
    words = ["du", "--summarize", "--one-file-system", what, "--", *paths]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return sum(int(line.split()[0]) for line in done.stdout.splitlines())


def _fork(work: Callable[[], None]) -> None:
    """Do work in a child process, which ends with it, or with this process."""
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
