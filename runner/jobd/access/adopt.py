"""Passes the environment of an ended job, unchanged, to a later job, which collects from it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..files import Failure, JobPaths
from ..sandbox.processes import kill_processes
from ..stages.tombstone import ended, not_ended
from .admission import forget_keys

STAGES = ("agent", "collect")
FILES = ("request", "lock", "log", "json", "json.part", "stop")
"""The files of stages that the earlier job has run. The later job starts these stages again."""


def adopt(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make the folder of the job `earlier` this job's folder. After that, nobody can start or enter the earlier job.

    If this is repeated, it does nothing. Raises `Failure`, and `OSError`.
    """
    job, earlier = JobPaths(request), JobPaths({**request, "job_id": request["earlier"]})
    with not_ended(job), ended(earlier):
        forget_keys(earlier)
        if job.folder.is_dir():
            return {}
        if not earlier.folder.is_dir():
            raise Failure("gone", "the environment no longer exists")
        if kill_processes(earlier.id)[1]:
            raise Failure("still_alive", "a process of the job cannot be killed")
        for stage in STAGES:
            for kind in FILES:
                earlier.of_stage(stage, kind).unlink(missing_ok=True)
        left = (earlier.result, earlier.watcher_stop, earlier.watcher_warning, earlier.hold, earlier.context)
        for path in (*left, earlier.told_book):
            path.unlink(missing_ok=True)
        earlier.folder.rename(job.folder)
    return {}
