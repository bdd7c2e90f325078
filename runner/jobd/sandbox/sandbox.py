"""The sandbox: what a job's commands see of their machine. Each command runs in new namespaces and sees

- the job's files, without its `control` folder; its environment at its place; its companions, read-only;
- its own /tmp and /var/tmp (one folder of the job), /dev/shm, /dev/pts and /proc; only the GPUs of its slot, if the
  slot has any; empty folders in place of the system's other world-writable ones (`/var/crash`);
- no network except its own loopback, if its repository's table says so; no abstract Unix sockets except its own, if the
  kernel can do that (`landlock`);
- nothing in the account's home, in /run, in the workspace (other jobs, other repositories), or in the service's own
  folders if the service runs on this machine. Exceptions: programs that PATH or an operator's command refers to, and
  the clone that the worktree's git needs.

jobd's own work on the job's files is done in the same view, with one more folder for git (`Sandbox.do`). Work on them
outside the sandbox follows no link (`safe_paths`).

Everything else on the machine is visible, and read-only except for the operator's `writable` folders. If a job could
write everywhere, it could replace a program that jobd runs, or the folder around its workspace. The commands cannot
open /dev/fuse. Without a network, they cannot open devices that reach other hosts, either. `syscalls` says which system
calls are refused.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths, describe, read_json
from ..git import find_own_clone, find_recipe
from ..gpus import find_others, read_gpus
from .child import ask_child, close_others
from .namespaces import (
    NO_EXEC,
    NO_SUID,
    ROOT,
    bind,
    close_device,
    enter_namespaces,
    find_mounts,
    find_other_places,
    make_all_read_only,
    make_read_only,
    mount,
    mount_empty,
)
from .shortage import Shortage, explain_refusal, explain_shortage, unless_forbidden
from .tools import choose_named, find_tools, is_inside, is_there

SCRATCH, SHARED_MEMORY = (Path("/tmp"), Path("/var/tmp")), Path("/dev/shm")  # noqa: S108 - the system's standard paths
SHARED = (Path("/var"), Path("/var/spool"), Path("/dev"))
"""Folders of the system. In world-writable folders inside them, a job's files would be visible, and outlive the job."""

TERMINALS = Path("/dev/pts")
MAX_TERMINALS = 64
"""How many terminals a command can have. The kernel has a few thousand for the whole machine (`kernel.pty.max`)."""

KERNEL_SETTINGS = (Path("/proc/sys"), Path("/proc/sysrq-trigger"))
FUSE = Path("/dev/fuse")
"""A process that waits for a FUSE file system cannot be killed until the file system answers. A job could make one."""

NETWORK_DEVICES = (Path("/dev/vsock"), Path("/dev/vhost-vsock"), Path("/dev/infiniband"))
"""Devices that reach other hosts. No network namespace contains them."""

REMOVED = frozenset({errno.ENOENT, errno.EINVAL})
"""The errors of mount(2) for a folder that is being removed. The kernel first ends its mount, then its name."""

REMOVAL_S = 1.0
"""How long the kernel takes at most between the two, under load. Usually microseconds."""

OPEN_TO_ALL = "mode=1777"
NOTHING = Path(os.devnull)
"""The file that the sandbox shows in place of a hidden file."""

PATHS = re.compile(r"/[^\s\"'`;:=,|&<>()$]+")
"""Matches an absolute path in a command or a variable."""


