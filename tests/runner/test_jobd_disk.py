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

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

WAYS = pytest.mark.parametrize("way", ["overlay", "slot"])
"""What is watched is the job's folder, and of a slot its place. A copy of the base is in the job's folder."""

WRITE, PART = "head -c 4000000 /dev/urandom", "head -c 900000 /dev/urandom"
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


# Deleted files that are still open


HIDE_PARTS = f"""
for place in "$PTQ_WORKTREE" "$TMPDIR"; do
    exec 3> "$place/x"; rm "$place/x"; {PART} >&3; sleep 30 &
done
exec 3> /dev/null; mkdir -p closed/too; {PART} > closed/too/x; chmod 000 closed/too closed; sleep 30
"""


@WAYS
def test_files_that_are_deleted_but_open_or_in_a_folder_that_is_closed_are_counted(jobd: Jobd, way: str) -> None:
    """Two of the three parts are not too much, and in each process only one of the deleted files is open."""
    prepare(jobd, way)
    expect_ended(jobd, HIDE_PARTS)


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


IN_MEMORY = """
import os, time
files = [os.memfd_create("x"), os.open("/dev/shm/x", os.O_RDWR | os.O_CREAT)]
os.unlink("/dev/shm/x")
for file in files:
    os.write(file, bytes(4_000_000))
time.sleep(1)
"""
UNDISTURBED = f"""
exec 3< large; rm large
exec 4> x 5>&4; rm x; {PART} >&4
exec 6> y; ln y z; rm y; {PART} >&6
mkdir -p closed/too; chmod 000 closed
{sys.executable} -c '{IN_MEMORY}' &
for n in 1 2 3; do sleep 1 & done; wait
ls closed 2>&1 || stat -c %a closed
"""


@WAYS
def test_what_is_deleted_is_counted_once_and_neither_a_file_of_the_base_nor_files_in_memory(
    jobd_without_base: Jobd, way: str
) -> None:
    """A part more would be too much. What the agent has closed meanwhile stays closed."""
    jobd = jobd_without_base
    jobd.repository.commit({"large": random.randbytes(4_000_000)})
    prepare(jobd, way)
    ended = jobd.agent(UNDISTURBED, max_disk_bytes=2_000_000)
    assert (ended["result"]["exit_status"], ended["result"]["objection"]) == (0, None)
    assert ended["log"].splitlines()[-1] == b"0"


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


def test_further_names_and_files_in_an_output_folder_that_was_moved_away_count_as_files(jobd: Jobd) -> None:
    prepare(jobd)
    names = "touch x; for n in $(seq 60); do ln x x$n; done"
    move = 'cd "$PTQ_OUTPUT_DIR/.."; mv output elsewhere; ln -s elsewhere output; mkdir many; touch many/{1..60}'
    result = jobd.agent(f"{names}; bash -c '{move}'; sleep 60", max_files=100)["result"]
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
