"""The processes of a job: they outlive the connection, and nothing of them outlives the job, whatever they do."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.sandbox.processes import find_processes, read_process
from tests.support.hiding import HIDES
from tests.support.jobd import COLLECT, LIMITS, PATIENCE_S, START, Jobd, processes_with, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

STUBBORN = """
import os, signal, sys, time
mark, how = sys.argv[1:]
if how != "stays":
    os.setsid()
    if os.fork():
        os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", mark], {})
"""
"""A process that leaves its parent and its session, ignores what can be ignored and clears its environment."""

HEADLESS = """
import ctypes, os, sys, threading, time
if not os.fork():
    threading.Thread(target=time.sleep, args=(60,)).start()
    open(sys.argv[1], "w").write(str(os.getpid()))
    ctypes.CDLL(None).pthread_exit(None)
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
    time.sleep(0.01)
"""
"""It leaves a process whose first thread has ended while another goes on."""


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word for a command line, by which a process is found when nothing else leads to it."""
    mark = f"stray-of-{tmp_path}"
    yield mark
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)


def stubborn(folder: Path, mark: str, how: str = "leaves") -> str:
    """A shell command for such a process."""
    script = folder / "stubborn.py"
    script.write_text(STUBBORN)
    return f"{sys.executable} {script} {mark} {how}"


def stage_of(jobd: Jobd) -> int:
    """The process of the job's running stage."""
    found = {pid for pid in processes_with("stage") if pid in processes_with(str(jobd.program))}
    (stage,) = (pid for pid in found if (process := read_process(pid)) and process.parent not in found)
    return stage


