"""Trees as hostile jobs leave them: closed, wide, deep, and changed while they are read or removed."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.jobd.environment.trees import discard, empty_trash, open_up
from runner.jobd.files import Failure
from runner.jobd.safe_paths import MAX_HELD, give_access, walk
from tests.support.changed_program import set_constant
from tests.support.jobd import Jobd, wait_until
from tests.support.plain_worktree import check_out_files

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

ALWAYS = float("inf")


@pytest.fixture
def jobd(jobd: Jobd) -> Iterator[Jobd]:
    """The same, and nothing is left that pytest cannot remove."""
    yield jobd
    open_up(jobd.workspace, ALWAYS)
    subprocess.run(["rm", "-rf", jobd.workspace], check=True)


def list_names(root: Path) -> list[str]:
    return sorted(entry.name for entry in walk(root))


def make_chain(root: Path, *names: str) -> Path:
    """A folder in a folder in a folder."""
    deepest = root.joinpath(*names)
    deepest.mkdir(parents=True)
    return deepest


# To walk


def test_everything_is_found_and_nothing_through_a_link(tmp_path: Path) -> None:
    make_chain(tmp_path, "root", "a", "b")
    (tmp_path / "root" / "a" / "file").touch()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    make_chain(tmp_path, "outside", "secret")
    assert list_names(tmp_path / "root") == ["a", "b", "file", "link"]
    assert list_names(tmp_path / "root" / "link") == []
    assert list_names(tmp_path / "nowhere") == []


def test_a_folder_that_becomes_a_link_after_it_was_found_is_not_entered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_chain(root, "a", "b")
    make_chain(tmp_path, "outside", "secret")
    found = []
    for entry in walk(root):
        found.append(entry.name)
        if entry.name == "a":
            (root / "a").rename(tmp_path / "away")
            (root / "a").symlink_to(tmp_path / "outside")
    assert found == ["a"]


def test_a_tree_that_is_deeper_than_files_may_be_open_is_walked_back_to_its_top(tmp_path: Path) -> None:
    deep = ["d"] * (3 * MAX_HELD)
    make_chain(tmp_path, *deep)
    for depth in range(len(deep)):
        (tmp_path.joinpath(*deep[:depth]) / "e").mkdir()
    assert list_names(tmp_path) == [*deep, *["e"] * len(deep)]


def test_what_is_moved_while_it_is_walked_does_not_lead_out_of_the_tree(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    deep = ["d"] * (MAX_HELD + 20)
    make_chain(root, *deep, "last")
    make_chain(root, "other")
    make_chain(outside, "secret")
    found = []
    for entry in walk(root):
        found.append(entry.name)
        if entry.name == "last":
            root.joinpath(*deep[: MAX_HELD + 10]).rename(outside / "moved")
    assert sorted(found) == [*deep, "last", "other"]


# To open


def test_only_what_is_closed_is_changed(tmp_path: Path) -> None:
    modes = {"closed": 0o000, "unreadable": 0o300, "fine": 0o700, "fine-for-all": 0o755}
    for name, mode in modes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        (tmp_path / name / "file").chmod(mode & 0o666)
        (tmp_path / name).chmod(mode)
    open_up(tmp_path, ALWAYS)
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in modes} == {
        **modes,
        "closed": 0o700,
        "unreadable": 0o700,
    }
    files = {name: (tmp_path / name / "file").stat().st_mode & 0o777 for name in modes}
    assert files == {"closed": 0o600, "unreadable": 0o600, "fine": 0o600, "fine-for-all": 0o644}


def test_a_closed_file_keeps_whether_it_can_be_executed(tmp_path: Path) -> None:
    (tmp_path / "program").touch(mode=0o010)
    (tmp_path / "program").chmod(0o010)
    open_up(tmp_path, ALWAYS)
    assert (tmp_path / "program").stat().st_mode & 0o777 == 0o710


def test_what_a_link_leads_to_gets_no_access(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir(mode=0o500)
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    give_access(str(tmp_path / "link"))
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o500


def test_to_open_a_tree_has_a_deadline(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o000)
    with pytest.raises(Failure, match="could not be opened in time"):
        open_up(tmp_path, time.monotonic() - 1)


# To remove


def test_a_tree_that_cannot_be_removed_in_time_goes_to_the_trash(tmp_path: Path) -> None:
    closed = make_chain(tmp_path, "tree", "a", "b").parent
    closed.chmod(0o000)
    (tmp_path / "tree").chmod(0o000)
    discard(tmp_path / "tree", tmp_path / "trash", 0.0)
    assert not (tmp_path / "tree").exists()
    empty_trash(tmp_path / "trash")
    wait_until(lambda: list((tmp_path / "trash").iterdir()) == [])


def test_what_comes_to_the_trash_while_it_is_emptied_goes_as_well(tmp_path: Path) -> None:
    trash = tmp_path / "trash"
    for tree in range(20):
        for number in range(100):
            make_chain(trash, str(tree), str(number), "deep")
    empty_trash(trash)
    make_chain(tmp_path, "late", "deep")
    (tmp_path / "late").rename(trash / "late")
    empty_trash(trash)
    wait_until(lambda: list(trash.iterdir()) == [])


CLOSE_MANY = """
import os
os.mkdir("many")
for number in range(3_000):
    os.mkdir(f"many/{number}", 0)
