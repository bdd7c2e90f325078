"""The limit on what a job writes to its machine's disk, and the ways in which a job can try to hide what it writes."""

from __future__ import annotations

import os
import random
import re
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.files import JobPaths, read_json
from runner.jobd.verbs.watchers import Baseline, watch_job
from tests.support.jobd import Jobd

pytestmark = pytest.mark.slow

WAYS = pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
WRITE = "head -c 4000000 /dev/urandom"
ACCOUNT = 54321


def prepare(jobd: Jobd, way: str = "overlay", **changes: Any) -> None:
    poll = jobd.prepare(ways=[way], **changes)
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    assert poll["state"] == "done", poll["message"]


def expect_ended(jobd: Jobd, agent: str, **changes: Any) -> None:
    """An agent that writes four megabytes is ended, and the reason is told."""
    result = jobd.agent(agent, max_disk_bytes=2_000_000, **changes)["result"]
    objection = r"the job wrote [2-4],\d{3},\d{3} bytes to its machine's disk, and 2,000,000 are allowed"
    assert re.fullmatch(objection, str(result["objection"]))


def expect_undisturbed(jobd: Jobd, agent: str) -> None:
    result = jobd.agent(agent, max_disk_bytes=2_000_000)["result"]
    assert (result["exit_status"], result["objection"]) == (0, None)


# Deleted files that are still open


@pytest.mark.parametrize("place", ["$PTQ_WORKTREE", "$TMPDIR"])
@WAYS
def test_a_file_that_is_deleted_but_open_is_counted(jobd: Jobd, way: str, place: str) -> None:
    prepare(jobd, way)
    expect_ended(jobd, f'exec 3> "{place}/x"; rm "{place}/x"; {WRITE} >&3; sleep 30')


HELD_BY_A_THREAD = """
import ctypes, os, threading, time

def hold():
    time.sleep(0.3)
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    os.write(file, os.urandom(4_000_000))
    time.sleep(30)

threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(2): only the first thread ends.
"""


def test_a_deleted_file_of_a_process_whose_first_thread_has_ended_is_counted(jobd: Jobd) -> None:
    prepare(jobd)
    expect_ended(jobd, "", argv=[sys.executable, "-c", HELD_BY_A_THREAD])


def test_each_deleted_file_is_counted_once(jobd: Jobd) -> None:
    prepare(jobd)
    share = "exec 3> x 4>&3; rm x; head -c 1500000 /dev/urandom >&3; for n in 1 2 3; do sleep 1 & done; wait"
    expect_undisturbed(jobd, share)


def test_a_deleted_file_that_has_another_name_is_counted_once(jobd: Jobd) -> None:
    prepare(jobd)
    expect_undisturbed(jobd, "exec 3> x; ln x y; rm x; head -c 1500000 /dev/urandom >&3; sleep 1")


IN_MEMORY = """
import os, time
files = [os.memfd_create("x"), os.open("/dev/shm/x", os.O_RDWR | os.O_CREAT)]
os.unlink("/dev/shm/x")
for file in files:
    os.write(file, bytes(4_000_000))
time.sleep(1)
"""


def test_files_in_memory_are_not_counted(jobd: Jobd) -> None:
    prepare(jobd)
    expect_undisturbed(jobd, f"exec {sys.executable} -c '{IN_MEMORY}'")


@WAYS
def test_an_open_file_of_the_base_that_the_job_deletes_is_not_counted(jobd_without_base: Jobd, way: str) -> None:
    jobd = jobd_without_base
    jobd.repository.commit({"large": random.randbytes(4_000_000)})
    prepare(jobd, way)
    expect_undisturbed(jobd, "exec 3< large; rm large; sleep 1")


# Folders that the job has closed to its own account


@WAYS
def test_a_file_in_a_folder_that_is_closed_is_counted(jobd: Jobd, way: str) -> None:
    prepare(jobd, way)
    expect_ended(jobd, f"mkdir -p closed/too; {WRITE} > closed/too/x; chmod 000 closed/too closed; sleep 30")


