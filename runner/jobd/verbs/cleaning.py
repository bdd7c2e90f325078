"""The end of a job on its machine: nothing of it is alive, and its folder is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..access.admission import forget_keys
from ..environment.environment import clear
from ..environment.trees import discard
from ..files import Failure, JobPaths
from ..proxy.sockets import close_way
from ..sandbox.processes import kill_processes
from ..stages.tombstone import ended


def kill(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill everything of the job."""
    killed, alive = kill_processes(JobPaths(request).id)
    return {"killed": killed, "alive": alive}


def clean(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill everything of the job and remove its folder. Raises `Failure` while something is alive, or cannot go."""
    job = JobPaths(request)
    with ended(job):
        return _clean(job)


def _clean(job: JobPaths) -> dict[str, Any]:
    forget_keys(job)
    if kill_processes(job.id)[1]:
        raise Failure("still_alive", "a process of the job cannot be killed")
    if not job.root.is_symlink():
        clear(job)
    close_way(job)
    discard(job.root)
    return {}
