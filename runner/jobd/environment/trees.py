"""Trees. An environment is a tree: layers that never change, and a top folder for new writes.

A tree always appears at its *place*, one path for all jobs of a repository, because built files contain that path:
scripts in their first line, build systems in all their files. How a tree gets to its place depends on the machine.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..files import MACHINE_ERRORS, Failure, is_full
from ..locks import locked
from ..safe_paths import give_access, is_closed, reopen, walk
from ..sandbox.namespaces import bind, mount_overlay, unmount

REMOVE_S = 20.0
"""How long a stage or a request may delete a tree, in seconds. After that, the rest of the tree goes to the trash."""

EMPTY_S = 86_400.0
"""How long the process that empties the trash may delete one tree, in seconds."""

MAX_DESCRIPTORS = 1024
"""A process of jobd has fewer files open than this."""

WAYS: Mapping[str, str] = {
    "overlay": "its base is mounted under it and never copied",
    "copy": "it is a copy of its base, mounted at the base's path",
    "slot": "it is a copy of its base, at a path of the slot",
}
"""How a tree gets to its place: the methods, best first, with descriptions for people.

`overlay` and `copy` need namespaces: all jobs have the same place, and each sees its own tree there. With `slot`, two
jobs must never share a slot, and each slot has its own base.
"""


class Tree(NamedTuple):
    """A tree, mounted or not."""

    way: str
    place: Path
    layers: tuple[Path, ...]
    """From the newest to the oldest.

    With another method than `overlay` there is at most one, which holds everything.
    """
    top: Path
    """A folder on the same disk for this tree's own files."""

    @property
    def content(self) -> Path:
        """This tree's own files: those on top of the layers, or all."""
        return self.top / "content"


def put_on_top(tree: Tree, top: Path) -> Tree:
    """A new tree on top of another one, which must not change from then on."""
    layers = (tree.content, *tree.layers) if tree.way == "overlay" else (tree.content,)
    return Tree(tree.way, tree.place, layers, top)


def make_tree(tree: Tree, trash: Path) -> None:
    """Create a tree; remove the remains of an earlier one. Raises `Failure`."""
    discard(tree.top, trash)
    tree.top.mkdir(mode=0o700)
    if tree.place.parent.is_dir() and not tree.place.parent.is_symlink():
        tree.place.parent.chmod(0o700)  # The slot's previous job may have removed our permissions.
    tree.place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if tree.way == "overlay":
        tree.content.mkdir(mode=0o700)
        (tree.top / "work").mkdir(mode=0o700)
        return
    target = tree.content
    if tree.way == "slot":
        discard(tree.place, trash)
        target = tree.place
    target.mkdir(mode=0o700)
    for layer in tree.layers:
        copy(layer, target)


def mount_tree(tree: Tree) -> None:
    """Make a tree visible at its place, on top of an earlier mount. Raises `Failure`.

    With `overlay` and `copy`, this process must have its own mounts.
    """
    try:
        if tree.way == "overlay":
            # An overlay needs at least one layer: the first tree gets an empty one.
            nothing = tree.top / "nothing"
            if not tree.layers:
                nothing.mkdir(mode=0o700, exist_ok=True)
            mount_overlay(tree.place, tree.layers or (nothing,), tree.content, tree.top / "work")
        elif tree.way == "copy":
            bind(tree.content, tree.place, writable=True)
    except OSError as error:
        raise Failure("environment_unusable", f"the environment cannot be mounted: {error.strerror}") from None


def unmount_tree(tree: Tree) -> None:
    """Remove a tree from its place; its own files are then in `content`. Raises `Failure`."""
    try:
        if tree.way == "slot":
            reopen(tree.place)  # A folder that we cannot write to cannot be moved, either.
            tree.place.rename(tree.content)
        else:
            unmount(tree.place)
    except OSError as error:
        raise Failure("environment_unusable", f"the environment cannot be unmounted: {error.strerror}") from None


