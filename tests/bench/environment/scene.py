"""The repository that the bench makes environments of, on a server of git's own; and what makes its environment."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.environment import synthesize
from tests.support.jobd import Repository
from tests.support.writes import make_samples_script

SOURCE_BYTES = 6_000
"""Of a source file, on average."""
VENV_BYTES, BUILD_BYTES = 900_000_000, 400_000_000

TORCH = "torch==2.13.0"

SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    # A commit of many files would begin a collection of its own, in the way of ours.
    **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "gc.auto", "GIT_CONFIG_VALUE_0": "0"},
    **{f"GIT_{who}_{what}": "bench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    **{f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
}


@dataclass(frozen=True)
class Size:
    """How much there is of everything, PyTorch's being 1."""

    scale: float
    submodules: int = 36

    @property
    def files(self) -> int:
        return max(int(15_590 * self.scale), 40)

    @property
    def submodule_files(self) -> int:
        """Of each."""
        return max(int(78_000 / 36 * self.scale), 4)

    @property
    def venv_files(self) -> int:
        return max(int(24_000 * self.scale), 40)

    @property
    def build_files(self) -> int:
        return max(int(4_000 * self.scale), 40)


@dataclass(frozen=True)
class Served(Repository):
    """A repository that a server gives out."""

    address: str

    @property
    def url(self) -> str:
        return self.address


def git(folder: Path, *words: str, stdin: str = "") -> str:
    """Run git. Raises `subprocess.CalledProcessError`."""
    env = {**os.environ, **SETTINGS}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=env, input=stdin, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def make_repositories(served: Path, size: Size) -> Path:
    """Make the repository and its submodules, each of one commit, and the same each time."""
    modules, entries = "", ""
    for number in range(size.submodules):
        name = f"library_{number:02}"
        synthesize.write_tree(served / name, size.submodule_files, SOURCE_BYTES, name)
        commit = commit_all(served / name)
        modules += f'[submodule "{name}"]\n\tpath = third_party/{name}\n\turl = ../{name}\n'
        entries += f"160000 {commit}\tthird_party/{name}\n"
    folder = served / "project"
    synthesize.write_tree(folder, size.files, SOURCE_BYTES, "project")
    (folder / ".gitignore").write_text("/build/\n")
    (folder / ".gitmodules").write_text(modules)
    git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
    git(folder, "update-index", "--add", "--index-info", stdin=entries)
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> str:
    """Commit what lies in a folder, packed as on any server. Submodules are in the index alone."""
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
    git(folder, "add", "--ignore-removal", "--", ".")
    git(folder, "commit", "--quiet", "--message=all")
    git(folder, "gc", "--quiet")
    return git(folder, "rev-parse", "HEAD")


def commit_some(folder: Path, files: int) -> None:
    """Commit a change of so many files, as a day's work is."""
    for path in sorted(folder.rglob("*.cpp"))[:: max(1, len(list(folder.rglob("*.cpp"))) // files)]:
        path.write_text(f"// changed\n{path.read_text()}")
    commit_all(folder)


def make_recipe(size: Size, wheels: Path | None) -> Mapping[str, object]:
    """What an operator's table would say: all that makes a base, with samples for the kinds of write."""
    python = shlex.quote(sys.executable)
    program = f"{python} {shlex.quote(synthesize.__file__)}"
    if wheels:
        pip = f"{python} -m pip --quiet --disable-pip-version-check --python $VIRTUAL_ENV/bin/python"
        install = f"{pip} install --no-index --find-links {shlex.quote(str(wheels))} {TORCH}"
    else:
        site = '"$(echo "$VIRTUAL_ENV"/lib/python*/site-packages)"'
        install = f"{program} packages {site} {size.venv_files} {int(VENV_BYTES * size.scale)}"
    build = f'{program} build "$PTQ_WORKTREE/build" {size.build_files} {int(BUILD_BYTES * size.scale)}'
    return {
        "create_venv": [sys.executable, "-m", "venv", "--without-pip"],
        "setup": [install, build, f"cd build; {make_samples_script()}"],
        "smoke_test": [f"python -c 'import {'torch' if wheels else 'synthetic'}'", 'touch "$PTQ_OUTPUT_DIR/smoke"'],
        "imports": [],
        "submodules": True,
    }


def download_torch(folder: Path) -> Path:
    """Torch's own wheel, and those that it needs. Raises `subprocess.CalledProcessError` where pip cannot bring it."""
    folder.mkdir()
    words = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--dest", str(folder)]
    subprocess.run([*words, TORCH], check=True)
    return folder


def find_programs(*names: str) -> list[str]:
    """Those of the programs that this machine has."""
    return [name for name in names if shutil.which(name)]