def test_a_folder_that_is_closed_stays_closed_while_the_agent_runs(jobd: Jobd) -> None:
    prepare(jobd)
    log = jobd.agent("mkdir -p closed/too; chmod 000 closed; sleep 1; ls closed 2>&1 || stat -c %a closed")["log"]
    assert log.splitlines()[-1] == b"0"


# Other ways


MOVES = """
import os, time
names = [f"{side}/{'/'.join('abcdefghij')}" for side in "01"]
os.makedirs(names[0])
os.makedirs("1/a/b/c/d")
with open("0/a/x", "wb") as file:
    file.write(os.urandom(4_000_000))
ends = time.monotonic() + 30
while time.monotonic() < ends:
    os.rename("0/a/b/c/d/e", "1/a/b/c/d/e")
    os.rename("1/a/b/c/d/e", "0/a/b/c/d/e")
"""


def test_a_job_that_always_moves_its_folders_is_measured(jobd: Jobd) -> None:
    prepare(jobd)
    expect_ended(jobd, "", argv=[sys.executable, "-c", MOVES])


def test_a_job_that_moves_its_output_folder_away_is_counted_all_the_same(jobd: Jobd) -> None:
    prepare(jobd)
    move = 'cd "$PTQ_OUTPUT_DIR/.."; mv output elsewhere; ln -s elsewhere output; mkdir many; touch many/{1..200}'
    result = jobd.agent(f"bash -c '{move}'; sleep 60", max_files=100)["result"]
    assert "and 100 are allowed" in result["objection"]


def test_further_names_of_a_file_count_as_files(jobd: Jobd) -> None:
    prepare(jobd)
    result = jobd.agent("touch x; for n in $(seq 200); do ln x x$n; done; sleep 30", max_files=100)["result"]
    assert "and 100 are allowed" in result["objection"]


def test_a_watcher_measures_although_the_account_has_no_room_for_another_process() -> None:
    with tempfile.TemporaryDirectory(prefix="ptq-watcher-", dir="/var/tmp") as workspace:
        job = JobPaths({"job_id": "0123456789", "workspace": workspace})
        job.make_folders()
        (job.root / "x").write_bytes(bytes(10_000))
        if os.getuid() == 0:  # The kernel sets no such bound for root.
            for path in (Path(workspace), *Path(workspace).rglob("*")):
                os.chown(path, ACCOUNT, ACCOUNT)
        limits = {"max_disk_bytes": 1, "max_files": 9, "orphan_after_s": 1, "look_every_s": 0.05}
        watcher = os.fork()
        if not watcher:
            try:
                if os.getuid() == 0:
                    os.setgid(ACCOUNT)
                    os.setuid(ACCOUNT)
                resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
                watch_job(job, limits, Baseline([job.root], (), 0, 0))
            finally:
                os._exit(0)
        os.waitpid(watcher, 0)
        assert str(read_json(job.watcher_stop).get("reason")).startswith("the job wrote ")


# Commands of the operator, which run the project's code


def test_each_lint_command_is_watched(jobd: Jobd) -> None:
    prepare(jobd)
    jobd.agent("echo x > x")
    fill = f"{WRITE} > filler; sleep 15"
    collected = jobd.collect(lint=["true", fill], max_disk_bytes=2_000_000, look_every_s=0.2)
    assert collected["error"] == "change_too_large"
    (problem,) = jobd.result()["problems"]
    assert re.fullmatch(
        rf"the lint command `{re.escape(fill)}` failed: the job wrote [2-4],\d{{3}},\d{{3}} bytes to its machine's "
        "disk, and 2,000,000 are allowed",
        problem,
    )


def test_lint_runs_after_an_agent_that_a_watcher_has_ended(jobd: Jobd) -> None:
    prepare(jobd)
    expect_ended(jobd, f"{WRITE} > $TMPDIR/x; sleep 30")
    assert jobd.collect(lint=["sleep 0.3; echo linted > linted"])["state"] == "done"
    assert [change["path"] for change in jobd.result()["changes"]] == ["linted"]
    assert jobd.result()["problems"] == []
