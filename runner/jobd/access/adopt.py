"""Hands the environment of a job that has ended, as it is, to one that follows it and collects it anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..files import Failure, JobPaths
from ..sandbox.processes import kill_processes
from ..stages.tombstone import ended, not_ended
from .admission import forget_keys

STAGES = ("agent", "collect")
FILES = ("request", "lock", "log", "json", "json.part", "stop")
"""What tells of stages that the earlier job had and the later one has still to begin."""


def adopt(request: Mapping[str, Any]) -> dict[str, Any]:
    """Give the folder of the job `earlier` to this one; from then on, nothing of that can be started or entered.

    Nothing happens when it was done before. Raises `Failure`, and `OSError`.
    """
    job, earlier = JobPaths(request), JobPaths({**request, "job_id": request["earlier"]})
    with not_ended(job), ended(earlier):
        forget_keys(earlier)
        if job.root.is_dir():
            return {}
        if not earlier.root.is_dir():
            raise Failure("gone", "the environment is not there any more")
        if kill_processes(earlier.id)[1]:
            raise Failure("still_alive", "a process of the job cannot be killed")
        for stage in STAGES:
            for kind in FILES:
                earlier.of_stage(stage, kind).unlink(missing_ok=True)
        for path in (earlier.result, earlier.objection, earlier.doubt, earlier.hold, earlier.context):
            path.unlink(missing_ok=True)
        earlier.root.rename(job.root)
    return {}
