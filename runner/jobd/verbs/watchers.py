"""Watches over a job while its agent is at work: whether its environment is of any use, and what it takes of the disk.

Each watcher is a process beside the agent. What it objects to ends the agent, as a stop does, and becomes the reason.
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
from ..sandbox.sandbox import open_cell
from ..stages.command import Leash, NotRunnable, follow, start
from ..stages.log import Log, PipeOutput
from ..stages.stage import TAIL_LINES, Stage

LOOK_EVERY_S = 5.0
"""Unless a request has a `look_every_s` of its own."""
REST_FACTOR = 20
"""A look at a large tree takes its time: it is this many times as long until the next one."""

MAX_SMOKE_LOG_BYTES = 100_000

CACHES = (".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")

MAX_DESCRIPTORS = 1024
"""More than a stage has open."""


def watch_over(stage: Stage) -> None:
    """Start the watchers. They end with the job's other processes."""
    smoke_test = find_recipe(stage.job).get("smoke_test")
    if smoke_test:
        began = stage.job.control / "smoke.began"
        write_file(began, "")
        _fork(lambda: try_environment(stage, smoke_test, began))
    watch_written(stage, find_tree(stage.job))


def watch_written(stage: Stage, tree: Tree | None) -> None:
    """Start the watcher of what is written to the disk, in a tree and beside it. It ends as the others do."""
    written = list_written(stage.job, tree)  # While nobody writes yet.
    _fork(lambda: watch_job(stage.job, stage.request, written))


def read_objection(job: JobPaths) -> str | None:
    """Why a watcher ended the agent, as a clause for people; None when none did."""
    return _read_reason(job.objection)


def read_doubt(job: JobPaths) -> str | None:
    """What a watcher would have ended the agent for, had it been sure; None when there was nothing."""
    return _read_reason(job.doubt)


def _read_reason(path: Path) -> str | None:
    said = read_json(path).get("reason")
    return str(said) if said else None


def object_to(job: JobPaths, reason: str, *, is_sure: bool = True) -> None:
    """Have the agent end, or only say that it might have been ended. The first reason counts."""
    path = job.objection if is_sure else job.doubt
    if not path.exists():
        write_file(path, json.dumps({"reason": reason}))


def try_environment(stage: Stage, commands: Iterable[str], began: Path) -> None:
    """Run the operator's smoke test, and object when it fails.

    The agent is at work beside it since `began`. What it had begun to change by then, or somebody had before it, may be
    what failed.
    """
    job, recipe = stage.job, find_recipe(stage.job)
    is_new = recipe.get("job_id") == job.id and not recipe.get("changes")
    with open(job.control / "smoke.log", "ab", opener=open_plain) as file:
        os.dup2(file.fileno(), 1)
    log = Log(MAX_SMOKE_LOG_BYTES)
    for command in commands:
        shell, nothing = ["/bin/sh", "-ec", command], Path(os.devnull)
        try:
            process = start(shell, job.environment(), job.worktree, nothing, open_cell(job, stage.request))
        except (NotRunnable, OSError):
            return
        assert process.stdout
        output = PipeOutput(process.stdout.fileno(), log, (), None)
        follow(process, output, Leash(stage.deadline, None, 0.0))
        output.finish()
        if status := process.wait():
            tail = "\n".join(log.last_words.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])
            reason = f"the environment failed its smoke test `{command}` (exit status {status}):\n{tail}"
            object_to(job, reason, is_sure=is_new and not has_changed((job.worktree, job.venv), began))
            return


def has_changed(folders: Iterable[Path], since: Path) -> bool:
    """Whether a file below folders was written or moved since another was, but for caches and what is git's own.

    That one was deleted is not seen.
    """
    names = [word for name in CACHES for word in ("-name", name, "-o")][:-1]
    look = ["(", *names, ")", "-prune", "-o", "!", "-type", "d", "-newercm", str(since), "-print", "-quit"]
    done = subprocess.run(["find", *map(str, folders), *look], capture_output=True, check=False)
    return bool(done.stdout)


def watch_job(job: JobPaths, request: Mapping[str, Any], written: tuple[list[Path], tuple[int, int]]) -> None:
    """Look again and again, until there is something to object to."""
    folders, (bytes_before, files_before) = written
    began = time.monotonic()
    while True:
        looked_at = time.monotonic()
        used, files = measure(folders)
        reason = find_reason(
            request, used - bytes_before, files - files_before, looked_at - find_last_asked(job, began)
        )
        if reason:
            return object_to(job, reason)
        time.sleep(max(request.get("look_every_s", LOOK_EVERY_S), REST_FACTOR * (time.monotonic() - looked_at)))


def find_reason(request: Mapping[str, Any], used: int, files: int, unasked_s: float) -> str | None:
    """What there is to object to, as a clause for people."""
    if used > request["max_disk_bytes"]:
        return f"the job wrote {used:,} bytes to its machine's disk, and {request['max_disk_bytes']:,} are allowed"
    if files > request["max_files"]:
        return f"the job made {files:,} files on its machine, and {request['max_files']:,} are allowed"
    if unasked_s > request["orphan_after_s"]:
        return f"nobody had asked for the job for {request['orphan_after_s']:,} seconds"
    return None


def find_last_asked(job: JobPaths, otherwise: float) -> float:
    """When a service asked for the job last, on the monotonic clock."""
    piece = read_piece(job.asked, 0, 100)
    with suppress(ValueError):
        return max(float(piece.data), otherwise) if piece else otherwise
    return otherwise


def list_written(job: JobPaths, tree: Tree | None) -> tuple[list[Path], tuple[int, int]]:
    """The folders that a job writes to, and what is there before it does.

    That may be a whole copy of the base. On an overlay, it is what the base did not have: the files of a newer commit,
    and what the update commands made. The job's folder counts whole, because the agent can rename everything in it.
    """
    folders = [job.root]
    if tree:
        folders.append(tree.place if tree.way == "slot" else tree.content)
    return folders, measure(folders)


def measure(folders: Iterable[Path]) -> tuple[int, int]:
    """Bytes on the disk and files below folders, as `du` counts them: trees may be deeper than paths may be long."""
    paths = [str(folder) for folder in folders if folder.is_dir() and not folder.is_symlink()]
    return _run_du("--block-size=1", paths), _run_du("--inodes", paths)


def _run_du(what: str, paths: Iterable[str]) -> int:
    words = ["du", "--summarize", "--one-file-system", what, "--", *paths]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return sum(int(line.split()[0]) for line in done.stdout.splitlines())


def _fork(work: Callable[[], None]) -> None:
    """Have work done by a child of ours, which ends with it, or with us."""
    stage = os.getpid()
    if os.fork():
        return
    with suppress(BaseException):
        die_with(stage)
        # Among them the lock by which the stage is known to be alive.
        os.closerange(3, MAX_DESCRIPTORS)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work()
    os._exit(0)
