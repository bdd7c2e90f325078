"""A repository's base that was made once, laid out for jobs on other machines as if it had been made there.

A base holds the path of its machine's clone and the repository's address, and its folder is named after both.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.jobd.environment.bases import BaseStore
from runner.jobd.git import find_clone
from tests.support.jobd import Jobd


class MadeBase:
    """The base, by the ways that its machine has."""

    def __init__(self, machine: Jobd, ways: Iterable[str], **recipe: Any) -> None:
        self._machine = machine
        self._recipe = recipe
        self._ways = [way for way in ways if self._make(way)]

    def _make(self, way: str) -> bool:
        job = self._machine.beside()
        made = job.prepare(ways=[way], **self._recipe)
        job.call("clean")
        return bool(made["state"] == "done")

    def lay_out(self, jobd: Jobd) -> None:
        """Have it on another machine, whose repository is the same one at another place."""
        ours, theirs = self._machine, jobd
        clone, new_clone = (find_clone(one.job, one.repository.url) for one in (ours, theirs))
        copy(clone, new_clone)
        for way in self._ways:
            shelf, new_shelf = (BaseStore(one.job, one.prepare_request(**self._recipe), way) for one in (ours, theirs))
            copy(shelf.folder, new_shelf.folder)
            for git in new_shelf.folder.glob("*/worktree/.git"):
                (git / "objects" / "info" / "alternates").write_text(str(new_clone / "objects"))
                config = git / "config"
                config.write_text(config.read_text().replace(ours.repository.url, theirs.repository.url))


def copy(source: Path, target: Path) -> None:
    """Copy a folder to where nothing is, with all links in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", source, target], check=True)
