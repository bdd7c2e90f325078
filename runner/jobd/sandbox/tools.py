"""Finds what has to be there for a program to run that lies below a covered folder: a person's home holds many.

`~/.local/bin/claude` is a link into `~/.local/share`; a `python` of pyenv's is nothing without all of `~/.pyenv`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

BIN = ("bin", "sbin", "shims")
INSTALLED = ("lib", "lib64", "libexec", "versions", "conda-meta")
"""What beside a folder of programs shows that the two belong together; beside `~/.cargo/bin` lie keys."""


@lru_cache(maxsize=1)
def find_tools(named: frozenset[Path], covers: frozenset[Path]) -> frozenset[Path]:
    """The folders, and single files, below covers that programs at these paths, and our own Python, need.

    A path may be a program or a folder of them; links in such a folder are followed. No job may have written there,
    so one look is enough for all commands of a stage.
    """
    waiting, seen, found = [*named, Path(sys.executable)], set[Path](), set[Path]()
    while waiting:
        path = Path(os.path.normpath(waiting.pop()))
        if path in seen or not is_there(path):
            continue
        seen.add(path)
        waiting += list_next(path, covers)
        if is_below(path, covers) and (place := find_installation(path, covers)):
            found.add(place)
            waiting.append(place / "bin")
    return frozenset(found)


def list_next(path: Path, covers: Iterable[Path]) -> Iterator[Path]:
    """Where a link leads; and where those in a folder of programs lead, when that is below a cover."""
    yield path.resolve()
    if path.is_symlink():
        yield path.parent / path.readlink()
    if path.is_dir() and os.access(path, os.R_OK):
        with os.scandir(path) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
        yield from (Path(link) for link in links if is_below(find_end(link), covers))


def find_end(path: str) -> str:
    """Where links lead in the end, as the kernel says it, for there are many of them; empty where that is nowhere."""
    with suppress(OSError):
        end = os.open(path, os.O_PATH)
        try:
            return str(Path(f"/proc/self/fd/{end}").readlink())
        finally:
            os.close(end)
    return ""


def find_installation(path: Path, covers: Iterable[Path]) -> Path | None:
    """What belongs to a program, or a folder: never all of a cover, nor what it shares with others."""
    if "node_modules" in path.parts:
        return Path(*path.parts[: path.parts.index("node_modules") + 1])
    folder = path if path.is_dir() else path.parent
    whole = folder.name in BIN and any((folder.parent / name).is_dir() for name in INSTALLED)
    candidates = [folder.parent] if whole and folder.parent.name != ".local" else []
    if folder == path or not folder.name.startswith("."):  # `~/.ssh/id`: its neighbours are not asked for.
        candidates.append(folder)
    candidates.append(path)
    return next((place for place in candidates if not any(cover.is_relative_to(place) for cover in covers)), None)


def is_below(path: Path | str, folders: Iterable[Path]) -> bool:
    """Whether a path is one of the folders, or below one.

    Compares text: every command of a job asks this of a thousand links, for which `Path` takes twenty times as long.
    """
    whole = f"{path}/"
    return any(whole.startswith(f"{str(folder).rstrip('/')}/") for folder in folders)


def is_there(path: Path) -> bool:
    """Whether there is something that we may look at."""
    return os.access(path, os.F_OK)
