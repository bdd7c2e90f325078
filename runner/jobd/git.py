"""Runs git so that the host's settings, the repository and agents cannot change what it does."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .files import RESERVE, Failure, JobPaths, is_full, read_json, require_folders

GIT = (
    *("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"),
    # Without these two settings, git reads `ignore` and `attributes` from the user's configuration folder.
    *("-c", "core.excludesFile=/dev/null", "-c", "core.attributesFile=/dev/null"),
    # Git may accept files that look like `.git` on other systems: the service refuses them, and says why.
    *("-c", "core.protectNTFS=false", "-c", "core.protectHFS=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"),
)

SETTINGS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "LC_ALL": "C",
}

MAX_MEMORY = 4 * 2**30
"""Bytes that a git command may allocate. Git reads some files of a worktree into memory, and a sparse file can have any
size. Files that git maps, such as packs, do not count."""

MAX_MESSAGES = 1_000_000
"""The number of bytes that are read from the end of git's messages."""

CLONE_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"


def git_environment(**more: str) -> dict[str, str]:
    """The variables for git: `SETTINGS`, `more`, and the host's, except those that change git or give it a login."""
    host = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    return {**host, **SETTINGS, **more}


def as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of git as environment variables (git-config(1), `GIT_CONFIG_COUNT`)."""
    found = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        found.update({f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value})
    return found


def find_clone(job: JobPaths, clone_url: str) -> Path:
    """The path of the machine's clone of a repository. All jobs on the machine share it."""
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(clone_url.lower().split("/")[-2:])).strip("-")
    return job.workspace / "repos" / f"{name[:60]}-{hashlib.sha256(clone_url.encode()).hexdigest()[:12]}"


def find_own_clone(job: JobPaths) -> Path:
    """The clone that the job was prepared from."""
    return find_clone(job, str(find_recipe(job).get("clone_url")))


def find_recipe(job: JobPaths) -> dict[str, Any]:
    """The request for the job's environment, or for the base that is refreshed. Empty if it cannot be read."""
    return read_json(job.of_stage("prepare", "request")) or read_json(job.of_stage("base", "request"))


class GitFolders(NamedTuple):
    """The folders that jobd's own git uses for a job."""

    worktree: Path
    clone: Path
    """The machine's clone that the job was prepared from."""
    throwaways: Path
    """The folder for temporary repositories. No command of the job sees it."""


def find_git_folders(job: JobPaths) -> GitFolders:
    """The folders of a job. They are named in control files, which can be read only outside the sandbox."""
    return GitFolders(job.worktree, find_own_clone(job), job.git)


