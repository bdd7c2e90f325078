"""Finds the files that a program needs to run, if it is inside a hidden folder, such as a person's home.

For example, `~/.local/bin/claude` is a link into `~/.local/share`, and a `python` of pyenv needs all of `~/.pyenv`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

BIN = ("bin", "sbin", "shims")
MAX_LINKS = 40
"""How many links Linux follows on the way to one path (path_resolution(7))."""

INSTALLED = ("lib", "lib64", "libexec", "versions", "conda-meta")
"""If one of these is beside a folder of programs, their parent is an installation. `~/.cargo` also holds keys."""


def choose_named(named: Iterable[str], theirs: Collection[Path]) -> frozenset[Path]:
    """The absolute paths of `named` that this account can see, and that do not lead into one of the folders `theirs`.

    A link that the account may not read, such as `/proc/1/root`, counts as missing.
    """
    return frozenset(
        path
        for path in map(Path, named)
        if path.is_absolute() and is_there(path) and not is_inside(os.path.realpath(path), theirs)
    )


@lru_cache(maxsize=1)
def find_tools(
    named: frozenset[Path], covers: frozenset[Path], writable: frozenset[Path] = frozenset()
) -> frozenset[Path]:
    """The folders and files under covers that the programs at these paths, and this Python, need.

    A path may be a program or a folder of programs. Links in a folder of programs are followed. Links in the folders
    `writable` are not followed, because jobs can make them. So the result is valid for all commands of a stage.
    """
    waiting, seen, found = [*named, Path(sys.executable)], set[Path](), set[Path]()
    while waiting:
        path = Path(os.path.normpath(waiting.pop()))
        if path in seen or not is_there(path) or leads_through(path, writable):
            continue
        seen.add(path)
        waiting += list_next(path, covers)
        if is_inside(path, covers) and (place := find_installation(path, covers)):
            found.add(place)
            waiting.append(place / "bin")
    return frozenset(found)


def list_next(path: Path, covers: Iterable[Path]) -> Iterator[Path]:
    """The target of a path and, if it is a folder of programs, the links in it whose targets are under a cover."""
    yield (end := path.resolve())
    if path.is_symlink():
        yield path.parent / path.readlink()
    if path == end and path.is_dir() and os.access(path, os.R_OK):
        with os.scandir(path) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
        beginnings = list_beginnings(covers)
        yield from (Path(link) for link in links if f"{find_end(link)}/".startswith(beginnings))


def leads_through(path: Path, folders: Collection[Path]) -> bool:
    """Whether the way to a path leads into one of these folders. Follows links, and is True if there are too many."""
    if not folders:
        return False
    at, left, links = Path("/"), [*path.parts[1:]], 0
    while left:
        name = left.pop(0)
        at = at.parent if name == ".." else at / name
        if is_inside(at, folders):
            return True
        if at.is_symlink():
            links, target = links + 1, at.readlink()
            left = [*target.parts, *left]
            at = Path("/") if target.is_absolute() else at.parent
        if links > MAX_LINKS:
            return True
    return False


def find_end(path: str) -> str:
    """The final target of a link. Empty if the link is broken. The kernel resolves it, because there are many links.

    Also empty if the target is in the same folder: if that target is a link, too, its own end is found separately.
    """
    with suppress(OSError):
        target = os.readlink(path)  # noqa: PTH115 - `Path` takes several times as long
        if "/" not in target and target not in (".", ".."):
            return ""
        end = os.open(path, os.O_PATH)
        try:
            return os.readlink(f"/proc/self/fd/{end}")  # noqa: PTH115
        finally:
            os.close(end)
    return ""


def find_installation(path: Path, covers: Iterable[Path]) -> Path | None:
    """The folder or file that a program needs. It is never a whole cover, nor a folder that other programs share."""
    if "node_modules" in path.parts:
        return Path(*path.parts[: path.parts.index("node_modules") + 1])
    folder = path if path.is_dir() else path.parent
    whole = folder.name in BIN and any((folder.parent / name).is_dir() for name in INSTALLED)
    candidates = [folder.parent] if whole and folder.parent.name != ".local" else []
    if folder == path or not folder.name.startswith("."):  # `~/.ssh/id`: its neighbours are not needed.
        candidates.append(folder)
    candidates.append(path)
    return next((place for place in candidates if not any(cover.is_relative_to(place) for cover in covers)), None)


def is_inside(path: Path | str, folders: Iterable[Path]) -> bool:
    """Whether a path is one of the folders, or inside one.

    Compares text: every command of a job checks a thousand links, and `Path` would take twenty times as long.
    """
    return f"{path}/".startswith(list_beginnings(folders))


def list_beginnings(folders: Iterable[Path]) -> tuple[str, ...]:
    """How the paths inside these folders begin."""
    return tuple(f"{str(folder).rstrip('/')}/" for folder in folders)


def is_there(path: Path) -> bool:
    """Whether something exists there that this account can see."""
    return os.access(path, os.F_OK)
