"""The end of a job on its machine: kills its processes and removes its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..access.admission import forget_keys
from ..environment.environment import clear_leftovers
from ..environment.trees import discard, empty_trash
from ..files import Failure, JobPaths
from ..proxy.sockets import remove_sockets
from ..safe_paths import reopen
from ..sandbox.processes import kill_processes
from ..stages.tombstone import ended


def kill(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill all processes of the job."""
    killed, alive = kill_processes(JobPaths(request).id)
    return {"killed": killed, "alive": alive}


def clean(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill all processes of the job and remove its folder. Raises `Failure` if a process or the folder remains."""
    job = JobPaths(request)
    with ended(job):
        return _clean(job)


def _clean(job: JobPaths) -> dict[str, Any]:
    forget_keys(job)
    if kill_processes(job.id)[1]:
        raise Failure("still_alive", "a process of the job cannot be killed")
    reopen(job.root)
    if not job.root.is_symlink():
        clear_leftovers(job)
    remove_sockets(job)
    try:
        discard(job.folder, job.trash)
    finally:
        empty_trash(job.trash)
    return {}
