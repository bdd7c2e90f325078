"""Code that ran in a job's environment puts links, or other things, in place of jobd's files: jobd follows no link, and
the machine is not blamed."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from runner.model.machines import FAULTS
from tests.support.jobd import Jobd, make_repository

pytestmark = pytest.mark.slow

WAYS = ["overlay", "copy", "slot"]
OURS = "ssh-ed25519 OURS\n"
EDIT = {
    "path": ".ssh/authorized_keys",
    "mode": "100644",
    "old_mode": None,
    "content": base64.b64encode(b"ssh-ed25519 THEIRS\n").decode(),
}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The file that says who may log in to the account."""
    keys = tmp_path / "account" / ".ssh" / "authorized_keys"
    keys.parent.mkdir(parents=True)
    keys.write_text(OURS)
    return keys


def open_job(tmp_path: Path, script: str) -> Jobd:
    (machine := tmp_path / "machine").mkdir()
    jobd = Jobd(machine, make_repository(tmp_path / "repository", {"build.sh": script}))
    jobd.is_warm = False
    return jobd


@pytest.mark.parametrize("way", WAYS)
def test_no_earlier_edit_is_written_where_a_link_in_place_of_the_worktree_leads(
    tmp_path: Path, keys: Path, way: str
) -> None:
    jobd = open_job(tmp_path, f'mv "$PTQ_WORKTREE" "$PTQ_WORKTREE.real"; ln -s {keys.parents[1]} "$PTQ_WORKTREE"\n')
    poll = jobd.prepare(ways=[way], setup=["sh ./build.sh"], changes=[EDIT])
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    assert poll["state"] == "failed"
    assert keys.read_text() == OURS


@pytest.mark.parametrize(
    "plant",
    [
        'ln -sf {keys} "$PTQ_WORKTREE/.git/objects/info/alternates"',
        'rm -rf "$PTQ_WORKTREE/.git/objects/info"; ln -s {folder} "$PTQ_WORKTREE/.git/objects/info"',
        'rm -rf "$PTQ_WORKTREE/.git"; ln -s {folder} "$PTQ_WORKTREE/.git"',
    ],
)
def test_a_newer_commit_is_checked_out_without_following_a_link_in_the_bases_repository(
    tmp_path: Path, keys: Path, plant: str
) -> None:
    lock = keys.with_name("clone.lock")
    lock.touch()
    jobd = open_job(tmp_path, plant.format(keys=keys, folder=keys.parent) + "\n")
    jobd.prepare(setup=["sh ./build.sh"])
    jobd.repository.commit({"new": "x"})
    later = jobd.beside()
    later.is_warm = False
    later.prepare(setup=["sh ./build.sh"])
    assert keys.read_text() == OURS
    assert sorted(path.name for path in keys.parent.iterdir()) == ["authorized_keys", "clone.lock"]


def test_an_interrupted_build_goes_on_without_following_a_link_in_place_of_the_home(tmp_path: Path, keys: Path) -> None:
    profile = keys.parents[1] / ".profile"
    profile.write_text("ours")
    jobd = open_job(tmp_path, f'rm -rf "$HOME"; ln -s {profile.parent} "$HOME"; false\n')
    assert jobd.prepare(setup=["sh ./build.sh"])["state"] == "failed"
    jobd.repository.commit({"build.sh": "true\n"})
    later = jobd.beside()
    later.is_warm = False
    later.prepare(setup=["sh ./build.sh"])
    assert profile.read_text() == "ours"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "plant",
    [
        'mkdir "$PTQ_WORKTREE/.git/x.lock"',
        'mkdir "$PTQ_WORKTREE/.git/index.lock"; chmod 000 "$PTQ_WORKTREE/.git/index.lock"',
        'cd "$PTQ_WORKTREE/.git/objects/info"; rm alternates; mkdir alternates',
        'rm -rf "$PTQ_WORKTREE"; touch "$PTQ_WORKTREE"',
    ],
)
def test_what_a_bases_commands_leave_in_the_way_is_no_fault_of_the_machine(
    tmp_path: Path, way: str, plant: str
) -> None:
    jobd = open_job(tmp_path, f"{plant}\n")
    if jobd.prepare(setup=["sh ./build.sh"], ways=[way])["error"] == "no_environment":
        pytest.skip("this machine makes no such environments")
    jobd.repository.commit({"new": "x"})
    later = jobd.beside()
    later.is_warm = False
    prepared = later.prepare(setup=["sh ./build.sh"], ways=[way])
    assert prepared["error"] == "files_unusable"
    assert prepared["error"] not in FAULTS


@pytest.mark.parametrize("way", WAYS)
def test_an_update_that_deletes_the_worktree_is_no_fault_of_the_machine(tmp_path: Path, way: str) -> None:
    jobd = open_job(tmp_path, "true\n")
    if jobd.prepare(ways=[way])["error"] == "no_environment":
        pytest.skip("this machine makes no such environments")
    jobd.repository.commit({"new": "x"})
    later = jobd.beside()
    later.is_warm = False
    assert later.prepare(update=['rm -rf "$PTQ_WORKTREE"'], ways=[way])["error"] == "files_unusable"