class Sandbox:
    """A job's view of the machine."""

    def __init__(
        self, job: JobPaths, request: Mapping[str, Any], start_beside: Callable[[], None] | None = None
    ) -> None:
        if not (prepared := find_recipe(job)):  # The machine may have no room for another open file, for example.
            raise Failure("not_sealed", "the file that says what the job may see cannot be read")
        self._job = job
        self._parent = os.getpid()
        self._start_beside = start_beside
        self._gpus = read_gpus(prepared)
        # Stages that make an environment need the network.
        self._has_network = prepared.get("network") != "none" or request.keys() >= prepared.keys()
        self._scratch = {place.resolve() for place in SCRATCH if place.is_dir()}
        covers: Iterable[Path] = map(Path, (*find_homes(), "/run", job.workspace, *(prepared.get("private") or ())))
        covers = (*covers, *SCRATCH, *find_open_folders(), *find_links(job.workspace))
        places = {cover: cover.resolve() for cover in covers}
        named = frozenset({*places, *places.values()} - {Path("/")})
        self._covers = named | find_same(named)
        # A job gets these folders as its own, so nothing in them has to be hidden. A cover can be a link into one.
        own = [*self._scratch, *SCRATCH, SHARED_MEMORY, SHARED_MEMORY.resolve()]
        inside = {path for path in self._covers if is_inside(path, own) or is_inside(places.get(path, path), own)}
        self._hidden = outermost(self._covers - inside)
        self._writable = find_writable(prepared.get("writable") or (), self._hidden)
        self._kept = self._find_kept((prepared, request))

    def enter(self, folder: Path, shown: Sequence[Path] = ()) -> None:
        """Move this process into the sandbox, just before it executes a command. Raises `OSError`.

        The process also sees the folders `shown`, and can write to them.
        """
        arrange = partial(self._arrange, shown)
        enter_namespaces(self._parent, arrange, network=self._has_network, start_beside=self._start_beside)
        # Enter the folder again: from the old working directory, `..` leads under the covers.
        os.chdir(folder)

    def do(self, work: Callable[[], Any]) -> Any:
        """Do jobd's own work on the job's files, in a child process in the sandbox. Returns what `work` returns.

        Another job may change these files at the same time. In the sandbox, a link leads only to what the job can see.
        `work` must not read control files, but can use one folder among them, for git. What it returns must fit
        into JSON. Raises what `work` raises, as a `Failure` or an `OSError`. Raises `Shortage` if the machine has no
        room for the child, and `Failure` if the child cannot enter the sandbox or dies.
        """
        try:
            answer = ask_child(lambda: self._answer(work))
        except OSError as error:
            raise Shortage(explain_shortage(error.errno)) from None
        if answer is None:
            raise Failure("internal", "the process that works on the job's files was killed")
        if "refused" in answer:
            raise explain_refusal(*answer["refused"])
        if "os_error" in answer:
            raise OSError(*answer["os_error"])
        if "error" in answer:
            raise Failure(answer["error"], answer["message"])
        return answer["result"]

    def _answer(self, work: Callable[[], Any]) -> dict[str, Any]:
        try:
            # The namespace's first process stays in this folder. /proc must not lead through it under the covers.
            os.chdir(ROOT)
            self.enter(ROOT, shown=[self._job.git])
            close_others()
        except OSError as error:
            return {"refused": [error.errno, str(error)]}
        # A link could lead git to the file in /proc that has git's own environment.
        for name in {*os.environ} - {"PATH"}:
            del os.environ[name]
        try:
            return {"result": work()}
        except OSError as error:
            return {"os_error": [error.errno, error.strerror or str(error), error.filename and str(error.filename)]}
        except Exception as error:
            return describe(error)

    def _find_kept(self, requests: Iterable[Mapping[str, Any]]) -> list[Path]:
        """Paths under a cover that stay visible, read-only."""
        named = [path for request in requests for text in list_commands(request) for path in PATHS.findall(text)]
        named += os.environ.get("PATH", os.defpath).split(":")
        # Jobs can write to these folders, so links in them must not decide what is visible.
        theirs = [folder.resolve() for folder in (self._job.folder.parent, self._job.place)]
        tools = find_tools(choose_named(named, theirs), self._covers, frozenset(self._writable))
        clone = find_own_clone(self._job)
        shown = {path for place in (clone, self._job.companions) for path in (place, place.resolve())}
        kept = {*shown, Path("/etc/resolv.conf").resolve(), *tools}
        return outermost(path for path in kept if is_inside(path, self._covers))

    def _arrange(self, shown: Sequence[Path]) -> None:
        mine = (self._job.root, self._job.place, *self._writable, *shown)
        own = {*mine, *(path.resolve() for path in mine)}  # Git stores resolved paths.
        # Opened before the covers are mounted, so that each can still be reached through its descriptor.
        sources = {path: os.open(path, os.O_PATH) for path in (*self._kept, *own) if is_there(path)}
        tmp = open_folder(self._job.tmp)
        covers = [path for path in self._hidden if path.is_dir()]
        make_all_read_only()
        for cover in covers:
            with unless_gone(cover):
                mount_empty(cover)
        for file in (path for path in self._hidden if path.is_file()):
            with unless_gone(file):
                bind(NOTHING, file, writable=False)
        for place in self._scratch:
            if tmp is None or any(is_inside(path, [place]) for path in sources):
                mount_empty(place, OPEN_TO_ALL)
            else:
                bind(Path(f"/proc/self/fd/{tmp}"), place, writable=True)
        if SHARED_MEMORY.is_dir():
            mount_empty(SHARED_MEMORY, OPEN_TO_ALL)
        for path, source in sources.items():
            bind_at(source, path, writable=path in own)
        for cover in covers:
            with unless_gone(cover):
                make_read_only(cover)
        for device in (*find_others(self._gpus), FUSE, *(() if self._has_network else NETWORK_DEVICES)):
            if device.exists():
                close_device(device)
        with unless_forbidden():  # If refused, terminals of the account's other sessions stay visible.
            how = f"newinstance,ptmxmode=0666,mode=0620,max={MAX_TERMINALS}"
            mount("devpts", TERMINALS, "devpts", NO_SUID | NO_EXEC, how)
        with unless_forbidden():  # Some containers refuse: /proc then shows others' names (docs/machines.md).
            mount("proc", Path("/proc"), "proc")
        for path in filter(Path.exists, KERNEL_SETTINGS):
            with unless_forbidden():  # If refused, only an account that is root can write there.
                bind(path, path, writable=False)


