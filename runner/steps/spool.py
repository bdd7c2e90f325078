"""The live logs of jobs in files: a cache that can be read again from the machine at any offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.model.job import JobState
from runner.own_files import close_to_others, make_private_folder, open_private
from runner.steps.loops import Listener, Wakeup

STAGES = ("prepare", "agent", "collect", "check")
"""The stages that have a log, in order."""

AGENT = "agent"
"""The stage whose log is the agent's. The others are jobd's own."""

CHECK = "check"
"""The stage of the service's own checks. Its log has the same readers as the report."""

GROWING: Mapping[JobState, str] = {
    JobState.QUEUED: "prepare",
    JobState.PREPARING: "prepare",
    JobState.RUNNING: "agent",
    JobState.COLLECTING: "collect",
    JobState.VERIFYING: "check",
}
"""Active state -> the stage whose log grows, or will grow next."""


class Spool:
    """A folder with a file for each job and stage. The length of a file is the next offset to read.

    It also knows which jobs' logs are watched in this process: their machines are polled more often.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder if necessary, private to this account. Raises `OSError` with a text for the operator."""
        self._folder = folder
        self._grown = Wakeup()
        self._watchers = Counter[str]()
        try:
            make_private_folder(folder)
        except OSError as error:
            reason = f"cannot store logs in {folder.parent} ({(error.strerror or '').lower()}): it must be a folder"
            raise OSError(f"{reason} that this account can write to; see server.data_dir") from None
        for path in (folder, *folder.glob("*.log")):
            close_to_others(path)

    def offset(self, job_id: str, stage: str) -> int:
        """The number of bytes of the log that have been copied here."""
        path = self._path(job_id, stage)
        return path.stat().st_size if path.exists() else 0

    def append(self, job_id: str, stage: str, chunk: bytes) -> None:
        """Append the machine's output at the current offset."""
        if chunk:
            with open(self._path(job_id, stage), "ab", opener=open_private) as file:
                file.write(chunk)
            self._grown.notify_here()

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Listener]:
        """Watch a job inside the block: its logs are fetched as soon as possible, and the listener is notified."""
        self._watchers[job_id] += 1
        try:
            with self._grown.listen() as listener:
                yield listener
        finally:
            self._watchers -= Counter({job_id: 1})

    def is_watched(self, job_id: str) -> bool:
        """Whether the job's logs are watched in this process."""
        return self._watchers[job_id] > 0

    def read(self, job_id: str, stage: str, last: int | None = None) -> bytes:
        """The log so far, or its `last` bytes."""
        path = self._path(job_id, stage)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, path.stat().st_size - last))
            return file.read()

    def read_from(self, job_id: str, stage: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of the log from an offset."""
        path = self._path(job_id, stage)
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    def list_jobs(self) -> set[str]:
        """The jobs with logs here."""
        return {path.name.partition(".")[0] for path in self._folder.glob("*.*.log")}

    def drop(self, job_id: str) -> None:
        """Delete a job's logs."""
        for stage in STAGES:
            self._path(job_id, stage).unlink(missing_ok=True)

    def _path(self, job_id: str, stage: str) -> Path:
        return self._folder / f"{job_id}.{stage}.log"
