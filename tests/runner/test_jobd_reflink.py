"""Copies that share their blocks, on a real file system that can do that: by `copy`, and by `slot`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.jobd.sandbox import namespaces
from tests.support.contents import find_differences, read_entries
from tests.support.jobd import Jobd, make_repository
from tests.support.sandboxes import MISSING

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

SIZE = 512 * 1024 * 1024
LARGE = 32 * 1024 * 1024
"""Bytes that the base has in one file."""

MKFS = shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
needs_btrfs = pytest.mark.skipif(MKFS is None or os.getuid() != 0, reason="only root makes a btrfs, with btrfs-progs")
CELLS = not {*MISSING} - {"proc", namespaces.OVERLAY}


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """A folder on a btrfs of its own."""
    assert MKFS
    image, folder = tmp_path / "image", tmp_path / "btrfs"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run([MKFS, "--quiet", image], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine mounts none: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def count_used(folder: Path) -> int:
    """Bytes that are taken on a file system, once all is written."""
    os.sync()
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


@needs_btrfs
@pytest.mark.parametrize("way", ["copy", "slot"] if CELLS else ["slot"])
def test_a_copy_of_a_base_takes_no_room_of_its_own_and_leaves_the_base_as_it_is(btrfs: Path, way: str) -> None:
    jobd = Jobd(btrfs, make_repository(btrfs / "origin"))
    recipe = {"ways": [way], "setup": [f'head -c {LARGE} /dev/urandom > "$HOME/large"']}
    first = jobd.prepare(**recipe)
    assert (first["state"], first["message"]) == ("done", None)
    (layer,) = jobd.workspace.glob("bases/*/1")
    before, used = read_entries(layer), count_used(btrfs)
    later = jobd.beside()
    if way == "slot":
        assert jobd.call("clean")["ok"]
        used = count_used(btrfs)
    prepared = later.prepare(**recipe)
    assert (prepared["state"], prepared["message"]) == ("done", None)
    assert f"[The environment is made by {way}: ".encode() in prepared["log"]
    assert count_used(btrfs) - used < LARGE / 4, "its blocks are the base's"
    written = later.agent('printf x | dd of="$HOME/large" conv=notrunc status=none; head -c 1 "$HOME/large"')
    assert written["log"] == b"x"
    assert find_differences(before, read_entries(layer)) == []
    for job in (jobd, later):
        job.call("clean")
