"""How an agent is ended: as by Ctrl-C, then with everything of it, whoever wanted it and whatever it does about it."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.jobd.stages.command import StopConditions
from tests.support.changed_program import set_constant
from tests.support.hiding import HIDES
from tests.support.jobd import Jobd, processes_with, wait_until
from tests.support.plain_worktree import run_script

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

SAYS_ITS_COST = """
import signal, sys, time
def say(*_):
    print("interrupted", flush=True)
    time.sleep(0.3)
    print("cost: 3", flush=True)
    sys.exit(9)
signal.signal(signal.SIGINT, say)
print("at work", flush=True)
time.sleep(60)
"""

IGNORES_EVERYTHING = "trap '' INT TERM HUP; echo at work; while :; do sleep 0.1; done"


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word for a command line, by which a process is found when nothing else leads to it."""
    mark = f"stray-of-{tmp_path}"
    yield mark
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)


def start_and_wait(jobd: Jobd, agent: str, **changes: object) -> None:
    """Start an agent that says `at work`, and wait for the word."""
    jobd.prepare()
    jobd.start(agent, **changes)
    wait_until(lambda: b"at work\n" in jobd.poll("agent")["log"])


def python(folder: Path, program: str) -> str:
    """A shell command for a program in Python."""
    (folder / "program.py").write_text(program)
    return f"{sys.executable} {folder}/program.py"


def test_an_agent_that_is_stopped_may_say_what_it_has_cost_and_stopping_twice_is_stopping_once(
    jobd: Jobd, tmp_path: Path
) -> None:
    start_and_wait(jobd, f"exec {python(tmp_path, SAYS_ITS_COST)}", stop_grace_s=60)
    began = time.monotonic()
    for _ in range(3):
        assert jobd.call("stop") == {"ok": True}
        time.sleep(0.05)
    ended = jobd.wait("agent")
    assert time.monotonic() - began < 30
    assert (ended["state"], ended["log"]) == ("done", b"at work\ninterrupted\ncost: 3\n")
    result = ended["result"]
    assert (result["exit_status"], result["stopped"], result["timed_out"]) == (9, True, False)
    assert jobd.call("stop") == {"ok": True}
    assert jobd.poll("agent")["result"]["exit_status"] == 9


def test_an_agent_whose_time_is_over_may_say_what_it_has_cost(jobd: Jobd, tmp_path: Path) -> None:
    start_and_wait(jobd, f"exec {python(tmp_path, SAYS_ITS_COST)}", stop_grace_s=10, timeout_s=1)
    ended = jobd.wait("agent")
    assert ended["log"].endswith(b"cost: 3\n")
    result = ended["result"]
    assert (result["exit_status"], result["stopped"], result["timed_out"]) == (9, False, True)


@pytest.mark.parametrize(
    ("agent", "end", "status", "takes_s"),
    [
        ("exec sleep 60", "stopped", signal.SIGINT, 0),
        (IGNORES_EVERYTHING, "stopped", signal.SIGKILL, 1),
        (IGNORES_EVERYTHING, "timed_out", signal.SIGKILL, 1),
    ],
)
def test_nothing_of_an_agent_and_its_tools_is_alive_after_a_stop_or_a_timeout_however_they_hide(
    jobd: Jobd, tmp_path: Path, mark: str, agent: str, end: str, status: int, takes_s: float
) -> None:
    hides = f"{python(tmp_path, HIDES)} {mark}; sleep 0.5; echo at work; {agent}"
    start_and_wait(jobd, hides, stop_grace_s=1, timeout_s=20 if end == "stopped" else 3)
    assert len(processes_with(mark)) == 1, "without a stop it does live"
    began = time.monotonic()
    if end == "stopped":
        jobd.call("stop")
    ended = jobd.wait("agent")
    assert takes_s <= time.monotonic() - began < 30
    assert (ended["state"], ended["result"]["exit_status"]) == ("done", 128 + status)
    assert [name for name in ("stopped", "timed_out") if ended["result"][name]] == [end]
    assert processes_with(mark) == []


def test_an_agent_without_grace_is_killed_at_once(jobd: Jobd) -> None:
    start_and_wait(jobd, IGNORES_EVERYTHING, stop_grace_s=0)
    began = time.monotonic()
    jobd.call("stop")
    assert jobd.wait("agent")["result"]["stopped"] is True
    assert time.monotonic() - began < 30, "the agent would go on for ever"


def test_a_stop_before_there_is_an_agent_or_after_it_does_nothing_and_ends_no_other_stage(jobd: Jobd) -> None:
    assert jobd.call("stop") == {"ok": True}
    assert not jobd.root.exists()
    jobd.prepare()
    assert jobd.call("stop") == {"ok": True}
    result = jobd.agent("sleep 0.3")["result"]
    assert (result["exit_status"], result["stopped"]) == (0, False)
    jobd.call("stop")
    assert jobd.collect(lint=["sleep 0.3; touch linted"])["state"] == "done"
    assert jobd.find("linted").exists()


