"""A cell: what commands of a job see of their machine. Each runs in namespaces of its own, and finds there

- the job's folder as it is, but for `control`, which is empty; its environment at its place;
- its own /tmp and /var/tmp (one folder of the job's), /dev/shm, /dev/pts and /proc; of the GPUs those of its slot,
  where that has some; nothing in other folders of the system that are open to everybody (`/var/crash`);
- no network but its own loopback, where its repository's table says so;
- nothing of the account's home, of /run, of the workspace: other jobs, other repositories; nor of the service's own
  folders, where it runs on this machine. But programs that PATH or an operator's command leads to are there, to be
  read; so is the clone that the worktree's git needs.

All else of the machine is as it is.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..files import JobPaths, read_json
from ..git import find_own_clone, find_recipe
from .namespaces import NO_EXEC, NO_SUID, bind, close_device, enter, make_read_only, mount, mount_empty
from .tools import find_tools, is_below, is_there

SCRATCH, SHARED_MEMORY = (Path("/tmp"), Path("/var/tmp")), Path("/dev/shm")  # noqa: S108 - where everybody expects them
SHARED = (Path("/var"), Path("/var/spool"), Path("/dev"))
"""Where a system has folders in which everybody may write. A job's files there would outlive it, for others to see."""

TERMINALS = Path("/dev/pts")
OPEN_TO_ALL = "mode=1777"
NOTHING = Path(os.devnull)
"""What a covered file is in a cell."""

PATHS = re.compile(r"/[^\s\"'`;:=,|&<>()$]+")
"""What looks like an absolute path in a command or a variable."""


class Cell:
    """The view of the machine that commands of one job get."""

    def __init__(
        self, job: JobPaths, request: Mapping[str, Any], start_beside: Callable[[], None] | None = None
    ) -> None:
        prepared = find_recipe(job)
        self._job = job
        self._start_beside = start_beside
        self._gpus: Mapping[str, str] = prepared.get("gpus") or {}
        # What makes an environment has to fetch what it is made of.
        self._has_network = prepared.get("network") != "none" or request.keys() >= prepared.keys()
        self._scratch = {place.resolve() for place in SCRATCH if place.is_dir()}
        covers: Iterable[Path] = map(Path, (*find_homes(), "/run", job.workspace, *(prepared.get("private") or ())))
        covers = (*covers, *SCRATCH, *find_open_folders(), *find_links(job.workspace))
        self._covers = frozenset(path for cover in covers for path in (cover, cover.resolve())) - {Path("/")}
        self._kept = self._find_kept((prepared, request))

    def enter(self, folder: Path) -> None:
        """Have this process, which is about to become a command, become it in the cell. Raises `OSError`."""
        enter(self._arrange, network=self._has_network, start_beside=self._start_beside)
        # Not the folder that it was in, from which `..` led below what covers it now.
        os.chdir(folder)

    def _find_kept(self, requests: Iterable[Mapping[str, Any]]) -> list[Path]:
        """What is there, to be read, although it lies below a cover."""
        named = [path for request in requests for text in list_commands(request) for path in PATHS.findall(text)]
        named += os.environ.get("PATH", os.defpath).split(":")
        # What lies there, links too, is of jobs' own making.
        theirs = [folder.resolve() for folder in (self._job.root.parent, self._job.place)]
        paths = {path for path in map(Path, named) if path.is_absolute()}
        tools = find_tools(frozenset(path for path in paths if not is_below(path.resolve(), theirs)), self._covers)
        clone = find_own_clone(self._job)
        kept = {clone, clone.resolve(), Path("/etc/resolv.conf").resolve(), *tools}
        return outermost(path for path in kept if is_below(path, self._covers))

    def _arrange(self) -> None:
        mine = (self._job.root, self._job.place)
        own = {*mine, *(path.resolve() for path in mine)}  # Git writes down the second.
        # Opened before anything covers them: by its descriptor each can still be reached.
        sources = {path: os.open(path, os.O_PATH) for path in (*self._kept, *own) if is_there(path)}
        tmp = open_folder(self._job.tmp)
        outside = outermost(path for path in self._covers if not is_below(path, [*self._scratch, *SCRATCH]))
        covers = [path for path in outside if path.is_dir()]
        for cover in covers:
            mount_empty(cover)
        for file in (path for path in outside if path.is_file()):
            bind(NOTHING, file, writable=False)
        for place in self._scratch:
            if tmp is None or any(is_below(path, [place]) for path in sources):
                mount_empty(place, OPEN_TO_ALL)
            else:
                bind(Path(f"/proc/self/fd/{tmp}"), place, writable=True)
        for path, source in sources.items():
            put(source, path, writable=path in own)
        mount_empty(self._job.control)
        for cover in (*covers, self._job.control):
            make_read_only(cover)
        if SHARED_MEMORY.is_dir():
            mount_empty(SHARED_MEMORY, OPEN_TO_ALL)
        for device in find_devices(self._gpus):
            close_device(device)
        with suppress(OSError):  # Terminals of the account's others are in nobody's reach but where that is refused.
            mount("devpts", TERMINALS, "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=0620")
        with suppress(OSError):  # Some containers refuse. What it then shows of others are names (docs/machines.md).
            mount("proc", Path("/proc"), "proc")


