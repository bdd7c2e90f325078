"""An account that is not root, as every account of a machine should be: it gets the same environments."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.jobd.sandbox import namespaces
from runner.model.machines import FAULTS
from tests.conftest import SEEN_BY_JOBS
from tests.support import refused_calls
from tests.support.jobd import Jobd, Repository, wait_until
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

MISSING = namespaces.find_missing(Path("/var/tmp"))
ACCOUNT = 54321

PYTHON = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
"""One that any account may run: ours may lie in somebody's home."""

needs_root = pytest.mark.skipif(
    os.getuid() != 0 or PYTHON is None, reason="all other tests run as such an account already, or none can run Python"
)
needs_overlay = pytest.mark.skipif(bool(MISSING), reason=f"this machine allows less: {MISSING}")


@pytest.fixture
def account(template: Repository) -> Iterator[Jobd]:
    """The program as such an account has it, with a workspace of its own."""
    with open_account(template, "/var/tmp") as jobd:
        yield jobd


@contextmanager
def open_account(template: Repository, place: str) -> Iterator[Jobd]:
    """Not below pytest's folder: every run of pytest that starts, in another terminal say, closes that to others."""
    with tempfile.TemporaryDirectory(prefix="ptq-account-", dir=place) as name:
        folder = Path(name)
        folder.chmod(0o755)
        repository = Repository(shutil.copytree(template.folder, folder / "origin"))
        jobd = Jobd(folder, repository, {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"})
        for path in (jobd.workspace, repository.folder, *repository.folder.rglob("*")):
            os.chown(path, ACCOUNT, ACCOUNT)
        jobd.account, jobd.python = ACCOUNT, PYTHON or ""
        yield jobd
        jobd.call("kill")


@needs_root
@needs_overlay
def test_another_run_of_pytest_does_not_take_its_folders_away(account: Jobd, tmp_path: Path) -> None:
    for folder in tmp_path.parents:
        if folder.name.startswith("pytest-of-"):
            folder.chmod(0o700)  # As pytest does where it finds another mode.
    assert account.prepare()["state"] == "done"


@needs_root
@needs_overlay
def test_its_job_writes_only_to_its_own_folders_and_to_those_that_the_operator_shares(template: Repository) -> None:
    """Elsewhere it could replace the workspace, or a program that jobd runs, although both are outside the home."""
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        folder = account.workspace.parent
        shared, closed = folder / "shared", folder / "closed"
        for path in (shared, closed):
            path.mkdir()
            os.chown(path, ACCOUNT, ACCOUNT)
        closed.chmod(0o555)  # Its owner could open it again.
        folder.chmod(0o1777)
        assert account.prepare(network="none", writable=[str(shared)])["state"] == "done"
        deeds = [f"touch {folder}/x", f"mkdir {folder}/y", f"chmod u+w {closed}", f"touch {shared}/x", "touch mine"]
        log = account.agent("; ".join(f"{deed} || echo refused" for deed in deeds) + "; echo done")["log"].decode()
        assert log.count("Read-only file system") == log.count("refused") == 3
        assert log.endswith("done\n")
        assert (shared / "x").exists()
        assert account.collect()["state"] == "done"


@needs_root
@needs_overlay
def test_a_workspace_that_is_mounted_at_two_places_is_hidden_at_both(template: Repository) -> None:
    """As by a line like `/mnt/nvme/ptq /srv/ptq none bind` in fstab(5)."""
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        disk, python = account.workspace.parent / "disk", account.workspace.parent / "python-with-a-mount"
        disk.mkdir()
        (account.workspace / "of-others").touch()
        mount = f"mount --bind {account.workspace} {disk}"
        words = f'unshare -Um --map-current-user --keep-caps sh -c \'{mount}; exec {PYTHON} "$@"\' sh "$@"'
        python.write_text(f"#!/bin/sh\nexec {words}\n")
        python.chmod(0o755)
        account.python = str(python)
        assert account.prepare(network="none", must_seal=True)["state"] == "done"
        log = account.agent(f"ls -A {disk} {account.workspace}; echo done")["log"].decode()
        assert ("of-others" in log, log.endswith("done\n")) == (False, True), log


@needs_root
@needs_overlay
@pytest.mark.parametrize("names", [[""], ["workspace/jobs"], ["link"], ["shared", "shared/inner"]])
def test_a_folder_cannot_be_shared_that_holds_what_no_job_may_reach_or_that_may_become_a_link(
    template: Repository, names: list[str]
) -> None:
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        folder = account.workspace.parent
        (folder / "shared" / "inner").mkdir(parents=True)
        (folder / "link").symlink_to("shared")
        prepared = account.prepare(writable=[f"{folder}/{name}".rstrip("/") for name in names])
        assert (prepared["state"], prepared["error"]) == ("failed", "not_sealed")


@needs_root
@needs_overlay
def test_a_folder_with_a_file_system_mounted_in_it_cannot_be_shared(template: Repository) -> None:
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        shared, python = account.workspace.parent / "shared", account.workspace.parent / "python-with-a-mount"
        (shared / "inner").mkdir(parents=True)
        words = f'sh -c \'mount -t tmpfs none {shared}/inner; exec {PYTHON} "$@"\' sh "$@"'
        python.write_text(f"#!/bin/sh\nexec unshare -Um --map-current-user --keep-caps {words}\n")
        python.chmod(0o755)
        account.python = str(python)
        prepared = account.prepare(writable=[str(shared)])
        assert (prepared["state"], prepared["error"]) == ("failed", "not_sealed")
        assert f"{shared}/inner" in prepared["message"]


@needs_root
@needs_overlay
def test_a_link_in_a_shared_folder_that_the_operator_names_shows_nothing_of_the_workspace(template: Repository) -> None:
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        shared = account.workspace.parent / "shared"
        shared.mkdir()
        os.chown(shared, ACCOUNT, ACCOUNT)
        repos = account.workspace / "repos"
        assert account.prepare(writable=[str(shared)])["state"] == "done"
        assert account.agent(f"ln -s {repos} {shared}/cache")["result"]["exit_status"] == 0
        (shared / "loop").symlink_to("loop")
        # Of `repos` a job sees its own clone in any case.
        (repos / "of-others").mkdir()
        other = account.beside()
        assert other.prepare(writable=[str(shared)])["state"] == "done"
        log = other.agent(f"ls {shared}/cache/; ls {shared}/loop || echo done")["log"].decode()
        assert ("of-others" in log, log.endswith("done\n")) == (False, True), log
        other.call("kill")


@needs_root
@needs_overlay
@pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
def test_it_runs_a_job_from_clone_to_change_in_every_way(account: Jobd, way: str) -> None:
    prepared = account.prepare(ways=[way], setup=["echo built > built"])
    assert prepared["state"] == "done", prepared["message"]
    log = account.agent("id -u; cat built; echo bee >> a.txt; rm b.txt; mv dir moved; chmod 000 built")["log"].decode()
    assert log == f"{ACCOUNT}\nbuilt\n"
    collected = account.collect()
    assert collected["state"] == "done", collected["message"]
    assert {change["path"] for change in account.result()["changes"]} == {"a.txt", "b.txt", "dir/c.txt", "moved/c.txt"}
    assert account.call("clean") == {"ok": True}
    assert account.beside().prepare(ways=[way], setup=["echo built > built"])["state"] == "done"


@needs_root
@needs_overlay
@pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
@pytest.mark.parametrize("closed", [".", "..", ".git", ".git/objects"])
def test_folders_that_a_bases_commands_close_are_no_fault_of_the_machine(account: Jobd, way: str, closed: str) -> None:
    setup = [f"chmod 000 {closed}"]
    for _ in range(2):
        account.repository.commit({"new": "x"})
        prepared = account.beside().prepare(ways=[way], setup=setup)
        assert prepared["error"] not in FAULTS


USE_UP = """
import ctypes, os, sys, time
libc, flag = ctypes.CDLL(None), int(sys.argv[1])

def raise_limits():
    for name in os.listdir("/proc/sys/user"):
        try:
            with open(f"/proc/sys/user/{name}", "w") as file:
                file.write("100000")
            print("raised", name)
        except OSError:
            pass

raise_limits()
user, group = os.getuid(), os.getgid()
assert libc.unshare(0x10000000 | 0x00020000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
libc.umount2(b"/proc/sys", 2)
libc.mount(b"proc", b"/proc", b"proc", 0, None)
raise_limits()
made = 0
for number in range(100):
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, b"+" if libc.unshare(flag) == 0 else b"-")
        time.sleep(60)
    made += os.read(reader, 1) == b"+"
print(made)
"""


@needs_root
@needs_overlay
@pytest.mark.parametrize("kind", ["user", "mount", "pid", "ipc", "network"])
def test_no_job_can_use_up_its_namespaces(account: Jobd, kind: str) -> None:
    flag = {**namespaces.CLONE, "network": namespaces.CLONE_NETWORK}[kind]
    account.prepare()
    log = account.agent(f'python3 - {flag} < "$PTQ_PROMPT_FILE"', prompt=USE_UP)["log"].decode()
    assert 32 <= int(log) <= namespaces.MAX_NESTED


def enter(account: Jobd, term: str) -> Terminal:
    """A person in the job, with this terminal."""
    account.job.hold.write_text(json.dumps({"until": time.time() + 60.0}))
    os.chown(account.job.hold, ACCOUNT, ACCOUNT)
    words = [account.python, "-I", str(account.program), "enter", str(account.workspace), account.job_id]
    person = Terminal(words, {**account.env, "TERM": term}, before=account.be_its_machine)
    person.wait_for(f"[ptq {account.job_id}]")
    return person


DESCRIBE = """
for name in xterm dumb planted; do
    printf '%s|planted,\\n\\tam, bel=EVIL, cols#80,\\n' $name | tic -o $HOME/.terminfo -
done
"""


@needs_root
@needs_overlay
@pytest.mark.skipif(shutil.which("tic") is None, reason="this machine has no ncurses programs")
def test_no_description_of_a_terminal_that_an_agent_wrote_is_used_for_a_person(account: Jobd) -> None:
    """As root, ncurses looks into no home."""
    account.prepare()
    account.agent(DESCRIBE)
    for term, used in (("xterm", "xterm"), ("dumb", "dumb"), ("planted", "dumb")):
        person = enter(account, term)
        person.be_quiet()
        assert person.ask("echo $TERM; infocmp -1 | grep -c EVIL") == f"{used}\n0\n"
        assert person.ask("unset TERMINFO; infocmp -1 | grep -c EVIL") == "1\n"
        person.type("exit")
        assert person.end() == 0


SEND = """
import array, os, resource, socket, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
some = array.array("i", [0] * 200)
kept = []
try:
    while len(kept) < 20:
        kept.append(socket.socketpair())
        kept[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)])
except OSError as error:
    print(hard, error.strerror, flush=True)
time.sleep(60)
"""
"""Sends descriptors that nobody receives, as many as the account may."""


@needs_root
@needs_overlay
def test_a_job_that_sends_all_descriptors_keeps_nobody_from_entering_another(account: Jobd) -> None:
    account.python = str(account.workspace.parent / "python")
    Path(account.python).write_text(f'#!/bin/sh\nulimit -Sn 500; ulimit -Hn 2000; exec {PYTHON} "$@"\n')
    Path(account.python).chmod(0o755)
    account.prepare()
    entered = account.beside()
    assert entered.prepare()["state"] == "done"
    account.start('python3 - < "$PTQ_PROMPT_FILE"', prompt=SEND, timeout_s=60)
    wait_until(lambda: account.poll("agent")["log"] == b"1000 Too many references: cannot splice\n")
    person = enter(entered, "dumb")
    person.type("ulimit -Sn; ulimit -Hn; exit")
    person.wait_for("500\r\n1000")
    assert person.end() == 0


@needs_root
@needs_overlay
def test_a_job_leaves_half_of_all_watches_to_others(account: Jobd) -> None:
    account.prepare()
    names = "max_inotify_instances max_inotify_watches max_fanotify_groups max_fanotify_marks"
    log = account.agent(f"cd /proc/sys/user; cat {names}")["log"].split()
    assert [*map(int, log)] == [int(Path("/proc/sys/user", name).read_text()) // 2 for name in names.split()]


QUEUE = """
import ctypes, os, resource, signal
for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (hard, hard))
libc, number = ctypes.CDLL(None), signal.SIGRTMIN
signal.pthread_sigmask(signal.SIG_BLOCK, {number})
queued = 0
while libc.sigqueue(os.getpid(), number, None) == 0:
    queued += 1
print(queued, resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1])
"""
"""Queues as many signals as it may."""


@needs_root
@needs_overlay
def test_a_job_leaves_half_of_all_queued_signals_and_messages_to_others(account: Jobd) -> None:
    account.prepare()
    log = account.agent('python3 - < "$PTQ_PROMPT_FILE"', prompt=QUEUE)["log"].split()
    queued, messages = map(int, log)
    assert 0 < queued <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // 2
    assert messages == resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1] // 2


@needs_root
@needs_overlay
def test_sandboxes_can_be_nested_in_its_jobs(account: Jobd) -> None:
    account.prepare()
    nested = "unshare -Urmpf sh -c 'unshare -Un true && echo nested'"
    assert account.agent(f"for n in 1 2 3; do {nested}; done")["log"] == b"nested\n" * 3


@needs_root
@needs_overlay
def test_what_it_started_is_found_and_killed(account: Jobd) -> None:
    account.prepare()
    account.start("env -i setsid sleep 60 & sleep 60")
    assert account.call("kill")["alive"] == 0
    assert account.wait("agent")["state"] == "lost"


@needs_root
@needs_overlay
def test_it_has_no_right_over_its_cell(account: Jobd) -> None:
    account.prepare()
    log = account.agent("grep CapEff /proc/self/status; umount -l /tmp || echo refused")["log"].decode()
    assert "CapEff:\t0000000000000000\n" in log
    assert log.endswith("refused\n")


@needs_root
@needs_overlay
def test_its_job_makes_no_keys_holds_up_nobody_and_changes_nothing_in_sys(account: Jobd) -> None:
    kind = os.uname().machine
    if kind not in refused_calls.ANSWERS:
        pytest.skip("this kind of machine has no filter")
    account.prepare()
    log = account.agent(f'{PYTHON} - {kind} < "$PTQ_PROMPT_FILE"', prompt=refused_calls.PROGRAM)["log"].decode()
    assert log == refused_calls.ANSWERS[kind]
    other = account.beside()
    other.prepare()
    writable = "awk '$5 ~ \"^/sys(/|$)\" && $6 !~ /^ro/ { print $5 }' /proc/self/mountinfo"
    again = "unshare -Urm sh -ec 'echo inside; mount -o remount,bind,rw /sys 2> /dev/null; echo again' || true"
    assert other.agent(f"{writable}; {again}")["log"] == b"inside\n"


@pytest.fixture
def used_up() -> Iterator[None]:
    """The account is logged in, and has as many keys as it may have."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(250, 1, None)  # A session keyring, as from pam_keyinit(8). A process without one gets it beyond quota.
    (reader, ready), (end, writer) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.setgid(ACCOUNT)
        os.setuid(ACCOUNT)
        number = 0
        while libc.syscall(248, b"user", f"key-{number}".encode(), b"x", 1, -2) > 0:  # In the process's own keyring.
            number += 1
        os.write(ready, bytes([ctypes.get_errno()]))
        os.close(writer)
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    try:
        if os.read(reader, 1) != bytes([errno.EDQUOT]):
            pytest.skip("this machine has no keyrings for us")
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(ready)


@needs_root
@needs_overlay
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its system calls have other numbers")
@pytest.mark.usefixtures("used_up")
def test_a_job_runs_although_the_account_has_used_up_its_keys(account: Jobd) -> None:
    prepared = account.prepare(setup=["echo set up"])
    assert prepared["state"] == "done", prepared["message"]
    assert account.agent("echo at work")["log"] == b"at work\n"


@needs_root
@needs_overlay
@pytest.mark.parametrize("way", ["overlay", "copy"])
def test_a_job_that_closes_its_own_folder_is_followed_stopped_collected_and_removed(account: Jobd, way: str) -> None:
    account.prepare(ways=[way])
    account.start('echo x > x; chmod 000 "${PTQ_OUTPUT_DIR%/*}"; echo closed; sleep 60')
    wait_until(lambda: account.poll("agent")["log"] == b"closed\n")
    account.root.chmod(0o000)
    account.call("stop")
    assert account.wait("agent")["result"]["stopped"] is True
    account.root.chmod(0o000)
    assert account.collect()["state"] == "done"
    assert [change["path"] for change in account.result()["changes"]] == ["x"]
    account.root.chmod(0o000)
    assert account.call("clean") == {"ok": True}
    assert not account.root.exists()


@needs_root
@needs_overlay
@pytest.mark.parametrize("close", ['chmod 000 "$0"', 'while :; do chmod 000 "$0"; done'])
def test_what_a_job_that_closes_its_own_folder_leaves_at_a_slots_place_is_removed(account: Jobd, close: str) -> None:
    account.prepare(ways=["slot"])
    place = account.place
    account.start(f"""cd "$PTQ_OUTPUT_DIR/.."; sh -c '{close}' "$PWD" & sleep 60""")
    wait_until(lambda: account.root.stat().st_mode & 0o777 == 0)
    assert account.call("clean") == {"ok": True}
    assert not place.exists()
