"""Other ways to make an environment from a base: the predecessor's recipe, and plain copies."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.environment import disk
from tests.bench.environment.figures import Times
from tests.bench.environment.scene import git
from tests.support.writes import WRITES, do_here, make_write_script


class Impossible(Exception):  # noqa: N818 - an answer, and no fault
    """A way that this machine cannot go, and why."""


@dataclass(frozen=True)
class Rival:
    """A way to make an environment in `target` from the base in `base`, which was made at `place`."""

    base: Path
    target: Path
    place: Path
    smoke_test: str

    def make(self) -> None:
        """Make it. Raises `Impossible`."""
        raise NotImplementedError

    def remove(self) -> None:
        """Remove it."""
        disk.remove(self.target)

    def measure(self) -> Times:
        """Make one, try it, remove it. Raises `Impossible`."""
        began = time.monotonic()
        self.make()
        ready = time.monotonic() - began
        env = {**os.environ, "PATH": f"{self.target}/venv/bin:{os.environ['PATH']}"}
        subprocess.run(["/bin/sh", "-ec", self.smoke_test], cwd=self.target / "worktree", env=env, check=True)
        with_smoke_test = time.monotonic() - began
        ended = time.monotonic()
        self.remove()
        return Times(ready, with_smoke_test, time.monotonic() - ended)

    def measure_extra(self) -> tuple[int, int]:
        """Bytes and inodes that one takes beyond the base. Raises `Impossible`."""
        before = disk.count(self.base)
        self.make()
        after = disk.count(self.base, self.target)
        self.remove()
        return after[0] - before[0], after[1] - before[1]

    def write_everywhere(self) -> int:
        """Write in every way that this machine has into one, and return how many these are. Raises `Impossible`."""
        self.make()
        count = 0
        for name in (name for name, write in WRITES.items() if all(map(shutil.which, write.needs))):
            folders = (self.target / name for name in ("worktree/build", "venv", "home"))
            done = do_here(make_write_script(name), *folders)
            assert done.returncode == 0, (name, done.stderr)
            count += 1
        self.remove()
        return count


class Recipe(Rival):
    """What our predecessor does: a git worktree, hard links of all that is large, other paths in what holds paths."""

    def make(self) -> None:
        worktree = self.target / "worktree"
        self.target.mkdir()
        git(self.base / "worktree", "worktree", "add", "--quiet", "--force", "--detach", str(worktree), "HEAD")
        git(worktree, "submodule", "--quiet", "update", "--init", "--recursive")
        for name in ("venv", "home"):
            run("cp", "-al", self.base / name, self.target / name)
        source, build = self.base / "worktree" / "build", worktree / "build"
        if shutil.which("rsync"):
            run("rsync", "--archive", f"--link-dest={source}", f"{source}/", f"{build}/")
        else:
            run("cp", "-al", source, build)
        found = f"cd {self.target}; grep -rlIF {self.place} venv/bin venv/pyvenv.cfg worktree/build/*.* || :"
        paths = subprocess.run(["/bin/sh", "-c", found], stdout=subprocess.PIPE, check=True).stdout.split()
        if paths:
            rewrite = f"s|{self.place}|{self.target}|g"
            run("sed", "-i", rewrite, *(self.target / os.fsdecode(path) for path in paths))

    def remove(self) -> None:
        disk.remove(self.target)
        git(self.base / "worktree", "worktree", "prune")


class Copy(Rival):
    """A new copy of every file. What holds the base's path is left as it is."""

    def make(self) -> None:
        run("cp", "-a", self.base, self.target)


class Reflink(Rival):
    """A new copy of every file, with the base's blocks."""

    def make(self) -> None:
        if not self._works():
            raise Impossible("not possible on this file system")
        run("cp", "-a", "--reflink=always", self.base, self.target)

    def _works(self) -> bool:
        one = self.base / "venv" / "pyvenv.cfg"
        done = subprocess.run(["cp", "--reflink=always", one, self.base.with_name("trial")], capture_output=True)
        self.base.with_name("trial").unlink(missing_ok=True)
        return done.returncode == 0

    def measure_extra(self) -> tuple[int, int]:
        free = disk.find_free(self.base)
        self.make()
        extra, inodes = free - disk.find_free(self.base), disk.count(self.target)[1]
        self.remove()
        return extra, inodes


def run(*words: str | Path) -> None:
    """Run a program. Raises `subprocess.CalledProcessError`."""
    subprocess.run(words, check=True)
