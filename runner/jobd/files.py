"""Where everything of a job lies, and files that are read with care and written whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MAX_MESSAGE = 6_000

RESERVE = 12 * MAX_MESSAGE + 4_096
"""Bytes kept on the disk for a stage's final state, so that it can be written when the disk is full.

A character takes at most twelve bytes in JSON: two escaped halves.
"""

MAX_JSON = 128_000_000
"""Bytes of the longest file of ours that is read, however large somebody has made it; and so of what is written.

A patch and texts of control characters alone grow sixfold in JSON, to 55 MB with the limits that operators start from.
"""


class Failure(Exception):  # noqa: N818 - an answer of the protocol, most often no fault of ours
    """A named error of the protocol, with a clause for people."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message[-MAX_MESSAGE:]


def describe(error: Exception) -> dict[str, str]:
    """Any exception as a named error of the protocol."""
    if isinstance(error, Failure):
        return {"error": error.name, "message": error.message}
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return {"error": "disk_full", "message": "the machine's disk is full"}
    return {"error": "internal", "message": f"{type(error).__name__}: {error}"[:MAX_MESSAGE]}


def refuse(error: Exception) -> dict[str, Any]:
    """The answer of the protocol where something went wrong."""
    return {"ok": False, **describe(error)}


def respond(work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The answer of the protocol, whatever comes of the work."""
    try:
        return {"ok": True, **work()}
    except Exception as error:
        return refuse(error)


class JobPaths:
    """The paths of one job."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.id: str = request["job_id"]
        self.workspace = Path(request["workspace"])
        self.root: Path = self.workspace / "jobs" / self.id
        self.control: Path = self.root / "control"
        self.output = self.root / "output"
        self.tmp = self.root / "tmp"
        self.notice = self.root / "notice.txt"
        self.result = self.control / "result.json"
        self.environment_file = self.control / "environment.json"
        self.layers = self.control / "layers.json"
        self.tree = self.control / "tree"
        self.tree_lock = self.control / "tree.lock"
        self.phase = self.control / "phase"
        self.asked = self.control / "asked"
        self.hold = self.control / "hold.json"
        self.context = self.root / "CONTEXT.md"
        self.objection = self.control / "objection.json"
        self.doubt = self.control / "doubt.json"

    @property
    def place(self) -> Path:
        """The folder of worktree, virtual environment and home, as processes of the job see it."""
        return Path(read_json(self.environment_file).get("place") or self.root)

    @property
    def worktree(self) -> Path:
        """Where the repository is checked out."""
        return self.place / "worktree"

    @property
    def venv(self) -> Path:
        """The virtual environment."""
        return self.place / "venv"

    @property
    def home(self) -> Path:
        """The home of all its processes, with whatever making the base left there."""
        return self.place / "home"

    def of_stage(self, stage: str, kind: str) -> Path:
        """The stage's `request`, `lock`, `log` or final `json`; or `stop`, which is there once it should end."""
        return self.control / f"{stage}.{kind}"

    def environment(self) -> dict[str, str]:
        """What a process of the job starts with: of the host it gets the PATH alone, and of the GPUs its slot's."""
        gpus = read_json(self.environment_file).get("gpus")
        return {
            "PATH": f"{self.venv / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
            "VIRTUAL_ENV": str(self.venv),
            "PTQ_JOB_ID": self.id,
            "PTQ_PROMPT_FILE": str(self.root / "prompt.md"),
            "PTQ_WORKTREE": str(self.worktree),
            "PTQ_OUTPUT_DIR": str(self.output),
            "PTQ_NOTICE_FILE": str(self.notice),
            "PTQ_ENVIRONMENT": str(read_json(self.environment_file).get("way", "")),
            # By name: a number means another GPU in a cell, where the others are not seen.
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus.values())} if gpus else {}),
        }


class Piece(NamedTuple):
    """A part of a file, and the size of the whole in bytes."""

    data: bytes
    size: int


def open_plain(path: str, flags: int) -> int:
    """An opener for `open` that follows no link, and does not wait for the other end of a pipe that lies there."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def read_piece(path: Path, offset: int, limit: int) -> Piece | None:
    """At most `limit` bytes of a regular file; None where there is none. Links, pipes and devices are never opened."""
    with suppress(OSError), open(path, "rb", opener=open_plain) as file:
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            file.seek(offset)
            return Piece(file.read(limit), about.st_size)
    return None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    piece = read_piece(path, 0, MAX_JSON)
    with suppress(ValueError, RecursionError):
        value = json.loads(piece.data) if piece else None
        return value if isinstance(value, dict) else {}
    return {}


def write_file(path: Path, text: str) -> None:
    """Write whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # Some lie where a job may write as well: it could have put a link there.
    with open(part, "w", encoding="utf-8", opener=open_plain) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def reserve(path: Path) -> None:
    """Take the room that `write_reserved` will need."""
    with open(path.with_name(f"{path.name}.part"), "wb", opener=open_plain) as file:
        file.write(b" " * RESERVE)


def write_reserved(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all, into room that was reserved: a full disk does not hinder it."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "r+b", opener=open_plain) as file:
        file.write(json.dumps(value).encode())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock that ends with its last holder. Whether it was free."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def is_utf8(text: str) -> bool:
    """Whether a text can be said in JSON and in GitHub's API; a path need not be."""
    return text == text.encode(errors="replace").decode()


def is_text(value: object) -> bool:
    """Whether this is a text without NUL, which no path and no command line may hold, and without half a character."""
    return isinstance(value, str) and "\0" not in value and is_utf8(value)


def is_folder(path: Path) -> bool:
    """Whether there is a folder, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def require_worktree(job: JobPaths) -> None:
    """Raises `Failure` when there is no worktree any more; what a link leads to is none of ours."""
    if not is_folder(job.worktree):
        raise Failure("worktree_gone", "the agent deleted its worktree, or put something else in its place")
