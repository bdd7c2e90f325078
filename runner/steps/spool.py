"""The live logs of jobs, as files: a cache that can be read again from the machine at any offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.model.job import JobState
from runner.own_files import close_to_others, make_private_folder, open_private
from runner.steps.loops import Bell, Listener

STAGES = ("prepare", "agent", "collect", "check")
"""The parts of a job that have a log, in their order."""

CHECK = "check"
"""The stage in which the service itself checks a result: its log belongs to the report, and has the same readers."""

GROWING: Mapping[JobState, str] = {
    JobState.QUEUED: "prepare",
    JobState.PREPARING: "prepare",
    JobState.RUNNING: "agent",
    JobState.COLLECTING: "collect",
    JobState.VERIFYING: "check",
}
"""Whose log grows, or will be the next to grow, in each state that is not final."""


class Spool:
    """One folder with one file for each job and stage. The length of a file is the offset to go on from.

    It also knows who in this process waits for a job's logs to grow: only for them is a machine asked more often.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder, for our account alone, where it is missing. Raises `OSError`, in words for the operator."""
        self._folder = folder
        self._grown = Bell()
        self._watchers = Counter[str]()
        try:
            make_private_folder(folder)
        except OSError as error:
            reason = f"{folder.parent} is no place for logs ({(error.strerror or '').lower()}): it has to be a folder"
            raise OSError(f"{reason} that this account may write to; see server.data_dir") from None
        for path in (folder, *folder.glob("*.log")):
            close_to_others(path)

    def offset(self, job_id: str, stage: str) -> int:
        """How many bytes of the log are here."""
        path = self._path(job_id, stage)
        return path.stat().st_size if path.exists() else 0

    def append(self, job_id: str, stage: str, chunk: bytes) -> None:
        """Add what the machine gave at the current offset."""
        if chunk:
            with open(self._path(job_id, stage), "ab", opener=open_private) as file:
                file.write(chunk)
            self._grown.ring_here()

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Listener]:
        """Hear whenever a log has grown here, and have this job's logs come as soon as they can, inside the block."""
        self._watchers[job_id] += 1
        try:
            with self._grown.listen() as listener:
                yield listener
        finally:
            self._watchers -= Counter({job_id: 1})

    def is_watched(self, job_id: str) -> bool:
        """Whether anybody in this process waits for the job's logs to grow."""
        return self._watchers[job_id] > 0

    def read(self, job_id: str, stage: str, last: int | None = None) -> bytes:
        """The log as it is here, or its `last` bytes."""
        path = self._path(job_id, stage)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, path.stat().st_size - last))
            return file.read()

    def read_from(self, job_id: str, stage: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of the log, from an offset on."""
        path = self._path(job_id, stage)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    def list_jobs(self) -> set[str]:
        """The jobs that have logs here."""
        return {path.name.partition(".")[0] for path in self._folder.glob("*.*.log")}

    def drop(self, job_id: str) -> None:
        """Forget a job's logs."""
        for stage in STAGES:
            self._path(job_id, stage).unlink(missing_ok=True)

    def _path(self, job_id: str, stage: str) -> Path:
        return self._folder / f"{job_id}.{stage}.log"
