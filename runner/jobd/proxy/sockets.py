"""The service's sockets of a job: where sshd listens for it, and what a relay passes everything on to."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import JobPaths, read_json, write_file
from ..stages.tombstone import not_ended

FOLDERS = Path("/tmp")  # noqa: S108 - the path of a socket may have 107 bytes, and a workspace's may be as long
PREFIX = "ptq-"


def open_way(request: Mapping[str, Any]) -> dict[str, Any]:
    """The path for the service's next socket of a job, in a folder that only the account may enter.

    Raises `Failure` when the job's environment was cleaned.
    """
    job = JobPaths(request)
    with not_ended(job):
        note = read_json(find_note(job))
        folder, turn = str(note.get("folder", "")), int(note.get("turn", 0)) + 1
        if not Path(folder).is_dir() or not folder:
            job.control.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=FOLDERS)
        write_file(find_note(job), json.dumps({"folder": folder, "turn": turn}))
    return {"path": f"{folder}/{turn:06}"}


def close_way(job: JobPaths) -> None:
    """Remove the folder, if there is one."""
    folder = Path(str(read_json(find_note(job)).get("folder", "")))
    if folder.parent == FOLDERS and folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def find_note(job: JobPaths) -> Path:
    """Where the folder's name is written down; no job sees it."""
    return job.control / "relay.json"