class Git:
    """A temporary repository that sees only the worktree and the objects of the machine's clone."""

    def __init__(self, folder: Path, worktree: Path, timeout_s: float) -> None:
        self.folder = folder
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._env = git_environment(GIT_DIR=str(folder), GIT_WORK_TREE=str(worktree))
        self._worktree = worktree
        self.ignored: list[str] = []
        """Git's messages about paths that it does not accept."""

    def with_worktree(self, worktree: Path, env: Mapping[str, str]) -> Git:
        """The same repository with another worktree, a separate index, and more variables in git's environment."""
        other = copy.copy(self)
        other._worktree = worktree
        places = {"GIT_WORK_TREE": str(worktree), "GIT_INDEX_FILE": str(self.folder / "other-index")}
        other._env = {**self._env, **places, **env}
        return other

    def run(self, *words: str, stdin: bytes = b"", limit: int | None = None, statuses: Collection[int] = (0,)) -> bytes:
        """Run one command and return its output.

        Raises `Failure` if the exit status is not in `statuses`, or if the output is longer than `limit` bytes. Git is
        ended when it writes a file of more than `limit` bytes.
        """
        if time.monotonic() > self._deadline:
            raise Failure("timed_out", f"git needed more than {self._timeout_s} seconds for the change")
        with tempfile.TemporaryFile(dir=self.folder) as output, tempfile.TemporaryFile(dir=self.folder) as messages:
            process = subprocess.Popen(
                bound([*GIT, *words], limit),
                cwd=self._worktree,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=messages,
            )
            with process:
                try:
                    process.communicate(stdin, max(1.0, self._deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    reason = f"git needed more than {self._timeout_s} seconds for the change"
                    raise Failure("timed_out", reason) from None
            if limit is not None and max(output.tell(), messages.tell()) > limit:
                raise Failure("change_too_large", f"the diff is larger than {limit} bytes")
            messages.seek(max(messages.tell() - MAX_MESSAGES, 0))
            said = messages.read().decode(errors="replace").splitlines()
            if process.returncode not in statuses:
                # Git does not always report a full disk. Reserving space raises an `OSError` if the disk is full.
                os.posix_fallocate(output.fileno(), output.tell(), RESERVE)
                full = is_full(self.folder, "".join(said))
                # Git's messages get their own lines, because they can quote a file's name, which an agent can choose.
                reason = "\n".join([f"git {words[0]} failed:", *said[-3:]])
                raise Failure("disk_full" if full else "git_failed", reason)
            self.ignored += [line for line in said if line.startswith("Ignoring path ")]
            output.seek(0)
            return output.read()

    def read_objects(self, names: Iterable[str]) -> dict[str, bytes]:
        """The contents of objects, by their ids."""
        wanted = "".join(f"{name}\n" for name in names).encode()
        contents, rest = {}, self.run("cat-file", "--batch=%(objectname) %(objectsize)", stdin=wanted)
        while rest:
            header, _, rest = rest.partition(b"\n")
            name, size = header.decode().split()
            contents[name] = rest[: int(size)]
            rest = rest[int(size) + 1 :]
        return contents


def bound(argv: Sequence[str], max_file_bytes: int | None) -> list[str]:
    """A command with limits to its memory, and to the size of the files that it writes.

    A shell sets them before git starts: later, git may have the memory already. With a `preexec_fn`, Python would copy
    its own memory for each command, which takes several times as long as a command of git.
    """
    limits = [f"ulimit -S -d {find_bound(resource.RLIMIT_DATA, MAX_MEMORY) // 1024}"]
    if max_file_bytes is not None:
        # In units of 512 bytes (POSIX). Of more than `max_file_bytes`, at least one byte has to fit.
        limits.append(f"ulimit -S -f {find_bound(resource.RLIMIT_FSIZE, max_file_bytes + 512) // 512}")
    return ["/bin/sh", "-c", " && ".join([*limits, 'exec "$@"']), "sh", *argv]


def find_bound(kind: int, bound: int) -> int:
    """`bound`, or what the machine allows at most if that is less."""
    _, most = resource.getrlimit(kind)
    return bound if most == resource.RLIM_INFINITY else min(bound, most)


@contextmanager
def open_throwaway(folders: GitFolders, base: str, timeout_s: float) -> Iterator[Git]:
    """A temporary repository in the object format of the commit `base`, for the job's worktree.

    Raises `Failure` if the worktree is a link: git would read and write where the link leads.
    """
    if folders.worktree.is_symlink():
        require_folders(folders.worktree)
    with tempfile.TemporaryDirectory(prefix="git-", dir=folders.throwaways) as folder:
        git = Git(Path(folder), folders.worktree, timeout_s)
        git.run("init", "--quiet", "--template=", f"--object-format={'sha256' if len(base) == 64 else 'sha1'}")
        write_lines(git.folder / "objects" / "info" / "alternates", str(folders.clone / "objects"))
        yield git


def write_lines(path: Path, *lines: str) -> None:
    """Write lines to one of git's own files. Creates the file's folder if necessary."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


# Paths: git reads and writes them as bytes that end in NUL


def split_paths(data: bytes) -> list[str]:
    """Convert git's list of paths to strings."""
    return [os.fsdecode(path) for path in data.split(b"\0")[:-1]]


def join_paths(paths: Iterable[str]) -> bytes:
    """Convert paths to git's form."""
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def to_text(path: str) -> str:
    """A path as a text that UTF-8 can hold. Bytes that are not UTF-8 become question marks."""
    return path.encode(errors="replace").decode()


def show_path(path: str) -> str:
    """A path for people, as Markdown code. A backtick in the path is replaced, because it would end the code."""
    shown = to_text(path).replace("`", "\u02bc")
    return f"`{shown}`"
