"""What is left of a job in the end: nothing. And a disk that is full, of which a job may be the reason."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.jobd.files import MAX_MESSAGE
from runner.jobd.sandbox.processes import find_processes
from tests.support.jobd import COLLECT, LIMITS, START, Jobd, Repository, wait_until
from tests.support.made_base import MadeBase

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]


def test_everything_of_a_job_goes_and_nothing_of_another_nor_what_its_links_lead_to(jobd: Jobd, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o500)
    (target / "file").touch(mode=0o400)
    other = jobd.beside()
    other.prepare()
    change = jobd.run(f"ln -s {target} link; ln -s {target}/file file; rm -r $TMPDIR; ln -s {target} $TMPDIR")
    assert change.contents == {"link": str(target).encode(), "file": f"{target}/file".encode()}
    for _ in range(2):
        assert jobd.call("clean") == {"ok": True}
    assert not jobd.root.exists()
    assert ((target / "file").stat().st_mode & 0o777, target.stat().st_mode & 0o777) == (0o400, 0o500)
    assert other.agent("git status --short; echo x > x; git add x; git diff --cached --stat")["log"]
    assert jobd.poll("prepare")["state"] == "absent"

    # A request that comes late does not begin it again.
    with pytest.raises(AssertionError, match="the job has ended"):
        jobd.prepare()
    assert not jobd.root.exists()


def test_cleaning_what_never_was_is_fine(jobd: Jobd) -> None:
    assert jobd.call("kill") == {"ok": True, "killed": 0, "alive": 0}
    assert jobd.call("clean") == {"ok": True}


def test_what_was_cleaned_is_forgotten_after_a_month(jobd: Jobd) -> None:
    other = jobd.beside()
    jobd.call("clean")
    mark = jobd.workspace / "ended" / jobd.job_id
    assert mark.read_text() == "ended\n"
    month_ago = time.time() - 31 * 86_400
    os.utime(mark, (month_ago, month_ago))
    other.call("clean")
    assert not mark.exists()


ODD = """
mkdir -p a/b; echo x > a/b/c; chmod 000 a/b/c a/b a
mkdir -- -rf '*' 'two
lines'; echo x > "$(printf '\377')"; ln -s /nowhere dangling; mkfifo pipe
mkdir "$HOME/busy"; (cd "$HOME/busy"; while :; do mkdir -p a/b; date > a/b/c; done) &
chmod 500 dir .; chmod 000 ${PTQ_OUTPUT_DIR%/*}; chmod 000 ..; sleep 60
"""


def test_trees_go_whatever_they_are_like_and_whoever_is_at_work_in_them(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.start(ODD)
    wait_until(lambda: jobd.find("").parent.stat().st_mode & 0o777 == 0)
    assert jobd.call("clean") == {"ok": True}
    assert find_processes(jobd.job_id) == []
    assert list((jobd.workspace / "jobs").iterdir()) == []


def test_a_job_that_has_become_a_link_goes_and_what_it_leads_to_stays(unsealed: Jobd, tmp_path: Path) -> None:
    jobd = unsealed
    target = tmp_path / "target"
    (target / "worktree").mkdir(parents=True)
    jobd.prepare()
    jobd.start(f'cd "${{PTQ_OUTPUT_DIR%/*}}"; mv "$PWD" {tmp_path}/away; ln -s {target} "${{PTQ_OUTPUT_DIR%/*}}"')
    wait_until(jobd.root.is_symlink)
    assert jobd.call("clean") == {"ok": True}
    assert not jobd.root.is_symlink()
    assert (target / "worktree").is_dir()


# A disk that is full


@pytest.fixture
def small_disk(jobd_without_base: Jobd, made_base: MadeBase) -> Iterator[Jobd]:
    """A machine whose workspace has a few megabytes."""
    jobd = jobd_without_base
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(jobd.workspace)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("to mount a small file system is not allowed here")
    made_base.lay_out(jobd)
    yield jobd
    jobd.call("kill")
    subprocess.run(["umount", "--lazy", str(jobd.workspace)], check=True)


FILL = 'head -c 9m /dev/zero > "$TMPDIR/filler" 2> /dev/null || :'


def test_a_setup_that_fills_the_disk_is_told_as_such(small_disk: Jobd) -> None:
    poll = small_disk.prepare(setup=["head -c 9m /dev/zero > filler"])
    assert (poll["state"], poll["error"]) == ("failed", "disk_full")
    assert "No space left on device" in poll["message"]


def test_a_clone_that_fills_the_disk_is_told_as_such(small_disk: Jobd, repository: Repository) -> None:
    (repository.folder / "large").write_bytes(random.randbytes(6_000_000))
    repository.commit()
    assert small_disk.prepare()["error"] == "disk_full"


def test_a_log_that_cannot_be_written_is_told_as_a_full_disk(small_disk: Jobd) -> None:
    assert small_disk.prepare()["state"] == "done"
    ended = small_disk.agent(f"{FILL}; yes | head -c 200000; sleep 60", max_log_bytes=1_000_000)
    assert (ended["state"], ended["error"]) == ("failed", "disk_full")
    assert ended["message"] == "the machine's disk is full"
    wait_until(lambda: not find_processes(small_disk.job_id))


def fill_up(filler: Path) -> None:
    words = ["/bin/sh", "-c", f"head -c 9m /dev/zero > {filler}"]
    subprocess.run(words, check=False, stderr=subprocess.DEVNULL)


def test_a_stage_that_cannot_be_started_for_a_full_disk_may_be_started_later(small_disk: Jobd) -> None:
    small_disk.prepare()
    filler = small_disk.root / "tmp" / "filler"
    fill_up(filler)
    request = {"argv": ["true"], "env": {}, "prompt": "", **START, **LIMITS}
    assert small_disk.ask("start", **request)["error"] == "disk_full"
    assert small_disk.poll("agent")["state"] == "absent"
    filler.unlink()
    assert small_disk.call("start", **request)["started"] is True
    assert small_disk.wait("agent")["state"] == "done"

    # A job that has filled the disk goes all the same, and stays ended.
    fill_up(filler)
    fill_up(small_disk.workspace / "filler")
    assert small_disk.call("clean") == {"ok": True}
    assert not small_disk.root.exists()
    with pytest.raises(AssertionError, match="the job has ended"):
        small_disk.prepare()


@pytest.mark.parametrize("left", ["150K", "250K", "290K"])
def test_a_collection_that_fills_the_disk_is_told_as_such(small_disk: Jobd, left: str) -> None:
    base = small_disk.prepare()["result"]["base_commit"]
    small_disk.agent(f'head -c 90000 /dev/urandom > new; {FILL}; truncate -s -{left} "$TMPDIR/filler"')
    small_disk.call("collect", **{**COLLECT, "base_commit": base})
    collected = small_disk.wait("collect")
    assert (collected["state"], collected["error"]) == ("failed", "disk_full"), collected


def test_the_longest_message_fits_on_a_full_disk(small_disk: Jobd) -> None:
    shout = f"{FILL}; {sys.executable} -c 'print(chr(0x1f4a5) * 9000)'; exit 3"
    poll = small_disk.prepare(setup=[shout], max_log_bytes=10)
    assert (poll["state"], poll["error"]) == ("failed", "setup_failed")
    assert len(poll["message"]) <= MAX_MESSAGE


def test_a_folder_that_cannot_be_removed_is_told_with_the_reason(jobd: Jobd) -> None:
    jobd.prepare()
    mounted = jobd.root / "output"
    if subprocess.run(["mount", "-t", "tmpfs", "none", mounted], check=False, capture_output=True).returncode:
        pytest.skip("to mount a file system is not allowed here")
    answer = jobd.ask("clean")
    subprocess.run(["umount", mounted], check=True)
    assert answer["error"] == "not_removed"
    assert "busy" in answer["message"]
    assert jobd.call("clean") == {"ok": True}
