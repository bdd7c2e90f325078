"""Starts the stages of a job, each only once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..files import MAX_JSON, Failure, JobPaths, open_plain, reserve, try_lock, write_file
from .states import open_lock, read_state
from .tombstone import not_ended


def start(stage: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start a stage that has no precondition."""
    return {"started": start_stage(stage, request)}


prepare, base, collect = partial(start, "prepare"), partial(start, "base"), partial(start, "collect")


def start_agent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the agent in a prepared environment."""
    if read_state(JobPaths(request), "prepare")["state"] != "done":
        raise Failure("not_prepared", "the job's environment is not prepared")
    if not request["argv"]:
        raise Failure("bad_request", "the agent has no command")
    return start("agent", request)


def start_check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the checks in a prepared environment where nothing has run yet."""
    if read_state(JobPaths(request), "prepare")["state"] != "done":
        raise Failure("not_prepared", "the environment for the checks is not prepared")
    return start("check", request)


def start_stage(stage: str, request: Mapping[str, Any]) -> bool:
    """Start a stage. If several requests start it at once, one wins. Returns False if it was started before.

    Raises `Failure` if the job's environment was removed.
    """
    job = JobPaths(request)
    with not_ended(job):
        return _start(job, stage, request)


def _start(job: JobPaths, stage: str, request: Mapping[str, Any]) -> bool:
    job.make_folders()
    written, log_path, text = job.of_stage(stage, "request"), job.of_stage(stage, "log"), json.dumps(request)
    if len(text) > MAX_JSON:
        raise Failure("bad_request", f"the request is larger than {MAX_JSON} bytes")
    with open_lock(job, stage) as lock, open(log_path, "ab", opener=open_plain) as log:
        if not try_lock(lock.fileno()) or written.exists():
            return False
        reserve(job.of_stage(stage, "json"))
        write_file(written, text)
        start_process(["stage", stage, str(written)], job, log.fileno(), lock.fileno())
    return True


def start_process(words: Sequence[str], job: JobPaths, log: int, lock: int) -> None:
    """Start this program with other words, in a process that outlives this one and holds the descriptor `lock`."""
    subprocess.Popen(
        [sys.executable, "-I", "-S", sys.argv[0], *words],
        env={**os.environ, "PTQ_JOB_ID": job.id},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[lock],
        start_new_session=True,
        cwd=job.workspace,
    ).returncode = 0  # Nobody waits for this process, and Popen does not warn about that.