def copy(source: Path, target: Path) -> None:
    """Copy a folder's content into another folder; share blocks if the file system can. Raises `Failure`."""
    words = ["cp", "--archive", "--reflink=auto", "--", f"{source}/.", str(target)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}) as process:
        assert process.stderr
        (last,) = deque(process.stderr, 1) or [b""]  # There may be one line for each of millions of files.
    if process.returncode:
        said = os.fsdecode(last).rstrip("\n")
        reason = f"the base cannot be copied:\n{said}"
        if is_full(target, said):
            raise Failure("disk_full", reason)
        # Code of the repository may have closed a folder of the base, or made a path that is too long.
        is_of_machine = any(said.endswith(os.strerror(number)) for number in MACHINE_ERRORS)
        raise Failure("environment_unusable" if is_of_machine else "files_unusable", reason)


def discard(path: Path, trash: Path, patience_s: float = REMOVE_S) -> None:
    """Remove a file or folder, whatever its permissions are. A tree that takes longer goes to the trash.

    Raises `Failure` if something is left.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.exists():
        return
    try:
        reason = remove_tree(path, time.monotonic() + patience_s)
    except Failure:  # It is too large to be deleted now.
        try:
            move_to_trash(path, trash)
        except OSError as error:
            reason = error.strerror or ""
    if path.exists():
        raise Failure("not_removed", f"the job's folder cannot be removed: {reason or 'no reason'}")


def remove_tree(folder: Path, deadline: float) -> str:
    """Delete a folder as far as possible, and return the last message of `rm`. Raises `Failure` at the deadline."""
    _run_rm(folder, deadline, subprocess.DEVNULL)
    if not folder.exists():
        return ""
    # Only now: most trees have no closed folders.
    open_up(folder, deadline)
    lines = os.fsdecode(_run_rm(folder, deadline, subprocess.STDOUT)).splitlines()
    return lines[-1] if lines else ""


def _run_rm(folder: Path, deadline: float, errors: int) -> bytes:
    # The pipe tells at once when `rm` has ended, also if it says nothing.
    words, left_s = ["rm", "-rf", "--", str(folder)], max(deadline - time.monotonic(), 0.0)
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=errors, timeout=left_s, check=False).stdout
    except subprocess.TimeoutExpired:
        raise Failure("timed_out", "the job's files could not be deleted in time") from None


def move_to_trash(path: Path, trash: Path) -> None:
    """Move a large tree out of the way at once; `empty_trash` removes it later. Raises `OSError`."""
    trash.mkdir(mode=0o700, exist_ok=True)
    if path.exists():
        give_access(str(path))  # A folder that we cannot write to cannot be moved, either.
        path.rename(trash / secrets.token_hex(8))


def empty_trash(trash: Path) -> None:
    """Delete the trash in a process that outlives this one, unless another process is deleting it.

    A stage must not call this, because its processes are killed when it ends.
    """
    if not trash.is_dir() or not any(trash.iterdir()) or os.fork():
        return
    with suppress(BaseException):
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.closerange(0, MAX_DESCRIPTORS)
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        with locked(trash.with_name(f"{trash.name}.lock"), 0.0):
            _empty(trash)
    os._exit(0)


def _empty(trash: Path) -> None:
    """Delete the trees in the trash, and those that are added meanwhile. Each tree is tried once."""
    tried = set[Path]()
    while left := {*trash.iterdir()} - tried:
        for path in left:
            with suppress(Failure):
                remove_tree(path, time.monotonic() + EMPTY_S)
        tried |= left


def open_up(folder: Path, deadline: float) -> None:
    """Make everything in a folder readable for us, at any depth. Raises `Failure` at the deadline.

    Changes only what needs it, because an overlay copies each file that is changed.
    """
    with suppress(OSError):
        give_access(str(folder))
    for entry in walk(folder):
        if time.monotonic() > deadline:
            raise Failure("timed_out", "the folders that the job has closed could not be opened in time")
        if is_closed(entry.about.st_mode):
            with suppress(OSError):
                give_access(entry.name, entry.folder)