"""
CLOSE_DEEP = """
for folder in (".", os.environ["TMPDIR"]):
    os.chdir(os.environ["PTQ_WORKTREE"])
    os.chdir(folder)
    os.mkdir("deep")
    os.chdir("deep")
    for _ in range(1_100):
        os.mkdir("d" * 100)
        here = os.open(".", os.O_RDONLY)
        os.chdir("d" * 100)
        os.fchmod(here, 0)
        os.close(here)
    open("x", "w").close()
"""
DIG = """
for _ in range(1_100):
    os.mkdir("d")
    os.chdir("d")
"""
HIDE = """
os.mkdir(".pi", 0)
os.chdir(os.environ["PTQ_WORKTREE"])
os.mkdir("top")
open("top/.PI", "w").close()
os.chmod("top", 0)
"""
"""Deeper than calls of Python may be nested, and than files may be open; with longer names, also than a path may be."""


def test_closed_folders_however_many_and_deep_are_collected_and_cleaned_in_seconds(jobd: Jobd) -> None:
    assert jobd.prepare()["state"] == "done"
    dig = 'os.chdir(os.environ["PTQ_WORKTREE"])\nopen("x", "w").close()\n' + DIG + 'open("too-deep", "w").close()'
    ended = jobd.agent("", argv=[sys.executable, "-c", CLOSE_MANY + CLOSE_DEEP + dig], timeout_s=60)
    assert ended["result"]["exit_status"] == 0, ended["log"]
    began = time.monotonic()
    collected = jobd.collect()
    assert collected["state"] == "done", collected["message"]
    assert time.monotonic() - began < 15
    result = jobd.result()
    assert [change["path"] for change in result["changes"]] == ["x"]
    (problem,) = [problem for problem in result["problems"] if "too-deep" in problem]
    assert problem.endswith("was left out: it is in more than 200 folders")
    assert jobd.call("clean") == {"ok": True}
    assert not jobd.root.exists()


def test_hidden_configuration_is_removed_from_a_closed_tree_of_any_depth(jobd: Jobd) -> None:
    assert jobd.prepare(ways=["slot"])["state"] == "done"
    left = [sys.executable, "-c", f"import os{DIG}{HIDE}"]
    subprocess.run(left, cwd=jobd.worktree, env=jobd.job.environment(), check=True)
    ended = jobd.agent("find . -iname .pi | wc -l", hidden=[".pi"])
    assert (ended["state"], ended["log"]) == ("done", b"0\n")


# What git is given


def test_a_sparse_file_that_git_reads_completely_takes_no_memory(tmp_path: Path) -> None:
    worktree = check_out_files(tmp_path, {"a": "a"})
    worktree.run("mkdir new; truncate -s 5G new/.gitignore; echo x > new/x")
    failure = worktree.find_failure(timeout_s=60)
    assert failure.name == "git_failed"
    assert "Out of memory" in failure.message


MAKE_LONG = """
import os, sys
deep = "/".join(["d" * 250] * 13)
os.makedirs(deep)
os.chdir(deep)
for number in range(int(sys.argv[1])):
    os.mknod(f"{number}{'n' * 240}")
"""
"""Paths of 3,500 bytes each."""


def test_new_files_with_very_long_paths_are_not_all_listed(tmp_path: Path) -> None:
    worktree = check_out_files(tmp_path, {"a": "a"})
    subprocess.run([sys.executable, "-c", MAKE_LONG, "19000"], cwd=worktree.path, check=True)
    failure = worktree.find_failure(timeout_s=60)
    assert failure.name == "change_too_large", "git's memory is enough for as many as are read"
    assert failure.message == "the paths of the new files have more than 64000000 bytes in total"


def test_commands_that_leave_far_too_many_new_files_make_no_base(jobd: Jobd) -> None:
    set_constant(jobd, "environment.recipe", "MAX_LEFT_BYTES", "20_000_000", "15_000")
    prepared = jobd.prepare(setup=[f"{sys.executable} -c {shlex.quote(MAKE_LONG)} 5"])
    assert prepared["message"] == "the paths of the new files have more than 15000 bytes in total"