@contextmanager
def unless_gone(path: Path) -> Iterator[None]:
    """Ignore an error if the folder or file to be hidden is gone. Programs of the machine may remove it at any time."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMOVED:
            raise
        deadline = time.monotonic() + REMOVAL_S
        while path.exists():
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)


def find_homes() -> Iterator[str]:
    """The account's home, from its name and from $HOME. In a container an account may have no name."""
    with suppress(KeyError):
        yield pwd.getpwuid(os.getuid()).pw_dir
    yield os.environ.get("HOME", "/")


def find_open_folders() -> Iterator[Path]:
    """The system's world-writable folders."""
    for path in (path for folder in SHARED if folder.is_dir() for path in folder.iterdir()):
        with suppress(OSError):
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IWOTH:
                yield path.resolve()


def find_same(covers: Collection[Path]) -> frozenset[Path]:
    """Other paths at which folders and files of covers are visible, because something is mounted twice."""
    mounts = find_mounts()
    found = {place for cover in covers if cover == cover.resolve() for place in find_other_places(cover, mounts)}
    return frozenset(place for place in found if not is_inside(place, covers)) - {Path("/")}


def find_writable(folders: Iterable[str], hidden: Collection[Path]) -> list[Path]:
    """The operator's folders that every job may write to, if they exist.

    Raises `Failure` if a folder contains what jobs must not reach, or is hidden itself. Raises it if jobs could put a
    link in a folder's place, because its path contains a link, or because it is inside another of the folders. Raises
    it if something is mounted inside a folder: anyone who can delete the folder of that mount can unmount it in all
    namespaces (mount(8)).
    """
    found = [Path(folder) for folder in folders if is_there(Path(folder))]
    for folder in found:
        if folder != folder.resolve():
            raise Failure(
                "not_sealed", f"the folder {folder} in `writable` is reached by a link: name {folder.resolve()}"
            )
        if is_inside(folder, hidden) or any(is_inside(cover, [folder]) for cover in hidden):
            raise Failure(
                "not_sealed", f"the folder {folder} in `writable` contains what no job may reach, or is hidden"
            )
        if is_inside(folder, {*found} - {folder}):
            raise Failure("not_sealed", f"the folder {folder} in `writable` is in another one")
        inner = next((mount.place for mount in find_mounts() if folder in mount.place.parents), None)
        if inner:
            raise Failure("not_sealed", f"a file system is mounted at {inner}, in the folder {folder} of `writable`")
    return found


def find_links(folder: Path) -> list[Path]:
    """The links in a folder: an operator may have put `jobs`, for example, on another disk."""
    return [path for path in folder.iterdir() if path.is_symlink()] if folder.is_dir() else []


def is_sandboxed(job: JobPaths) -> bool:
    """Whether a job has a sandbox, as decided when it was prepared. Raises `Failure` if that cannot be read."""
    sealed = read_json(job.environment_file).get("sealed")
    if not isinstance(sealed, bool):  # The machine may have no room for another open file, for example.
        raise Failure("not_sealed", "the file that says whether the job has a sandbox cannot be read")
    return sealed


def open_sandbox(
    job: JobPaths, request: Mapping[str, Any], start_beside: Callable[[], None] | None = None
) -> Sandbox | None:
    """The sandbox of a job. None if the job has none. `start_beside` starts another process beside the command."""
    return Sandbox(job, request, start_beside) if is_sandboxed(job) else None


def list_commands(request: Mapping[str, Any]) -> Iterator[str]:
    """The operator's commands and variables in a request. They contain no text from strangers."""
    building = ("create_venv", "setup", "update", "rebuild", "smoke_test", "imports")
    for name in (*building, "lint", "argv", "script_argv", "test_argv"):
        yield from request.get(name) or ()
    yield from (request.get("env") or {}).values()


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths that are not inside another one."""
    found = {*paths}
    return [path for path in sorted(found) if not is_inside(path, found - {path})]


def open_folder(path: Path) -> int | None:
    """Open a folder, and return its descriptor. None if a job has put something else in its place."""
    with suppress(OSError):
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def bind_at(source: int, path: Path, *, writable: bool) -> None:
    """Mount what a descriptor refers to at a path. Creates the path, because covers are empty. Raises `OSError`."""
    there = Path(f"/proc/self/fd/{source}")
    (path if there.is_dir() else path.parent).mkdir(parents=True, exist_ok=True)
    if not there.is_dir():
        path.touch()
    bind(there, path, writable=writable)