def test_an_agent_that_puts_something_in_place_of_the_stop_file_has_stopped_itself(unsealed: Jobd) -> None:
    jobd = unsealed
    jobd.prepare()
    script = 'cd "$PTQ_OUTPUT_DIR/../../control"; ln -s /nowhere agent.stop; sleep 60'
    assert jobd.agent(script)["result"]["stopped"] is True


@pytest.mark.parametrize("script", ["mkdir stop", "ln -s /nowhere stop", "mkfifo stop", ": > stop"])
def test_whatever_stands_in_place_of_the_stop_file_stops_an_agent(tmp_path: Path, script: str) -> None:
    conditions = StopConditions(float("inf"), tmp_path / "stop", 0)
    assert conditions.find_reason() is None
    run_script(tmp_path, script, os.environ)
    assert conditions.find_reason() == "stopped"


def test_an_agent_hears_a_stop_where_its_service_was_started_deaf_to_ctrl_c(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.is_warm = False  # The service's own child inherits that.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        jobd.start("echo at work; exec sleep 60", stop_grace_s=60)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: jobd.poll("agent")["log"])
    began = time.monotonic()
    jobd.call("stop")
    assert jobd.wait("agent")["result"]["exit_status"] == 128 + signal.SIGINT
    assert time.monotonic() - began < 30


def test_a_setup_whose_time_is_over_is_ended_in_the_same_way(jobd: Jobd) -> None:
    setup = "trap 'echo bye; exit 3' INT; sleep 60 & wait"
    poll = jobd.prepare(setup=[setup], base_timeout_s=3)
    assert (poll["error"], poll["log"].splitlines()[-1]) == ("timed_out", b"bye")
    assert poll["message"] == f"the setup command `{setup}` failed: it was stopped after 3 seconds"


FUSE_LOOKUP, FUSE_INIT, FUSE_INTERRUPT, MNT_DETACH = 1, 26, 36, 2


def serve(device: int, asked: int) -> None:
    """Answer for a FUSE file system (fuse(4)), except when a file is looked up."""
    while True:
        _, operation, unique = struct.unpack_from("IIQ", os.read(device, 2**20))
        if operation == FUSE_LOOKUP:
            os.write(asked, b"x")
        elif operation == FUSE_INIT:
            os.write(device, struct.pack("IiQ IIII48x", 80, 0, unique, 7, 19, 0, 0))
        elif operation != FUSE_INTERRUPT:
            os.write(device, struct.pack("IiQ", 16, -38, unique))


class Hanging(NamedTuple):
    """A file system in which a process that looks up a file hangs in the kernel."""

    folder: Path
    asked: int
    """A pipe with a byte for each such process."""
    server: int
    """When this process ends, so do those."""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"this account cannot make a FUSE file system: {error}")
    folder, (reader, writer), libc = tmp_path / "hanging", os.pipe(), ctypes.CDLL(None)
    folder.mkdir()
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"none", bytes(folder), b"fuse", ctypes.c_ulong(0), options.encode()):
        os.close(device)
        pytest.skip("this account cannot mount a file system")
    server = os.fork()
    if not server:
        with suppress(BaseException):
            serve(device, writer)
        os._exit(1)
    os.close(device)
    os.close(writer)
    yield Hanging(folder, reader, server)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    libc.umount2(bytes(folder), MNT_DETACH)
    os.close(reader)


def test_an_agent_that_hangs_in_the_kernel_does_not_keep_its_stage(unsealed: Jobd, hanging: Hanging) -> None:
    set_constant(unsealed, "sandbox.processes", "KILL_TIMEOUT_S", "20.0", "1.0")
    set_constant(unsealed, "stages.stage", "KILLED_S", "5.0", "1.0")
    unsealed.prepare()
    unsealed.start(f"echo at work; exec cat {hanging.folder}/file", timeout_s=1)
    os.read(hanging.asked, 1)
    ended = unsealed.wait("agent")
    assert (ended["state"], ended["error"], ended["log"]) == ("failed", "still_alive", b"at work\n")
    assert ended["message"] == "a process of the job cannot be killed"
    os.kill(hanging.server, signal.SIGKILL)
    wait_until(lambda: unsealed.call("kill")["alive"] == 0)
    assert unsealed.call("clean") == {"ok": True}


def test_a_killed_process_is_waited_for_although_its_stage_has_ended_before(unsealed: Jobd, hanging: Hanging) -> None:
    unsealed.prepare()
    unsealed.start(f"env -i cat {hanging.folder}/file & sleep 60")
    os.read(hanging.asked, 1)
    with ThreadPoolExecutor(1) as thread:
        killing = thread.submit(unsealed.call, "kill")
        time.sleep(1)
        assert not killing.done(), "it hangs in the kernel, and nothing in it names the job"
        os.kill(hanging.server, signal.SIGKILL)
        assert killing.result()["alive"] == 0
