"""The live logs of jobs, as files: a cache that can be read again from the machine at any offset."""

from __future__ import annotations

from pathlib import Path

STAGES = ("prepare", "agent", "collect", "check")
"""The parts of a job that have a log, in their order."""


class Spool:
    """One folder with one file for each job and stage. The length of a file is the offset to go on from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def offset(self, job_id: str, stage: str) -> int:
        """How many bytes of the log are here."""
        path = self._path(job_id, stage)
        return path.stat().st_size if path.exists() else 0

    def append(self, job_id: str, stage: str, chunk: bytes) -> None:
        """Add what the machine gave at the current offset."""
        if chunk:
            with self._path(job_id, stage).open("ab") as file:
                file.write(chunk)

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
