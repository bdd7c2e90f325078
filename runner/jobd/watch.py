"""Watches over a job while its agent is at work: whether its environment is of any use, and what it takes of the disk.

Each watcher is a process beside the agent. What it objects to ends the agent, as a stop does, and becomes the reason.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .cell import open_cell
from .command import Leash, NotRunnable, follow, start
from .environment import find_tree
from .files import Job, open_plain, read_json, write_file
from .git import find_recipe
from .log import Log, Output
from .namespaces import die_with
from .stage import TAIL_LINES, Stage

LOOK_EVERY_S = 5.0
REST_FACTOR = 20
"""A look at a large tree takes its time: it is this many times as long until the next one."""

MAX_SMOKE_LOG_BYTES = 100_000

MAX_DESCRIPTORS = 1024
"""More than a stage has open."""


def watch_over(stage: Stage) -> None:
    """Start the watchers. They end with the job's other processes."""
    smoke_test = find_recipe(stage.job).get("smoke_test")
    if smoke_test:
        _fork(stage.job, lambda: try_environment(stage, smoke_test))
    _fork(stage.job, lambda: watch_disk(stage.job, stage.request["max_disk_bytes"], stage.request["max_files"]))


def read_objection(job: Job) -> str | None:
    """Why a watcher ended the agent, as a clause for people; None when none did."""
    said = read_json(job.objection).get("reason")
    return str(said) if said else None


def object_to(job: Job, reason: str) -> None:
    """Have the agent end. The first reason counts."""
    if not job.objection.exists():
        write_file(job.objection, json.dumps({"reason": reason}))


def try_environment(stage: Stage, commands: Iterable[str]) -> None:
    """Run the operator's smoke test, and object when it fails."""
    job = stage.job
    with open(job.control / "smoke.log", "ab", opener=open_plain) as file:
        os.dup2(file.fileno(), 1)
    log = Log(MAX_SMOKE_LOG_BYTES)
    for command in commands:
        try:
            shell, nothing = ["/bin/sh", "-ec", command], Path(os.devnull)
            process = start(shell, job.environment(), job.worktree, nothing, open_cell(job, stage.request))
        except (NotRunnable, OSError):
            return
        assert process.stdout
        output = Output(process.stdout.fileno(), log, (), None)
        follow(process, output, Leash(stage.deadline, None, 0.0))
        output.finish()
        if status := process.wait():
            tail = "\n".join(log.last_words.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])
            object_to(job, f"the environment failed its smoke test `{command}` (exit status {status}):\n{tail}")
            return


def watch_disk(job: Job, max_bytes: int, max_files: int) -> None:
    """Look again and again at what the job has written, and object when it is too much."""
    tree = find_tree(job)
    folders = [job.tmp, job.output]
    if tree:
        folders.append(tree.place if tree.way == "slot" else tree.content)
    # A copy of the base was there before.
    bytes_before, files_before = measure(folders) if tree and tree.way != "overlay" else (0, 0)
    while True:
        began = time.monotonic()
        used, files = (now - before for now, before in zip(measure(folders), (bytes_before, files_before)))  # noqa: B905
        if used > max_bytes:
            return object_to(job, f"the job wrote {used} bytes to its machine's disk, and {max_bytes} are allowed")
        if files > max_files:
            return object_to(job, f"the job made {files} files on its machine, and {max_files} are allowed")
        time.sleep(max(LOOK_EVERY_S, REST_FACTOR * (time.monotonic() - began)))


def measure(folders: Iterable[Path]) -> tuple[int, int]:
    """Bytes on the disk and files below folders, as `du` counts them: trees may be deeper than paths may be long."""
    paths = [str(folder) for folder in folders if folder.is_dir() and not folder.is_symlink()]
    return _run_du("--block-size=1", paths), _run_du("--inodes", paths)


def _run_du(what: str, paths: Iterable[str]) -> int:
    words = ["du", "--summarize", "--one-file-system", what, "--", *paths]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return sum(int(line.split()[0]) for line in done.stdout.splitlines())


def _fork(job: Job, work: Callable[[], None]) -> None:
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
