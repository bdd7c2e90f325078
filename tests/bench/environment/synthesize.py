"""Trees of a given size, the same each time: `python synthesize.py packages|build FOLDER FILES BYTES`.

Of the standard library alone, for jobs run it in their setup.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

PER_FOLDER = 40
IMPORTED = 400
"""Modules that the smoke test imports; of torch it is some more."""

LIBRARIES = 6
"""Files that hold two thirds of a virtual environment's bytes, as torch's do."""


class Text:
    """Text for many files, no two the same, that git can compress about as well as source."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        words = [self._random.randbytes(3).hex() for _ in range(2_000)]
        self._pool = " ".join(self._random.choices(words, k=100_000))

    def take(self, size: int) -> str:
        """About so many characters, between a fifth and twice as many."""
        wanted = int(size * self._random.uniform(0.2, 1.8))
        begin = self._random.randrange(len(self._pool) - 1)
        text = self._pool[begin : begin + wanted]
        return text + self._pool * ((wanted - len(text)) // len(self._pool)) if len(text) < wanted else text


def write_tree(folder: Path, files: int, size: int, seed: str, suffix: str = ".cpp") -> None:
    """Write so many files of about `size` bytes each, in folders of folders."""
    text = Text(seed)
    for number in range(files):
        path = folder / f"part_{number // PER_FOLDER // 12:03}" / f"unit_{number // PER_FOLDER:04}"
        if number % PER_FOLDER == 0:
            path.mkdir(parents=True, exist_ok=True)
        (path / f"file_{number:05}{suffix}").write_text(f"// {number}\n{text.take(size)}\n")


def write_packages(folder: Path, files: int, size: int) -> None:
    """Write a folder of packages: `import synthetic` reads some hundred modules. `size` is that of all together."""
    text, package = Text("packages"), folder / "synthetic"
    write_bytes(package / "libraries", LIBRARIES, size * 2 // 3 // LIBRARIES)
    for number in range(files):
        path = package / f"group_{number // PER_FOLDER:04}"
        if number % PER_FOLDER == 0:
            path.mkdir(parents=True)
        (path / f"module_{number:05}.py").write_text(f'"""{text.take(size // 3 // files)}"""\nVALUE = {number}\n')
    modules = [f"from .group_{n // PER_FOLDER:04} import module_{n:05}" for n in range(min(IMPORTED, files))]
    (package / "__init__.py").write_text("\n".join([*modules, ""]))


def write_build(folder: Path, files: int, size: int) -> None:
    """Write what a build leaves behind, of `size` bytes together, with the path of its place in some of it."""
    write_bytes(folder / "objects", files, size // files)
    for name in ("build.ninja", "CMakeCache.txt", *(f"part_{number}.cmake" for number in range(200))):
        (folder / name).write_text(f"SOURCE={folder.parent}\n" * 50)


def write_bytes(folder: Path, files: int, size: int) -> None:
    """Write files that no one can compress."""
    folder.mkdir(parents=True)
    noise = random.Random("bytes").randbytes(1 << 20)
    for number in range(files):
        with (folder / f"{number:05}.o").open("wb") as file:
            file.write(f"{number}\n".encode())
            for begin in range(0, size, len(noise)):
                file.write(noise[: size - begin])


if __name__ == "__main__":
    kind, place, count, total = sys.argv[1:]
    os.umask(0o022)
    {"packages": write_packages, "build": write_build}[kind](Path(place), int(count), int(total))
