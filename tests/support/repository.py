"""The demo's repository, made once for all tests of a process."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from bot.demo.repository import make_repository


@functools.cache
def _make_pattern() -> tuple[Path, str]:
    folder = tempfile.mkdtemp(prefix="ptq-pattern-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    git_dir = Path(folder) / "widgets.git"
    return git_dir, make_repository(git_dir)


def copy_repository(git_dir: Path) -> str:
    """The same as `make_repository`, which takes six processes. It leaves no worktree beside the repository."""
    pattern, commit = _make_pattern()
    shutil.copytree(pattern, git_dir)
    return commit