def find_homes() -> Iterator[str]:
    """The account's home, by its name and by its environment. In a container an account may have no name."""
    with suppress(KeyError):
        yield pwd.getpwuid(os.getuid()).pw_dir
    yield os.environ.get("HOME", "/")


def find_open_folders() -> Iterator[Path]:
    """The system's folders in which everybody may make files, but for those that every job has as its own."""
    for path in (path for folder in SHARED if folder.is_dir() for path in folder.iterdir()):
        with suppress(OSError):
            place, mode = path.resolve(), path.stat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IWOTH and place != SHARED_MEMORY.resolve():
                yield place


def find_links(folder: Path) -> list[Path]:
    """The links in a folder: an operator may have put `jobs`, for example, on another disk."""
    return [path for path in folder.iterdir() if path.is_symlink()] if folder.is_dir() else []


def is_sealed(job: JobPaths) -> bool:
    """Whether a job has a cell, as it was decided when it was prepared."""
    return bool(read_json(job.environment_file).get("sealed"))


def open_cell(job: JobPaths, request: Mapping[str, Any], start_beside: Callable[[], None] | None = None) -> Cell | None:
    """The cell of a job, in which a process is started beside the command; None when it has none."""
    return Cell(job, request, start_beside) if is_sealed(job) else None


def list_commands(request: Mapping[str, Any]) -> Iterator[str]:
    """The operator's own words in a request: commands, and variables. No stranger's text is among them."""
    commands = ("create_venv", "setup", "update", "rebuild", "smoke_test", "lint", "argv", "script_argv", "test_argv")
    for name in commands:
        yield from request.get(name) or ()
    yield from (request.get("env") or {}).values()


def find_devices(gpus: Iterable[str]) -> list[Path]:
    """The GPUs that are not among those numbers, /dev/nvidia0 having the number 0; none when no number is given."""
    own = {f"nvidia{number}" for number in gpus}
    found = Path("/dev").glob("nvidia[0-9]*") if own else ()
    return [device for device in found if device.name not in own]


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Those that are below no other one."""
    found = {*paths}
    return [path for path in sorted(found) if not is_below(path, found - {path})]


def open_folder(path: Path) -> int | None:
    """A folder that a job may have put something else in place of, which is None."""
    with suppress(OSError):
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def put(source: int, path: Path, *, writable: bool) -> None:
    """Have what a descriptor leads to at a path below a cover, on which nothing is yet. Raises `OSError`."""
    there = Path(f"/proc/self/fd/{source}")
    (path if there.is_dir() else path.parent).mkdir(parents=True, exist_ok=True)
    if not there.is_dir():
        path.touch()
    bind(there, path, writable=writable)
