"""The trees that environments are made of: layers that nobody changes any more, and a top for what is written now.

A tree is always seen at its *place*, one path for all jobs of a repository, for what is built there holds that path:
scripts in their first line, build systems in every file of theirs. How a tree comes there depends on the machine.
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
    "overlay": "its base lies below it and is never copied (overlay mount)",
    "copy": "a copy of its base, mounted at the base's path",
    "slot": "a copy of its base, at a path of the slot's own",
}
"""The ways in which a tree comes to its place, best first, in words for people.

The first two need namespaces: jobs have one place, and each sees its own tree there. By the last one, two jobs must
never be in one slot; and the base is made once for each slot.
"""


class Tree(NamedTuple):
    """A tree, wherever it is seen."""

    way: str
    place: Path
    layers: tuple[Path, ...]
    """From the newest to the oldest. By any other way than `overlay` one holds everything, and there is no other."""
    top: Path
    """A folder on the same disk, for what this tree has of its own."""

    @property
    def content(self) -> Path:
        """What this tree has of its own: beyond the layers, or everything."""
        return self.top / "content"


def put_on_top(tree: Tree, top: Path) -> Tree:
    """A tree of its own on top of all that another one has, which nobody may change from then on."""
    layers = (tree.content, *tree.layers) if tree.way == "overlay" else (tree.content,)
    return Tree(tree.way, tree.place, layers, top)


def make(tree: Tree) -> None:
    """Make a tree, in place of what may be left there of another one. Raises `Failure`."""
    discard(tree.top)
    tree.top.mkdir(mode=0o700)
    if tree.place.parent.is_dir() and not tree.place.parent.is_symlink():
        tree.place.parent.chmod(0o700)  # A job of the slot before may have closed it.
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


def show(tree: Tree) -> None:
    """Let this process, which has mounts of its own where the way needs them, see a tree at its place.

    What was seen there before is covered. Raises `Failure`.
    """
    try:
        if tree.way == "overlay":
            # Where there is no layer yet, there is an empty one: there must be one.
            nothing = tree.top / "nothing"
            if not tree.layers:
                nothing.mkdir(mode=0o700, exist_ok=True)
            mount_overlay(tree.place, tree.layers or (nothing,), tree.content, tree.top / "work")
        elif tree.way == "copy":
            bind(tree.content, tree.place, writable=True)
    except OSError as error:
        raise Failure("environment_unusable", f"the environment cannot be mounted: {error.strerror}") from None


def take_away(tree: Tree) -> None:
    """Let a tree be seen no more, and what it has of its own be in `content`. Raises `Failure`."""
    try:
        if tree.way == "slot":
            tree.place.rename(tree.content)
        else:
            unmount(tree.place)
    except OSError as error:
        raise Failure("environment_unusable", f"the environment cannot be put away: {error.strerror}") from None


def copy(source: Path, target: Path) -> None:
    """Copy what is in one folder into another, sharing blocks where the file system can. Raises `Failure`."""
    words = ["cp", "--archive", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(words, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        said = os.fsdecode(done.stderr).splitlines()[-1:]
        full = os.strerror(28) in "".join(said)
        raise Failure("disk_full" if full else "environment_unusable", f"the base cannot be copied: {''.join(said)}")


def discard(path: Path) -> None:
    """Remove whatever is at a path, however it was left. Raises `Failure` when it cannot go."""
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


def throw_away(path: Path, trash: Path) -> None:
    """Have a large tree out of the way at once. It is gone once `empty` was called. Raises `OSError`."""
    trash.mkdir(mode=0o700, exist_ok=True)
    if path.exists():
        path.rename(trash / secrets.token_hex(8))


def empty(trash: Path) -> None:
    """Have what was thrown away removed by somebody who outlives us. Not for a stage: with it all of its own ends."""
    if not trash.is_dir() or not any(trash.iterdir()):
        return
    remove = 'find "$0" -type d ! -perm -700 -exec chmod u+rwx {} \\; ; rm -rf "$0"/*'
    subprocess.Popen(
        ["/bin/sh", "-c", remove, str(trash)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # Nobody will wait for it.


def open_up(folder: Path) -> None:
    """Let us read everything below a folder, whatever modes it was left with. Findutils walk trees of any depth.

    Only what needs it is changed: in an overlay, everything that is changed is copied.
    """
    closed = ["(", "-type", "d", "!", "-perm", "-700", ")", "-o", "(", "-type", "f", "!", "-perm", "-600", ")"]
    # One by one, and so a folder is open before it is entered.
    words = ["find", str(folder), "(", *closed, ")", "-exec", "chmod", "u+rwX", "--", "{}", ";"]
    subprocess.run(words, stderr=subprocess.DEVNULL, check=False)
