"""A machine without room for another sandbox: its jobs wait or fail, and none of them runs unsealed.

The namespaces are those of a user namespace of the test's own, so that no other program misses them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.jobd.sandbox import namespaces, trial
from runner.jobd.sandbox.shortage import Shortage
from tests.support.jobd import Jobd
from tests.support.sandboxes import SEALED

pytestmark = [
    pytest.mark.on_disk,
    pytest.mark.slow,
    pytest.mark.skipif(not SEALED, reason="this machine seals no jobs"),
]

MACHINE = """
import os, sys, time
from runner.jobd.sandbox.namespaces import own_files
own_files()
if os.fork():
    for line in sys.stdin:
        open("/proc/sys/user/max_user_namespaces", "w").write(line)
        print("set", flush=True)
else:
    own_files()  # One namespace is in use, so that a limit of one is no limit of zero, which an operator sets.
    print(os.getppid(), flush=True)
    time.sleep(600)
"""

PLENTY, USED_UP, TURNED_OFF = 1000, 1, 0


class Machine:
    """A user namespace, in which the machine-side program runs, and its limit of further ones."""

    def __init__(self, jobd: Jobd, folder: Path) -> None:
        words = [sys.executable, "-c", MACHINE]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout
        namespace = f"/proc/{int(self._process.stdout.readline())}/ns/user"
        python = folder / "python-of-machine"
        enter = f"nsenter --user={namespace} --preserve-credentials"
        python.write_text(f'#!/bin/sh\nexec {enter} {sys.executable} "$@"\n')
        python.chmod(0o755)
        jobd.python = str(python)

    def allow(self, namespaces: int) -> None:
        """Set the limit."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{namespaces}\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"set\n"

    def free_soon(self) -> None:
        """Have room again in a moment."""
        threading.Timer(0.6, self.allow, [PLENTY]).start()

    def end(self) -> None:
        os.killpg(self._process.pid, 9)
        self._process.communicate()


@pytest.fixture
def machine(jobd: Jobd, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(jobd, tmp_path)
    yield machine
    machine.end()


def test_a_job_is_not_prepared_unsealed_because_the_namespaces_are_used_up_and_its_machine_counts_as_before(
    jobd: Jobd, machine: Machine
) -> None:
    machine.allow(USED_UP)
    poll = jobd.prepare(timeout_s=2)
    assert (poll["state"], poll["error"]) == ("failed", "sandbox_shortage")
    assert poll["message"].endswith("no room for another sandbox at the moment: the account's namespaces are used up")
    assert not (jobd.workspace / "sealed").exists()
    assert jobd.ask("inventory")["sealed"] is False
    assert jobd.ask("capabilities")["error"] == "sandbox_shortage"
    machine.allow(PLENTY)
    jobd.beside().prepare()
    machine.allow(USED_UP)
    assert jobd.ask("inventory")["sealed"] is True
    found = jobd.ask("capabilities")
    assert found["sealed"] is True
    assert "no room for another sandbox at the moment" in found["words"]


def test_no_setting_that_appears_later_makes_a_machine_run_jobs_unsealed(jobd: Jobd, machine: Machine) -> None:
    machine.allow(PLENTY)
    assert jobd.prepare()["result"]["sealed"] is True
    machine.allow(TURNED_OFF)
    later = jobd.beside()
    poll = later.prepare()
    assert (poll["state"], poll["error"]) == ("failed", "not_sealed")
    assert "sealed jobs before and cannot now: not sealed: user namespaces: no space left on device" in poll["message"]
    assert "delete the file `sealed` in its workspace" in poll["message"]
    (jobd.workspace / "sealed").unlink()
    poll = jobd.beside().prepare()
    assert poll["result"]["sealed"] is False
    assert b"user.max_user_namespaces is 0" in poll["log"]


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another account")
def test_a_machine_without_room_for_a_process_may_still_be_able_to_seal(limit: int) -> None:
    account = 60_000 + os.getpid() % 5_000
    child = os.fork()
    if not child:
        ended = 1
        try:
            os.setgid(account)
            os.setuid(account)
            ctypes.CDLL(None).prctl(namespaces.PR_SET_DUMPABLE, 1, 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
            trial.find_missing(Path("/var/tmp"), 0.1)
            ended = 2
        except Shortage:
            ended = 0
        finally:
            os._exit(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_preparation_an_agent_and_a_collection_wait_for_room(jobd: Jobd, machine: Machine) -> None:
    machine.allow(USED_UP)
    machine.free_soon()
    assert jobd.prepare()["result"]["sealed"] is True
    machine.allow(USED_UP)
    machine.free_soon()
    assert jobd.agent("echo work >> a.txt")["state"] == "done"
    machine.allow(USED_UP)
    machine.free_soon()
    assert jobd.collect(lint=["touch linted"])["state"] == "done"
    assert [change["path"] for change in jobd.result()["changes"]] == ["a.txt", "linted"]


@pytest.mark.parametrize("ways", [["overlay"], ["slot"]])
def test_a_stage_that_finds_no_room_says_so_as_soon_as_its_time_is_over(
    jobd: Jobd, machine: Machine, ways: list[str]
) -> None:
    machine.allow(PLENTY)
    assert jobd.prepare(ways=ways)["state"] == "done"
    machine.allow(USED_UP)
    poll = jobd.agent("touch ran", timeout_s=1)
    assert (poll["state"], poll["error"]) == ("failed", "sandbox_shortage")
    assert not jobd.find("ran").exists()
    began = time.monotonic()
    assert jobd.collect(timeout_s=1)["error"] == "sandbox_shortage"
    assert time.monotonic() - began < 10


def test_no_sealed_job_can_forget_that_jobs_are_sealed(jobd: Jobd) -> None:
    jobd.prepare()
    mark = jobd.workspace / "sealed"
    forget = f"rm -f {mark}; mv {jobd.workspace} {jobd.workspace}-2; ls -A {mark.parent}; touch {mark}"
    log = jobd.agent('sh "$PTQ_PROMPT_FILE" || echo refused', prompt=forget)["log"].decode()
    assert ("\nsealed\n" in log, log.endswith("refused\n"), mark.is_file()) == (False, True, True), log
