"""Code that ran in a job's environment puts links, or other things, in place of jobd's files: jobd follows no link, and
the machine is not blamed."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.bases import BaseStore
from runner.model.machines import FAULTS
from tests.support.jobd import Jobd, make_repository

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

TWO_WAYS = pytest.mark.parametrize("way", ["overlay", "slot"])
"""What comes of a base: one that is not copied, and a copy. The third way, which is a copy as well, has a test here."""

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
    return Jobd(machine, make_repository(tmp_path / "repository", {"build.sh": script}))


def prepare_with(jobd: Jobd, plant: str, way: str) -> dict[str, Any]:
    """Prepare a newer commit from a base in which the repository's commands have left something."""
    (worktree,) = BaseStore(jobd.job, jobd.prepare_request(), way).folder.glob("*/worktree")
    subprocess.run(["/bin/sh", "-ec", plant], env={**os.environ, "PTQ_WORKTREE": str(worktree)}, check=True)
    jobd.repository.commit({"new": "x"})
    prepared = jobd.prepare(ways=[way])
    if prepared["error"] == "no_environment":
        pytest.skip(prepared["message"])
    return prepared


@TWO_WAYS
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
    jobd: Jobd, keys: Path, plant: str
) -> None:
    lock = keys.with_name("clone.lock")
    lock.touch()
    prepare_with(jobd, plant.format(keys=keys, folder=keys.parent), "overlay")
    assert keys.read_text() == OURS
    assert sorted(path.name for path in keys.parent.iterdir()) == ["authorized_keys", "clone.lock"]


def test_an_interrupted_build_goes_on_without_following_a_link_in_place_of_the_home(tmp_path: Path, keys: Path) -> None:
    profile = keys.parents[1] / ".profile"
    profile.write_text("ours")
    jobd = open_job(tmp_path, f'rm -rf "$HOME"; ln -s {profile.parent} "$HOME"; false\n')
    assert jobd.prepare(setup=["sh ./build.sh"])["state"] == "failed"
    jobd.repository.commit({"build.sh": "true\n"})
    later = jobd.beside()
    later.prepare(setup=["sh ./build.sh"])
    assert profile.read_text() == "ours"


@TWO_WAYS
@pytest.mark.parametrize(
    "plant",
    [
        'mkdir "$PTQ_WORKTREE/.git/x.lock"',
        'mkdir "$PTQ_WORKTREE/.git/index.lock"; chmod 000 "$PTQ_WORKTREE/.git/index.lock"',
        'cd "$PTQ_WORKTREE/.git/objects/info"; rm alternates; mkdir alternates',
        'rm -rf "$PTQ_WORKTREE"; touch "$PTQ_WORKTREE"',
    ],
)
def test_what_a_bases_commands_leave_in_the_way_is_no_fault_of_the_machine(jobd: Jobd, way: str, plant: str) -> None:
    error = prepare_with(jobd, plant, way)["error"]
    assert error == "files_unusable"
    assert error not in FAULTS


def test_a_file_that_a_bases_commands_leave_in_place_of_the_worktree_is_not_copied(tmp_path: Path) -> None:
    jobd = open_job(tmp_path, 'rm -rf "$PTQ_WORKTREE"; touch "$PTQ_WORKTREE"\n')
    recipe: dict[str, Any] = {"setup": ["sh ./build.sh"], "ways": ["copy"]}
    if jobd.prepare(**recipe)["error"] == "no_environment":
        pytest.skip("this machine makes no such environments")
    jobd.repository.commit({"new": "x"})
    assert jobd.beside().prepare(**recipe)["error"] == "files_unusable"


@TWO_WAYS
def test_an_update_that_deletes_the_worktree_is_no_fault_of_the_machine(tmp_path: Path, way: str) -> None:
    jobd = open_job(tmp_path, "true\n")
    if jobd.prepare(ways=[way])["error"] == "no_environment":
        pytest.skip("this machine makes no such environments")
    jobd.repository.commit({"new": "x"})
    assert jobd.beside().prepare(update=['rm -rf "$PTQ_WORKTREE"'], ways=[way])["error"] == "files_unusable"
