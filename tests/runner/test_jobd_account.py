"""An account that is not root, as every account of a machine should be: it gets the same environments."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.jobd.sandbox import namespaces
from runner.model.machines import FAULTS
from tests.conftest import SEEN_BY_JOBS
from tests.support import refused_calls
from tests.support.jobd import Jobd, Repository, wait_until
from tests.support.sandboxes import MISSING
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

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
        jobd.account = ACCOUNT
        yield jobd
        jobd.call("kill")


@needs_root
@needs_overlay
def test_its_job_writes_only_to_its_own_folders_and_to_those_that_the_operator_shares(template: Repository) -> None:
    """Elsewhere it could replace the workspace, or a program that jobd runs, although both are outside the home."""
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        folder, repos = account.workspace.parent, account.workspace / "repos"
        shared, closed = folder / "shared", folder / "closed"
        for path in (shared, closed):
            path.mkdir()
            os.chown(path, ACCOUNT, ACCOUNT)
        closed.chmod(0o555)  # Its owner could open it again.
        folder.chmod(0o1777)
        assert account.prepare(network="none", writable=[str(shared)])["state"] == "done"
        tried = [f"touch {folder}/x", f"mkdir {folder}/y", f"chmod u+w {closed}", f"touch {shared}/x", "touch mine"]
        tried.append(f"ln -s {repos} {shared}/cache")
        log = account.agent("; ".join(f"{one} || echo refused" for one in tried) + "; echo done")["log"].decode()
        assert log.count("Read-only file system") == log.count("refused") == 3
        assert log.endswith("done\n")
        assert (shared / "x").exists()
        assert account.collect()["state"] == "done"

        # A link that the job has left in the shared folder shows the next one nothing of the workspace.
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
def test_a_folder_cannot_be_shared_that_holds_what_no_job_may_reach_or_that_may_become_a_link(
    template: Repository,
) -> None:
    """Nor one with a file system mounted in it."""
    with open_account(template, str(SEEN_BY_JOBS)) as account:
        folder = account.workspace.parent
        (folder / "shared" / "inner").mkdir(parents=True)
        (folder / "link").symlink_to("shared")
        for names in ([""], ["workspace/jobs"], ["link"], ["shared", "shared/inner"]):
            prepared = account.beside().prepare(writable=[f"{folder}/{name}".rstrip("/") for name in names])
            assert (prepared["state"], prepared["error"]) == ("failed", "not_sealed"), names

        python = folder / "python-with-a-mount"
        words = f'sh -c \'mount -t tmpfs none {folder}/shared/inner; exec {PYTHON} "$@"\' sh "$@"'
        python.write_text(f"#!/bin/sh\nexec unshare -Um --map-current-user --keep-caps {words}\n")
        python.chmod(0o755)
        account.python = str(python)
        prepared = account.prepare(writable=[f"{folder}/shared"])
        assert (prepared["state"], prepared["error"]) == ("failed", "not_sealed")
        assert f"{folder}/shared/inner" in prepared["message"]


@needs_root
@needs_overlay
@pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
def test_it_runs_a_job_from_clone_to_change_in_every_way_also_one_that_closes_its_own_folder(
    account: Jobd, tmp_path: Path, way: str
) -> None:
    for folder in tmp_path.parents:
        if folder.name.startswith("pytest-of-"):
            folder.chmod(0o700)  # As another run of pytest does where it finds another mode.
    prepared = account.prepare(ways=[way], setup=["echo built > built"])
    assert prepared["state"] == "done", prepared["message"]
    place = account.place
    work = "id -u; cat built; echo bee >> a.txt; rm b.txt; mv dir moved; chmod 000 built"
    account.start(f'{work}; chmod 000 "${{PTQ_OUTPUT_DIR%/*}}"; echo closed; sleep 60')
    wait_until(lambda: account.poll("agent")["log"].endswith(b"closed\n"))
    assert account.poll("agent")["log"].decode() == f"{ACCOUNT}\nbuilt\nclosed\n"
    account.root.chmod(0o000)
    account.call("stop")
    assert account.wait("agent")["result"]["stopped"] is True
    account.root.chmod(0o000)
    collected = account.collect()
    assert collected["state"] == "done", collected["message"]
    assert {change["path"] for change in account.result()["changes"]} == {"a.txt", "b.txt", "dir/c.txt", "moved/c.txt"}
    account.root.chmod(0o000)
    assert account.call("clean") == {"ok": True}
    assert not account.root.exists()
    assert way != "slot" or not place.exists()

    # Another one is killed, or closes its folder again and again.
    later = account.beside()
    assert later.prepare(ways=[way], setup=["echo built > built"])["state"] == "done"
    if way == "slot":
        close = 'while :; do chmod 000 "$0"; done'
        later.start(f"""cd "$PTQ_OUTPUT_DIR/.."; sh -c '{close}' "$PWD" & sleep 60""")
        wait_until(lambda: later.root.stat().st_mode & 0o777 == 0)
    else:
        later.start("env -i setsid sleep 60 & sleep 60")
        assert later.call("kill")["alive"] == 0
        assert later.wait("agent")["state"] == "lost"
    assert later.call("clean") == {"ok": True}
    assert way != "slot" or not place.exists()


@needs_root
@needs_overlay
@pytest.mark.parametrize(
    ("way", "all_closed"),
    [("overlay", [".", "..", ".git", ".git/objects"]), ("copy", [".", ".."]), ("slot", [".", ".."])],
)
def test_folders_that_a_bases_commands_close_are_no_fault_of_the_machine(
    account: Jobd, way: str, all_closed: list[str]
) -> None:
    for closed in all_closed:
        for _ in range(2):
            account.repository.commit({"new": "x"})
            prepared = account.beside().prepare(ways=[way], setup=[f"chmod 000 {closed}"])
            assert prepared["error"] not in FAULTS, closed


# What an account leaves to its jobs


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
while libc.unshare(0x10000000 | 0x00020000):
    time.sleep(0.02)  # The namespaces of the run before this one go a moment after their last process.
for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
libc.umount2(b"/proc/sys", 2)
libc.mount(b"proc", b"/proc", b"proc", 0, None)
raise_limits()
made, children = 0, []
for number in range(100):
    reader, writer = os.pipe()
    children.append(os.fork())
    if not children[-1]:
        os.write(writer, b"+" if libc.unshare(flag) == 0 else b"-")
        time.sleep(60)
    made += os.read(reader, 1) == b"+"
print(made)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


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

LIMITS = ("max_inotify_instances", "max_inotify_watches", "max_fanotify_groups", "max_fanotify_marks")
KIND = os.uname().machine
NESTED = "unshare -Urmpf sh -c 'unshare -Un true && echo nested'"
WRITABLE_IN_SYS = "awk '$5 ~ \"^/sys(/|$)\" && $6 !~ /^ro/ { print $5 }' /proc/self/mountinfo"
MOUNT_AGAIN = "unshare -Urm sh -ec 'echo inside; mount -o remount,bind,rw /sys 2> /dev/null; echo again' || true"
NAMESPACES = {**namespaces.CLONE, "network": namespaces.CLONE_NETWORK}


def run_python(program: str, *words: object) -> str:
    return f"{PYTHON} - {' '.join(map(str, words))} <<'END'\n{program}\nEND"


LOOKS: Mapping[str, str] = {
    "cell": "grep CapEff /proc/self/status; umount -l /tmp || echo refused",
    "limits": f"(cd /proc/sys/user; cat {' '.join(LIMITS)})",
    "nested": f"for n in 1 2 3; do {NESTED}; done",
    "sys": f"{WRITABLE_IN_SYS}; {MOUNT_AGAIN}",
    "queue": run_python(QUEUE),
    "calls": run_python(refused_calls.PROGRAM, KIND) if KIND in refused_calls.ANSWERS else ":",
    **{kind: run_python(USE_UP, flag) for kind, flag in NAMESPACES.items()},
}


@pytest.fixture(scope="module")
def seen(template: Repository) -> Mapping[str, str]:
    """What one job sees at each look."""
    with open_account(template, "/var/tmp") as account:
        assert account.prepare()["state"] == "done"
        script = "\n".join(f"echo '<{name}>'\n{look}" for name, look in LOOKS.items())
        log = account.agent(script, timeout_s=60)["log"].decode()
    words = re.split(r"^<(.*)>\n", log, flags=re.MULTILINE)
    return dict(zip(words[1::2], words[2::2], strict=True))


@needs_root
@needs_overlay
@pytest.mark.parametrize("kind", NAMESPACES)
def test_no_job_can_use_up_its_namespaces(seen: Mapping[str, str], kind: str) -> None:
    assert 32 <= int(seen[kind]) <= namespaces.MAX_NESTED


@needs_root
@needs_overlay
def test_a_job_leaves_half_of_all_watches_to_others(seen: Mapping[str, str]) -> None:
    halves = [int(Path("/proc/sys/user", name).read_text()) // 2 for name in LIMITS]
    assert [*map(int, seen["limits"].split())] == halves


@needs_root
@needs_overlay
def test_a_job_leaves_half_of_all_queued_signals_and_messages_to_others(seen: Mapping[str, str]) -> None:
    queued, messages = map(int, seen["queue"].split())
    assert 0 < queued <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // 2
    assert messages == resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1] // 2


@needs_root
@needs_overlay
def test_sandboxes_can_be_nested_in_its_jobs(seen: Mapping[str, str]) -> None:
    assert seen["nested"] == "nested\n" * 3


@needs_root
@needs_overlay
def test_it_has_no_right_over_its_cell(seen: Mapping[str, str]) -> None:
    assert "CapEff:\t0000000000000000\n" in seen["cell"]
    assert seen["cell"].endswith("refused\n")


@needs_root
@needs_overlay
def test_its_job_makes_no_keys_holds_up_nobody_and_changes_nothing_in_sys(seen: Mapping[str, str]) -> None:
    if KIND not in refused_calls.ANSWERS:
        pytest.skip("this kind of machine has no filter")
    assert seen["calls"] == refused_calls.ANSWERS[KIND]
    assert seen["sys"] == "inside\n"


# What it leaves to people, and to other jobs


def enter(account: Jobd, term: str) -> Terminal:
    """A person in the job, with this terminal."""
    account.job.hold.write_text(json.dumps({"until": time.time() + 60.0}))
    os.chown(account.job.hold, ACCOUNT, ACCOUNT)
    python = PYTHON if account.python == sys.executable else account.python
    words = [str(python), "-I", "-S", str(account.program), "enter", str(account.workspace), account.job_id]
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
    account.python = str(PYTHON)  # A program that had begun before would have no session keyring.
    prepared = account.prepare(setup=["echo set up"])
    assert prepared["state"] == "done", prepared["message"]
    assert account.agent("echo at work")["log"] == b"at work\n"
