"""Trees, of which environments are made: layers that never change, and a top folder for new writes.

A tree always appears at its *place*, one path for all jobs of a repository, because built files contain that path:
scripts in their first line, build systems in all their files. How it gets there depends on the machine.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..files import Failure
from ..sandbox.namespaces import bind, mount_overlay, unmount

WAYS: Mapping[str, str] = {
    "overlay": "its base is mounted under it and never copied (overlay mount)",
    "copy": "a copy of its base, mounted at the base's path",
    "slot": "a copy of its base, at a path of the slot",
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


def make_tree(tree: Tree) -> None:
    """Create a tree; remove the remains of an earlier one. Raises `Failure`."""
    discard(tree.top)
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
        discard(tree.place)
        target = tree.place
    target.mkdir(mode=0o700)
    for layer in tree.layers:
        copy(layer, target)


def mount_tree(tree: Tree) -> None:
    """Make a tree visible at its place, on top of an earlier mount. The process has its own mounts if the method needs
    them.

    Raises `Failure`.
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
            tree.place.rename(tree.content)
        else:
            unmount(tree.place)
    except OSError as error:
        raise Failure("environment_unusable", f"the environment cannot be unmounted: {error.strerror}") from None


def copy(source: Path, target: Path) -> None:
    """Copy a folder's content into another folder; share blocks if the file system can. Raises `Failure`."""
    words = ["cp", "--archive", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(words, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        said = os.fsdecode(done.stderr).splitlines()[-1:]
        full = os.strerror(28) in "".join(said)
        raise Failure("disk_full" if full else "environment_unusable", f"the base cannot be copied: {''.join(said)}")


def discard(path: Path) -> None:
    """Remove a file or folder, whatever its permissions are. Raises `Failure` if that fails."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.exists():
        return
    open_up(path)
    removed = subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.PIPE, check=False)
    if path.exists():
        lines = os.fsdecode(removed.stderr).splitlines()
        raise Failure("not_removed", f"the job's folder cannot be removed: {lines[-1] if lines else 'no reason'}")


def move_to_trash(path: Path, trash: Path) -> None:
    """Move a large tree out of the way at once; `empty_trash` removes it later. Raises `OSError`."""
    trash.mkdir(mode=0o700, exist_ok=True)
    if path.exists():
        path.rename(trash / secrets.token_hex(8))


def empty_trash(trash: Path) -> None:
    """Delete the trash in a process that outlives this one. Not for stages: their processes are killed at the end."""
    if not trash.is_dir() or not any(trash.iterdir()):
        return
    remove = 'find "$0" -type d ! -perm -700 -exec chmod u+rwx {} \\; ; rm -rf "$0"/*'
    subprocess.Popen(
        ["/bin/sh", "-c", remove, str(trash)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # Nobody waits for it.


def open_up(folder: Path) -> None:
    """Make everything in a folder readable and writable for us. `find` walks trees of any depth.

    Changes only what needs it, because an overlay copies each file that is changed.
    """
    closed = ["(", "-type", "d", "!", "-perm", "-700", ")", "-o", "(", "-type", "f", "!", "-perm", "-600", ")"]
    # One by one, so that a folder is open before find enters it.
    words = ["find", str(folder), "(", *closed, ")", "-exec", "chmod", "u+rwX", "--", "{}", ";"]
    subprocess.run(words, stderr=subprocess.DEVNULL, check=False)
