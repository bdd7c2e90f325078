"""That what a machine says of the base commit is what the base commit holds."""

from __future__ import annotations

import pytest

from runner.changes.base_files import FOLDER, BaseFile, check_base
from runner.changes.patch_text import PatchMismatch
from runner.model.job import FileChange

FILE, RUNNABLE, LINK = "100644", "100755", "120000"
BASE = {
    path: BaseFile(mode, "0" * 40)
    for path, mode in {"a.py": FILE, "run": RUNNABLE, "link": LINK, "docs": FOLDER, "docs/x": FILE}.items()
}


@pytest.mark.parametrize(
    ("path", "mode", "old_mode"),
    [
        ("a.py", FILE, FILE),
        ("a.py", LINK, FILE),
        ("run", FILE, RUNNABLE),
        ("link", None, LINK),
        ("new.py", FILE, None),
        ("docs/new", FILE, None),
        ("new/deep", FILE, None),
    ],
)
def test_what_is_so_is_accepted(path: str, mode: str | None, old_mode: str | None) -> None:
    check_base([FileChange(path, mode, b"x", old_mode)], BASE)


@pytest.mark.parametrize(
    ("path", "mode", "old_mode", "words"),
    [
        ("a.py", FILE, None, "is a file with mode 100644 in the base commit, and not absent"),
        ("docs", FILE, None, "is a folder in the base commit, and not absent"),
        ("a.py", None, LINK, "is a file with mode 100644 in the base commit, and not a link"),
        ("a.py", LINK, LINK, "and not a link"),
        ("link", FILE, FILE, "is a link in the base commit"),
        ("a.py", RUNNABLE, RUNNABLE, "and not a file with mode 100755"),
        ("run", FILE, FILE, "is a file with mode 100755"),
        ("gone", None, FILE, "is absent in the base commit"),
        ("a.py/x", FILE, None, "is inside `a.py`, which is a file"),
        ("link/x", FILE, None, "is inside `link`, which is a link"),
    ],
)
def test_what_is_not_so_is_found(path: str, mode: str | None, old_mode: str | None, words: str) -> None:
    with pytest.raises(PatchMismatch, match=words):
        check_base([FileChange(path, mode, b"x", old_mode)], BASE)


def test_a_file_that_is_shown_as_deleted_may_become_a_folder() -> None:
    check_base([FileChange("a.py", None, None, FILE), FileChange("a.py/x", FILE, b"x", None)], BASE)
