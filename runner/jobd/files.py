"""The paths of a job's files, and functions that read and write files safely."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .gpus import name_gpus, read_gpus

MAX_MESSAGE = 6_000

RESERVE = 12 * MAX_MESSAGE + 4_096
"""Bytes reserved on the disk for a stage's final state, so that it can be written when the disk is full.

A character takes at most twelve bytes in JSON: two escaped surrogates.
"""

MAX_JSON = 128_000_000
"""The size limit, in bytes, for a JSON file that jobd reads or writes.

JSON grows sixfold when a patch or a text consists of control characters: to 55 MB with the default limits.
"""

MACHINE_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
)
"""Errors of the machine. A job causes other errors by what it leaves behind, such as a folder in place of a file."""

LOW_BYTES, LOW_FILES = 256 * 2**20, 1_000
"""A disk with fewer free bytes, or with fewer free inodes, counts as full if a program says that it is full."""


class Failure(Exception):  # noqa: N818 - part of the protocol, and rarely an error in this program
    """A named error of the protocol, with a message that completes a sentence for people."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message[-MAX_MESSAGE:]


def describe(error: Exception) -> dict[str, str]:
    """Convert any exception to a named error of the protocol."""
    if isinstance(error, Failure):
        return {"error": error.name, "message": error.message}
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return {"error": "disk_full", "message": "the machine's disk is full"}
    return {"error": "internal", "message": f"{type(error).__name__}:\n{error}"[:MAX_MESSAGE]}


@contextmanager
def blame_job() -> Iterator[None]:
    """Raise an `OSError` as a `Failure` of the job, unless it is an error of the machine.

    This is for work on files that the repository's code may have changed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        raise Failure("files_unusable", f"the repository's commands left files that cannot be used:\n{error}") from None


def is_full(folder: Path, said: str) -> bool:
    """Whether a program that printed `said` failed because the disk of `folder` is full.

    The output alone does not count, because a job can choose it. The disk alone does not count either, because a
    program may fail for another reason. A disk that is almost full counts as full, because failed programs delete what
    they have written.
    """
    about = os.statvfs(folder)
    is_low = about.f_bavail * about.f_frsize < LOW_BYTES or (about.f_files > 0 and about.f_favail < LOW_FILES)
    return is_low and os.strerror(errno.ENOSPC) in said


def failure_answer(error: Exception) -> dict[str, Any]:
    """The answer of the protocol for an exception."""
    return {"ok": False, **describe(error)}


def respond(work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Run `work` and return the answer of the protocol, even if `work` raises."""
    try:
        return {"ok": True, **work()}
    except Exception as error:
        return failure_answer(error)


class JobPaths:
    """The folder of one job, and the paths in it.

    The job's commands see `root`, and `companions` read-only. They do not see `control`, and it is not inside `root`. A
    mount would have to hide it there, and in namespaces of its own that lack the mount, a job could put another folder
    in its place.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.id: str = request["job_id"]
        self.workspace = Path(request["workspace"])
        self.trash = self.workspace / "trash"
        self.folder: Path = self.workspace / "jobs" / self.id
        self.root: Path = self.folder / "files"
        self.companions: Path = self.folder / "companions"
        self.control: Path = self.folder / "control"
        self.output = self.root / "output"
        self.tmp = self.root / "tmp"
        self.notice = self.root / "notice.txt"
        self.told = self.root / "told.md"
        self.told_book = self.control / "told.json"
        self.result = self.control / "result.json"
        self.environment_file = self.control / "environment.json"
        self.layers = self.control / "layers.json"
        self.git = self.control / "git"
        self.tree = self.control / "tree"
        self.tree_lock = self.control / "tree.lock"
        self.phase = self.control / "phase"
        self.asked = self.control / "asked"
        self.hold = self.control / "hold.json"
        self.context = self.root / "CONTEXT.md"
        self.watcher_stop = self.control / "objection.json"
        self.watcher_warning = self.control / "doubt.json"

    def make_folders(self) -> None:
        """Make the job's folder, if it is not there yet. Raises `OSError`."""
        for folder in (self.control, self.git, self.root):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def place(self) -> Path:
        """The folder that holds the worktree, the virtual environment and the home, at the path that the job sees."""
        return Path(read_json(self.environment_file).get("place") or self.root)

    @property
    def worktree(self) -> Path:
        """The folder in which the repository is checked out."""
        return self.place / "worktree"

    @property
    def venv(self) -> Path:
        """The virtual environment."""
        return self.place / "venv"

    @property
    def home(self) -> Path:
        """The home of all the job's processes. At first it holds the files that the build of the base left there."""
        return self.place / "home"

    def of_stage(self, stage: str, kind: str) -> Path:
        """The path of a stage's file: `request`, `lock`, `log`, `json` (the final state), or `stop`.

        `stop` exists once the stage should end.
        """
        return self.control / f"{stage}.{kind}"

    def environment(self) -> dict[str, str]:
        """The variables of the job's processes. Of the host's, only PATH is kept. They name only the slot's GPUs."""
        prepared = read_json(self.environment_file)
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
            "PTQ_TOLD_FILE": str(self.told),
            "PTQ_ENVIRONMENT": str(prepared.get("way", "")),
            **({"PTQ_COMPANIONS_DIR": str(self.companions)} if self.companions.is_dir() else {}),
            **name_gpus(read_gpus(prepared), sealed=prepared.get("sealed") is True),
        }


