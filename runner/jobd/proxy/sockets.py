"""The service's sockets of a job: sshd listens on them, and the relay forwards to them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import JobPaths, read_json, write_file
from ..stages.tombstone import not_ended

FOLDERS = Path("/tmp")  # noqa: S108 - a socket's path may have 107 bytes, and a workspace's may be too long
PREFIX = "ptq-"


def make_socket_path(request: Mapping[str, Any]) -> dict[str, Any]:
    """The path for the service's next socket of a job, in a folder that only the account can enter.

    Raises `Failure` if the job's environment was removed.
    """
    job = JobPaths(request)
    with not_ended(job):
        record = read_json(find_record(job))
        folder, turn = str(record.get("folder", "")), int(record.get("turn", 0)) + 1
        if not Path(folder).is_dir() or not folder:
            job.make_folders()
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=FOLDERS)
        write_file(find_record(job), json.dumps({"folder": folder, "turn": turn}))
    return {"path": f"{folder}/{turn:06}"}


def remove_sockets(job: JobPaths) -> None:
    """Remove the folder of the job's sockets, if there is one."""
    folder = Path(str(read_json(find_record(job)).get("folder", "")))
    if folder.parent == FOLDERS and folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def find_record(job: JobPaths) -> Path:
    """The file that holds the folder's name. Jobs cannot see it."""
    return job.control / "relay.json"