def test_a_stage_outlives_the_session_of_whoever_started_it(jobd: Jobd) -> None:
    jobd.prepare()
    with jobd.popen("start", start_new_session=True) as starter:
        request = {"argv": ["/bin/sh", "-c", "sleep 0.5; echo survived"], "env": {}, "prompt": "", **START, **LIMITS}
        starter.communicate(jobd.body(**request))
        with pytest.raises(ProcessLookupError):  # What it started is no part of its process group.
            os.killpg(starter.pid, signal.SIGKILL)
    ended = jobd.wait("agent")
    assert (ended["state"], ended["log"]) == ("done", b"survived\n")
    assert ended["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def describe_process(pid: int) -> dict[str, Any]:
    """What a process is, and what it has from whoever began it."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    rights = ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "SigBlk", "SigIgn")
    words, variables = ((folder / name).read_text().strip("\0").split("\0") for name in ("cmdline", "environ"))
    return {
        "words": words,
        "job": [text for text in variables if text.startswith("PTQ_JOB_ID=")],
        "cwd": (folder / "cwd").readlink(),
        "files": [(folder / "fd" / number).readlink() for number in "012"],
        "leads its session": os.getsid(pid) == pid,
        "inherited": {name: status[name] for name in rights} | {"limits": (folder / "limits").read_text()},
    }


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_stage_is_a_process_of_its_own_that_belongs_to_its_job(jobd: Jobd, is_warm: bool) -> None:
    jobd.is_warm = is_warm
    about = find_stage_of_a_job(jobd)
    log, words = jobd.control / "agent.log", ["-I", "-S", str(jobd.program), "stage", "agent"]
    assert about["words"] == [sys.executable, *words, str(jobd.control / "agent.request")]
    assert about["job"] == [f"PTQ_JOB_ID={jobd.job_id}"]
    assert (about["cwd"], about["files"]) == (jobd.workspace, [Path(os.devnull), log, log])
    assert about["leads its session"]


def test_a_stage_has_the_same_rights_in_a_process_that_has_imported_the_program_already(unsealed: Jobd) -> None:
    cold = unsealed.beside()
    cold.is_warm = False
    found = [find_stage_of_a_job(one) for one in (unsealed, cold)]
    assert found[0]["inherited"] == found[1]["inherited"]


def find_stage_of_a_job(jobd: Jobd) -> dict[str, Any]:
    jobd.prepare()
    jobd.start("echo at work; sleep 60")
    wait_until(lambda: jobd.poll("agent")["log"] == b"at work\n")
    about = describe_process(stage_of(jobd))
    jobd.call("kill")
    return about


@pytest.mark.parametrize("can_seal", [True, False])
def test_what_an_agent_leaves_behind_dies_with_it(jobd: Jobd, tmp_path: Path, mark: str, can_seal: bool) -> None:
    jobd.can_seal = can_seal
    jobd.prepare()
    (tmp_path / "hides.py").write_text(HIDES)
    sleeps = f"{sys.executable} -c 'import time; time.sleep(60)' {mark}"
    leave = f"{stubborn(tmp_path, mark)}; {sys.executable} {tmp_path}/hides.py {mark}; {sleeps} &"
    # The whole command line: the shell's own has these words, too.
    alive = f"pgrep -fxc '{sys.executable} -c import time; time.sleep.60. {mark}'"
    ended = jobd.agent(f"{leave} until [ $({alive}) = 3 ]; do sleep 0.01; done; exit 7")
    assert ended["result"]["exit_status"] == 7
    assert processes_with(mark) == []


def test_a_process_whose_first_thread_has_ended_dies_as_well(unsealed: Jobd, tmp_path: Path) -> None:
    jobd = unsealed
    jobd.prepare()
    (tmp_path / "headless.py").write_text(HEADLESS)
    jobd.agent(f"exec {sys.executable} {tmp_path}/headless.py {tmp_path}/pid")
    stray = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{stray}/task").exists() or len(list(Path(f"/proc/{stray}/task").iterdir())) < 2


def test_kill_finds_whatever_hides_and_what_names_another_job(unsealed: Jobd, tmp_path: Path, mark: str) -> None:
    jobd, other = unsealed, unsealed.beside()
    jobd.prepare()
    forge = f"PTQ_JOB_ID={other.job_id} {sys.executable} -c 'import time; time.sleep(60)' {mark}"
    stays, leaves = (stubborn(tmp_path, mark, how) for how in ("stays", "leaves"))
    jobd.start(f"{stays} & {leaves} & {leaves}; {forge} & sleep 60")
    wait_until(lambda: len(processes_with(mark)) == 4)
    assert other.call("kill")["killed"] == 0, "a process belongs to the job above it"
    answer = jobd.call("kill")
    assert answer["alive"] == 0
    assert answer["killed"] >= 6
    assert processes_with(mark) == []
    assert jobd.poll("agent")["state"] == "lost"
    assert jobd.call("kill") == {"ok": True, "killed": 0, "alive": 0}


def test_a_signal_that_ended_the_agent_is_told_as_a_shell_would_and_a_log_of_the_allowed_length_is_whole(
    jobd: Jobd,
) -> None:
    jobd.prepare()
    ended = jobd.agent("printf 1234567890; kill -SEGV $$", max_log_bytes=10)
    result = ended["result"]
    assert (result["exit_status"], result["timed_out"]) == (128 + signal.SIGSEGV, False)
    assert (ended["log"], result["log_truncated"]) == (b"1234567890", False)


def test_a_stage_that_was_killed_is_lost_and_kill_finds_what_it_left(unsealed: Jobd, mark: str) -> None:
    jobd = unsealed
    jobd.prepare()
    jobd.start(f"{sys.executable} -c 'import os, time; os.setsid(); print(1, flush=1); time.sleep(60)' {mark} & wait")
    wait_until(lambda: jobd.poll("agent")["log"])
    os.kill(stage_of(jobd), signal.SIGKILL)
    wait_until(lambda: jobd.poll("agent")["state"] == "lost")
    assert len(processes_with(mark)) == 1
    assert jobd.call("kill")["alive"] == 0
    assert processes_with(mark) == []
    assert jobd.ask("start", argv=["true"], env={}, prompt="", **START, **LIMITS)["started"] is False


def test_jobs_do_not_kill_each_others_processes_nor_does_what_names_another_job_keep_that_from_being_cleaned(
    jobd: Jobd, mark: str
) -> None:
    neighbour = jobd.beside()
    jobd.prepare()
    neighbour.prepare()
    forge = f"PTQ_JOB_ID={jobd.job_id} setsid {sys.executable} -c 'import time; time.sleep(60)' {mark}"
    neighbour.start(f"while :; do ({forge} &); sleep 0.2; done")
    wait_until(lambda: processes_with(mark))
    assert jobd.agent("true")["state"] == "done"
    wait_until(lambda: not find_processes(jobd.job_id))  # Its stage is about to end.
    assert jobd.call("kill")["alive"] == 0
    assert jobd.call("clean") == {"ok": True}
    assert neighbour.poll("agent")["state"] == "running"
    assert processes_with(mark)
    ended = neighbour.call("kill")
    assert (ended["killed"] >= 2, ended["alive"]) == (True, 0)
    assert processes_with(mark) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can read the environment of another account's processes")
@pytest.mark.parametrize("account", [{"user": 54399}, {"preexec_fn": lambda: os.setresuid(54399, 0, 0)}])
def test_a_process_of_another_account_belongs_to_no_job(account: dict[str, Any]) -> None:
    job_id = secrets.token_hex(5)
    with subprocess.Popen(["/bin/sleep", "60"], env={"PTQ_JOB_ID": job_id}, **account) as stranger:
        assert find_processes(job_id) == []
        with subprocess.Popen(["/bin/sleep", "60"], env={"PTQ_JOB_ID": job_id}) as own:
            assert [process.pid for process in find_processes(job_id)] == [own.pid]
            own.kill()
        stranger.kill()


def test_a_thread_of_the_kernel_is_no_process() -> None:
    name = Path("/proc/2/comm")
    if not name.exists() or name.read_text() != "kthreadd\n":
        pytest.skip("we see no threads of the kernel here")
    assert read_process(2) is None


def test_jobd_that_itself_runs_in_a_job_finds_the_processes_of_its_own_jobs() -> None:
    outer, inner = secrets.token_hex(5), secrets.token_hex(5)
    program = f"""
import subprocess
from runner.jobd.sandbox.processes import kill_processes
with subprocess.Popen(["sleep", "60"], env={{"PTQ_JOB_ID": "{inner}", "PATH": "/usr/bin:/bin"}}):
    print(kill_processes("{inner}"), kill_processes("{outer}"))
"""
    env = {**os.environ, "PTQ_JOB_ID": outer}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "(1, 0) (0, 0)\n"


def test_collecting_kills_what_is_left_of_the_agent_first(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.start("while :; do date +%N > clock; done")
    wait_until(lambda: jobd.find("clock").exists())
    assert jobd.collect()["state"] == "done"
    assert jobd.poll("agent")["state"] == "lost"
    wait_until(lambda: not find_processes(jobd.job_id))


def test_an_agent_that_has_closed_its_output_is_followed_at_leisure_and_ended_orphans_do_not_pile_up(
    jobd: Jobd,
) -> None:
    jobd.prepare()
    jobd.start("for i in $(seq 50); do (sh -c : &); done; echo last words; exec > /dev/null 2>&1; sleep 60")
    wait_until(lambda: jobd.poll("agent")["log"] == b"last words\n")
    stage = stage_of(jobd)
    # The agent, and the watcher over the disk.
    wait_until(lambda: len(Path(f"/proc/{stage}/task/{stage}/children").read_text().split()) == 2)

    def ticks() -> int:
        fields = Path(f"/proc/{stage}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.5)
    assert ticks() - before < 15  # of 50
    assert jobd.poll("agent")["state"] == "running"


def test_an_agent_that_forks_without_end_is_ended(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.start("f() { (sleep 0.2; exec sleep 60) & sleep 0.001; }; while :; do f; done", timeout_s=30)
    time.sleep(0.5)
    assert jobd.call("kill")["alive"] == 0
    assert find_processes(jobd.job_id) == []


# The log


def test_a_log_that_grows_too_long_is_cut_which_is_said_once(jobd: Jobd) -> None:
    jobd.prepare()
    ended = jobd.agent("yes 123456789 | head -n 300000; echo end; exit 5", max_log_bytes=1000)
    assert ended["log"] == b"123456789\n" * 100 + b"\n[The log is cut here: it is too long.]\n"
    assert (ended["result"]["exit_status"], ended["result"]["log_truncated"]) == (5, True)


def test_a_log_may_hold_any_bytes_is_read_in_pieces_and_is_whole_once_a_stage_has_ended(jobd: Jobd) -> None:
    jobd.prepare()
    written = b"\xff\xfe\0\xc3(\xe2\x82 text\r\n\x1b[31m"
    program = f"import os; os.write(1, {written!r}); [print(i) for i in range(20000)]; print('x' * 60000)"
    log = jobd.agent("", argv=[sys.executable, "-c", program], max_log_bytes=1_000_000)["log"]
    assert log.startswith(written)
    assert log.count(b"\n") == 20002
    assert log.endswith(b"\n" + b"x" * 60000 + b"\n")
    pieces = [jobd.poll("agent", log_offset=offset, log_limit=7) for offset in (0, 7, 14)]
    assert b"".join(piece["log"] for piece in pieces) == log[:21]
    assert {piece["log_size"] for piece in pieces} == {len(log)}
    assert jobd.poll("agent", log_offset=10**9)["log"] == b""


# What an agent does to the files by which it is followed


def test_pipes_among_our_own_files_hold_nobody_up_and_a_state_of_a_terabyte_is_not_read(unsealed: Jobd) -> None:
    """Where jobs are not sealed, an agent can put them there."""
    jobd = unsealed
    jobd.prepare()
    for name in ("collect.lock", "collect.log", "collect.json.part", "collect.request"):
        os.mkfifo(jobd.control / name)
        begin = time.monotonic()
        answer = jobd.ask("collect", base_commit="0" * 40, **COLLECT)
        assert answer.get("started", False) is False
        assert jobd.poll("collect")["state"] in ("absent", "lost")
        assert time.monotonic() - begin < PATIENCE_S
        (jobd.control / name).unlink()
    (jobd.control / "collect.json").touch()
    os.truncate(jobd.control / "collect.json", 2**40)
    (jobd.control / "collect.request").touch()
    assert jobd.poll("collect")["state"] == "lost"


def test_an_agent_that_deletes_everything_of_its_job_is_no_more_than_that(unsealed: Jobd) -> None:
    jobd = unsealed
    jobd.prepare()
    jobd.start('rm -rf "${PTQ_OUTPUT_DIR%/*/*}"')
    wait_until(lambda: jobd.poll("agent")["state"] == "absent")
    wait_until(lambda: not find_processes(jobd.job_id))
    assert jobd.collect()["error"] == "worktree_gone"
    assert jobd.call("result")["report"] == ""


def test_whoever_waits_for_a_log_to_grow_is_answered_as_soon_as_it_has_or_the_stage_has_ended(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.start("sleep 0.5; echo one; sleep 0.7")
    began = time.monotonic()
    first = jobd.poll("agent", wait_ms=9_000)
    assert (first["state"], first["log"]) == ("running", b"one\n")
    assert time.monotonic() - began < 8
    ended = jobd.poll("agent", log_offset=4, wait_ms=9_000)
    assert (ended["state"], ended["log"]) == ("done", b"")
    began = time.monotonic()
    assert jobd.poll("agent", log_offset=4, wait_ms=9_000)["state"] == "done"
    assert jobd.poll("collect", wait_ms=9_000)["state"] == "absent"
    assert time.monotonic() - began < 8, "nothing more will come"