class Piece(NamedTuple):
    """A part of a file, and the size of the whole file in bytes."""

    data: bytes
    size: int


def open_plain(path: str, flags: int) -> int:
    """An opener for `open` that follows no link and does not block on a named pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def read_piece(path: Path, offset: int, limit: int) -> Piece | None:
    """At most `limit` bytes of a regular file. None for anything else, such as a link, a pipe or a missing file."""
    with suppress(OSError), open(path, "rb", opener=open_plain) as file:
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            file.seek(offset)
            return Piece(file.read(limit), about.st_size)
    return None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Empty if the file is missing or does not hold an object."""
    piece = read_piece(path, 0, MAX_JSON)
    with suppress(ValueError, RecursionError):
        value = json.loads(piece.data) if piece else None
        return value if isinstance(value, dict) else {}
    return {}


def write_file(path: Path, text: str) -> None:
    """Write the whole file or nothing."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # A job can write to some of the folders of these files, so it could have put a link there.
    with open(part, "w", encoding="utf-8", opener=open_plain) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, although the system may take only a part of it at a time. Raises `OSError`."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def reserve(path: Path) -> None:
    """Reserve the space that `write_reserved` will need."""
    with open(path.with_name(f"{path.name}.part"), "wb", opener=open_plain) as file:
        file.write(b" " * RESERVE)


def write_reserved(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all, into space that `reserve` has taken. A full disk does not prevent it."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "r+b", opener=open_plain) as file:
        file.write(json.dumps(value).encode())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_boot_id() -> str:
    """The id of this boot of the machine. It also identifies the monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Try to take a lock, which is released when its last holder closes the file. Returns whether it was free."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def is_utf8(text: str) -> bool:
    """Whether JSON and GitHub's API can hold this text. They cannot hold a path with bytes that are not UTF-8."""
    return text == text.encode(errors="replace").decode()


def is_text(value: object) -> bool:
    """Whether this is a text without lone surrogates, and without NUL, which paths and command lines cannot hold."""
    return isinstance(value, str) and "\0" not in value and is_utf8(value)


def is_folder(path: Path) -> bool:
    """Whether this is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def require_folders(*folders: Path) -> None:
    """Raises `Failure` if one of these is not a folder. A command of the job may have put a link in its place."""
    for folder in folders:
        if not is_folder(folder):
            raise Failure("folder_replaced", f"the folder {folder.name} is gone, or something else is in its place")


def require_worktree(worktree: Path) -> None:
    """Raises `Failure` if the worktree is gone, or if a link or something else is in its place."""
    if not is_folder(worktree):
        raise Failure("worktree_gone", "the agent deleted its worktree, or put something else in its place")
