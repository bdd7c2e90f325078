"""What a job reaches of its machine: a hostile one tries each way out, over real namespaces, and finds nothing.

Where this machine has none, that is said, and the tests of the fall-back remain.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

import pytest

from runner.jobd.files import Failure
from runner.jobd.git import find_git_folders
from runner.jobd.sandbox import child, landlock, namespaces, sandbox, syscalls, trial
from runner.jobd.sandbox.processes import find_processes, kill_processes
from runner.jobd.sandbox.tools import choose_named, find_tools
from tests.support import lesser_kernel, refused_calls
from tests.support.jobd import COLLECT, Jobd, Repository, find_first, processes_with, wait_until
from tests.support.made_base import MadeBase
from tests.support.sandboxes import MISSING, SEALED

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]


needs_cells = pytest.mark.skipif(not SEALED, reason=f"this machine seals no jobs: {trial.describe_sandbox(MISSING)}")

SECRET, PART = "hunter2", "tool at work\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The account's home: a key, and a program of its own. Beside it is the service's folder."""
    home = tmp_path_factory.mktemp("machine") / "account"
    for path, text, mode in [
        (".ssh/id_ed25519", SECRET, 0o600),
        (".local/share/tool/versions/1/tool", "#!/bin/sh\ncat $(dirname $(readlink -f $0))/part\n", 0o755),
        (".local/share/tool/versions/1/part", PART, 0o644),
        (".local/share/keyrings/login", SECRET, 0o600),
        ("../service/ptq.toml", SECRET, 0o600),
    ]:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
        (home / path).chmod(mode)
    (home / ".local/bin").mkdir()
    (home / ".local/bin/tool").symlink_to("../share/tool/versions/1/tool")
    return home


TALK = """
import socket, sys
mine, its = ("\\0of-" + job for job in sys.argv[1:])
server = socket.socket(socket.AF_UNIX)
server.bind(mine)
server.listen()
for name in (mine, its):
    try:
        socket.socket(socket.AF_UNIX).connect(name)
        print("reached", flush=True)
    except OSError as error:
        print(error.strerror)
sys.stdin.read()
"""
TALKS = f"{sys.executable} -c {shlex.quote(TALK)}"


@pytest.fixture(scope="module")
def victim(template: Repository, made_base: MadeBase, home: Path) -> Iterator[Jobd]:
    """A job at work, with a file of its own in each place that everybody knows. All tests with it share its machine."""
    origin = Repository(shutil.copytree(template.folder, home.parent / "origin"))
    jobd = Jobd(home.parent, origin, {"HOME": str(home), "PATH": f"{home}/.local/bin:{os.environ['PATH']}"})
    made_base.lay_out(jobd)
    jobd.prepare()
    (jobd.workspace / "repos" / "other").mkdir()
    mine = "echo mine > /tmp/victim-$PTQ_JOB_ID; echo mine > /dev/shm/victim-$PTQ_JOB_ID"
    talks = f"sleep 601 | {TALKS} {jobd.job_id} {jobd.job_id}"
    jobd.start(f"{mine}; {talks} & exec sleep 600", timeout_s=600)
    wait_until(lambda: jobd.poll("agent")["log"] == b"reached\nreached\n")
    yield jobd
    for folder in (jobd.workspace / "jobs").iterdir():
        kill_processes(folder.name)


@pytest.fixture
def hostile(victim: Jobd) -> Iterator[Jobd]:
    """A job beside the victim, which is still at work in the end."""
    jobd = victim.beside()
    yield jobd
    assert victim.poll("agent")["state"] == "running"
    assert jobd.call("clean") == {"ok": True}


NEW_ROOT = """
import ctypes, os, sys
libc, root = ctypes.CDLL(None, use_errno=True), os.path.realpath(sys.argv[1])
own, uid, gid = os.open(root, os.O_RDONLY), os.getuid(), os.getgid()
assert not libc.unshare(0x10000000 | 0x20000)
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    open(f"/proc/self/{name}", "w").write(text)
new = f"{root}/new"
os.makedirs(f"{new}/old")
assert not libc.mount(new.encode(), new.encode(), None, 4096, None)
assert not libc.syscall(155, new.encode(), f"{new}/old".encode())
os.chdir("/")
assert not libc.umount2(b"/old", 2)
os.mkdir("fake", dir_fd=own)
for folder in ("", "../"):
    if not libc.renameat2(own, b"fake", own, f"{folder}control".encode(), 2):
        sys.exit(0)
sys.exit(1)
"""
"""Exchanges the control folder in namespaces that lack the sandbox's mounts (`pivot_root` is call 155)."""

ATTACKS = {
    "the account's key": 'cat "$home/.ssh/id_ed25519"',
    "the account's key by a folder that leads up": 'cat "$home/.local/../.ssh/id_ed25519"',
    "the account's keyring beside a tool": 'cat "$home/.local/share/keyrings/login"',
    "the service's own folder": 'cat "$home/../service/ptq.toml"',
    "a sibling's worktree": 'ls "$jobs/$victim/control/tree/content"',
    "a sibling's worktree from below": 'cd "$PTQ_OUTPUT_DIR"; ls "../../../$victim/control/tree/content"',
    "a sibling's control files": 'ls "$jobs/$victim/control"',
    "other repositories": 'ls "$jobs/../repos/other"',
    "its own request": 'cat "$PTQ_OUTPUT_DIR/../../control/agent.request"',
    "its own state": 'echo x > "$PTQ_OUTPUT_DIR/../../control/agent.json"',
    "control files by a way around": 'cd "$PTQ_WORKTREE/.."; mv control elsewhere',
    "the clone": 'echo x > "$(cat .git/objects/info/alternates)/x"',
    "a sibling's process by number": "kill -0 $victim_pid",
    "a sibling's process by name": "pgrep -x sleep",
    "its own stage": "kill -0 $stage_pid",
    "a process of the machine's": "ls /proc/$stage_pid",
    "a sibling's temporary files": "cat /tmp/victim-$victim",
    "a sibling's shared memory": "cat /dev/shm/victim-$victim",
    "what covers the home, taken away": 'umount -l "$home"',
    "what covers the home, taken away by a namespace": 'unshare -Urm sh -ec "umount -l \\"$home\\""',
    "what covers the home, by a second look": "unshare -Urm sh -ec 'mount -B $0/.. /mnt; ls /mnt/account/.ssh' $home",
    "control files by a root of its own": f'{sys.executable} -c {shlex.quote(NEW_ROOT)} "$PTQ_OUTPUT_DIR/.."',
    "the home, written to": 'touch "$home/x"',
    "a tool, written to": 'echo x > "$home/.local/share/tool/versions/1/part"',
    "a tool, made writable": 'unshare -Urm mount -o remount,bind,rw "$home/.local/share/tool/versions/1"',
}
"""Each succeeds where nothing is sealed, and then prints or changes something."""

NOTHING_TO_TAKE_AWAY = ("taken away", "second look", "by a way around", "by a root of its own", "made writable")
"""About attacks on covers, which an unsealed job need not make."""


def attack(jobd: Jobd, victim: Jobd, home: Path, names: Sequence[str]) -> dict[str, int]:
    """How each attack of one hostile job ends."""
    (sleeper,) = (pid for pid in map(int, victims_of(victim)) if read_words(pid)[:2] == [b"sleep", b"600"])
    jobd.prepare(private=[str(home.parent / "service")])
    script = f"""
        export home={home} jobs={jobd.workspace / "jobs"} victim={victim.job_id} victim_pid={sleeper}
        until [ -s "$PTQ_OUTPUT_DIR/../stage" ]; do sleep 0.01; done; export stage_pid=$(cat "$PTQ_OUTPUT_DIR/../stage")
    """
    for number, name in enumerate(names):
        script += f"ended=0; sh -ec {shlex.quote(ATTACKS[name])} || ended=$?; echo; echo attack {number} ends $ended\n"
    # As a prompt: a path that an operator's command names is not hidden.
    jobd.start('. "$PTQ_PROMPT_FILE"', prompt=script)
    wait_until(lambda: bool(stages_of(jobd)))
    (jobd.root / "stage").write_text(str(find_first(stages_of(jobd))))
    log = jobd.wait("agent")["log"].decode()
    found = re.findall(r"^attack (\d+) ends (\d+)$", log, re.MULTILINE)
    return {names[int(number)]: int(status) for number, status in found}


def stages_of(jobd: Jobd) -> list[int]:
    return [pid for pid in processes_with("stage") if f"{jobd.control}/agent.request".encode() in read_words(pid)]


def victims_of(jobd: Jobd) -> list[int]:
    return [process.pid for process in find_processes(jobd.job_id)]


def read_words(pid: int) -> list[bytes]:
    """Its command line; nothing when it has ended meanwhile, as what a watcher runs soon has."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


@needs_cells
def test_a_hostile_job_gets_nowhere(hostile: Jobd, victim: Jobd, home: Path) -> None:
    ends = attack(hostile, victim, home, [*ATTACKS])
    assert [*ends] == [*ATTACKS]
    assert [name for name, status in ends.items() if status == 0] == []


def test_the_same_job_gets_everywhere_on_a_machine_that_seals_none(hostile: Jobd, victim: Jobd, home: Path) -> None:
    theirs = [Path(folder, f"victim-{victim.job_id}") for folder in ("/tmp", "/dev/shm")]
    for path in theirs:  # The victim has a cell, and its own lie in it.
        path.touch()
    hostile.can_seal = False
    (hostile.workspace / "sealed").unlink(missing_ok=True)  # As an operator does who accepts this.
    names = [name for name in ATTACKS if not any(word in name for word in NOTHING_TO_TAKE_AWAY)]
    try:
        assert attack(hostile, victim, home, names) == dict.fromkeys(names, 0)
    finally:
        (home / ".local/share/tool/versions/1/part").write_text(PART)
        for path in theirs:
            path.unlink()


@needs_cells
def test_a_job_has_its_tools_its_git_and_its_folders_and_what_it_plants_there_leads_nowhere(
    hostile: Jobd, home: Path
) -> None:
    jobd = hostile
    # Where our own Python lies below /tmp, that has to be seen, and nothing is kept there.
    tmp = "$TMPDIR" if sys.executable.startswith("/tmp/") else "/tmp"
    prepared = jobd.prepare(setup=[f"echo kept > {tmp}/kept"])
    assert b"[This job is sealed: it has its own users, mounts, processes and shared memory" in prepared["log"]
    identity, key = "-c user.name=a -c user.email=a@b", home / ".ssh" / "id_ed25519"
    log = jobd.agent(
        f"tool; cat {tmp}/kept; id -u; git {identity} commit -q --allow-empty -m mine; git log --format=%s -1; "
        "for place in $HOME $TMPDIR $PTQ_OUTPUT_DIR $PTQ_WORKTREE /tmp /dev/shm; do echo > $place/x; done; echo $$\n"
        # In two pieces: what a command names is not hidden.
        f'k={str(key)[:6]}; mkdir -p "$VIRTUAL_ENV/bin"; ln -s "$k"{str(key)[6:]} "$VIRTUAL_ENV/bin/key"'
    )["log"]
    assert log.decode() == f"tool at work\nkept\n{os.getuid()}\nmine\n{log.split()[-1].decode()}\n"
    if "proc" not in MISSING:
        assert int(log.split()[-1]) < 10
    jobd.collect(lint=['cat "$VIRTUAL_ENV/bin/key"'])
    said = jobd.poll("collect")["log"]
    assert b"No such file" in said
    assert SECRET.encode() not in said


@needs_cells
def test_nothing_outlives_the_namespace_whose_first_process_is_killed(jobd: Jobd, tmp_path: Path) -> None:
    mark = f"stray-of-{tmp_path}"
    stray = "import os, signal, sys, time; os.setsid(); os.fork() and os._exit(0); signal.signal(15, 1); time.sleep(60)"
    jobd.prepare()
    jobd.start(f"env -i {sys.executable} -c '{stray}' {mark} & echo begun; sleep 60")
    wait_until(lambda: processes_with(mark))
    os.kill(find_first(stages_of(jobd)), 9)
    wait_until(lambda: processes_with(mark) == [])
    assert jobd.poll("agent")["state"] == "lost"


@needs_cells
def test_what_a_job_leaves_in_var_tmp_is_its_own_and_goes_with_it(jobd: Jobd) -> None:
    left = f"/var/tmp/left-by-{jobd.job_id}"
    # Not by a path: what an operator's command names is not hidden.
    jobd.prepare(setup=["cd /var/tmp; echo base > left-by-base"])
    jobd.start("cd /var/tmp; ls; echo mine > left-by-$PTQ_JOB_ID; cat /tmp/left-by-$PTQ_JOB_ID; ls -ld . | cut -c1-10")
    assert jobd.wait("agent")["log"] == b"left-by-base\nmine\ndrwx------\n"
    jobd.collect(lint=["ls /var/tmp > listed"])
    assert [change["path"] for change in jobd.result()["changes"]] == ["listed"]
    assert not Path(left).exists()
    assert (jobd.root / "tmp" / Path(left).name).exists(), "where it counts among what the job has written"
    assert jobd.call("clean") == {"ok": True}
    assert not (jobd.root / "tmp").exists()


KEYRING = """
import ctypes, sys
libc, number, text = ctypes.CDLL(None), {"add": 248, "ask": 250}, sys.argv[1].encode()
found = libc.syscall(number["ask"], 10, -3, b"user", text, 0)  # KEYCTL_SEARCH in the session keyring
print("found" if found > 0 else "nothing")
libc.syscall(number["add"], b"user", text, b"left by a job", 13, -3)
"""


@needs_cells
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its system calls have other numbers")
def test_a_job_reaches_no_key_in_the_keyring_of_its_machines_session(jobd: Jobd) -> None:
    name, libc = f"key-{jobd.job_id}", ctypes.CDLL(None)
    if libc.syscall(250, 1, None) < 0 or libc.syscall(248, b"user", name.encode(), b"secret", 6, -3) < 0:
        pytest.skip("this machine has no keyrings for us")
    jobd.is_warm = False  # A program that was started earlier has the keyring of before.
    command = f'{sys.executable} - {name} < "$PTQ_PROMPT_FILE"'
    jobd.prepare()
    assert jobd.agent(command, prompt=KEYRING)["log"] == b"nothing\n"
    # What the agent has left there is not found either.
    command = command.replace("$PTQ_PROMPT_FILE", str(jobd.root / "prompt.md"))
    assert b"\nnothing\n" in jobd.collect(lint=[command])["log"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its system calls have other numbers")
def test_the_kernel_itself_finds_no_key_of_the_login_for_a_job() -> None:
    """Some file systems look in a process's session keyring, whatever its system calls are."""
    name, libc = b"key-of-the-login", ctypes.CDLL(None)
    if libc.syscall(250, 1, None) < 0 or libc.syscall(248, b"user", name, b"secret", 6, -3) < 0:
        pytest.skip("this machine has no keyrings for us")
    search = (250, 10, -3, b"user", name, 0)
    assert libc.syscall(*search) > 0
    if not (child := os.fork()):
        with suppress(BaseException):
            namespaces.leave_session_keyring()
            os._exit(libc.syscall(*search) > 0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


SHOW_CONTROLS = 'for it in $CONTROLS; do ls -A "$it" || touch "$it/x" || echo refused; done 2> /dev/null\n'


def name_controls(jobd: Jobd) -> dict[str, str]:
    """Both paths of the job's control files."""
    return {"CONTROLS": f"{jobd.control} {jobd.control.resolve()}"}


@needs_cells
def test_folders_of_the_workspace_on_another_disk_are_hidden_too(jobd_without_base: Jobd, tmp_path: Path) -> None:
    victim = jobd_without_base
    look = "git log -1 --format=%s > /dev/null\n"
    for linked in ("jobs", "repos"):
        elsewhere = tmp_path / f"elsewhere-{linked}"
        (elsewhere / "of-others").mkdir(parents=True)
        (victim.workspace / linked).symlink_to(elsewhere)
        look += f"ls -A {shlex.quote(str(elsewhere))} || echo hidden\n"
    assert victim.prepare()["state"] == "done"
    agent = victim.agent('. "$PTQ_PROMPT_FILE"', prompt=f"{look}{SHOW_CONTROLS}", env=name_controls(victim))
    log = agent["log"].decode()
    assert "of-others" not in log, log
    assert log.endswith("refused\nrefused\n")
    assert victim.call("clean") == {"ok": True}


@needs_cells
def test_control_files_are_hidden_at_both_paths_if_the_workspace_is_a_link(
    jobd_without_base: Jobd, tmp_path: Path
) -> None:
    victim = jobd_without_base
    victim.env["HOME"] = str(tmp_path)  # A link in a hidden folder is hidden with it.
    victim.workspace.rename(tmp_path / "elsewhere")
    victim.workspace.symlink_to(tmp_path / "elsewhere")
    assert victim.prepare()["state"] == "done"
    assert victim.agent(SHOW_CONTROLS, env=name_controls(victim))["log"] == b"refused\nrefused\n"
    assert victim.call("clean") == {"ok": True}


@needs_cells
@pytest.mark.skipif(not os.access(sandbox.SHARED_MEMORY, os.W_OK), reason="this machine has no /dev/shm")
def test_a_workspace_can_be_in_shared_memory_of_which_a_job_sees_its_own_part(jobd_without_base: Jobd) -> None:
    victim = jobd_without_base
    with TemporaryDirectory(prefix="ptq-", dir=sandbox.SHARED_MEMORY) as memory:
        shutil.move(victim.workspace, memory)
        victim.workspace.symlink_to(Path(memory, victim.workspace.name))
        Path(memory, "of-others").touch()
        prepared = victim.prepare()
        assert prepared["state"] == "done", prepared
        script = f"pwd -P; ls -d {memory}/*; echo x > {sandbox.SHARED_MEMORY}/mine; {SHOW_CONTROLS}"
        log = victim.agent(script, env=name_controls(victim))["log"].decode().splitlines()
        assert log[0].startswith(memory)
        assert log[1:] == [f"{memory}/{victim.workspace.name}", "refused", "refused"]
        assert not (sandbox.SHARED_MEMORY / "mine").exists()
        assert victim.call("clean") == {"ok": True}


@needs_cells
def test_jobds_own_work_on_a_jobs_files_sees_what_the_job_sees_or_follows_no_link(
    hostile: Jobd, victim: Jobd, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    jobd = hostile
    assert jobd.prepare()["state"] == "done"
    (jobd.root / "output" / "report.md").write_text("mine")
    hidden = [home / ".ssh" / "id_ed25519", victim.root, victim.control, jobd.control / "environment.json"]
    _, clone, throwaways = find_git_folders(jobd.job)  # Named in control files, which are hidden in there.
    shown = [jobd.root / "output" / "report.md", jobd.job.git, clone, throwaways]
    box = sandbox.Sandbox(jobd.job, {})
    assert box.do(lambda: [path.exists() for path in (*hidden, *shown)]) == [False] * 4 + [True] * 4
    assert box.do(lambda: [*os.environ]) == ["PATH"]
    assert {*box.do(child.list_descriptors)} <= {0, 1, 2, child.ANSWER, child.ANSWER + 1}
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        box.do(lambda: hidden[0].read_text())
    with pytest.raises(OSError, match="Read-only"):
        box.do(lambda: (clone / "x").touch())
    # The worklog is read outside of the sandbox.
    (victim.root / "output" / "worklog.md").write_text("# What the victim found\n")
    swap = 'cd "$PTQ_OUTPUT_DIR/.."; rm -r output; ln -s "../../$1/files/output" output; echo done; exec sleep 60'
    jobd.start(f"sh -c {shlex.quote(swap)} x {victim.job_id}", timeout_s=60)
    wait_until(lambda: jobd.poll("agent")["log"] == b"done\n")
    assert jobd.poll("agent", worklog_limit=1_000)["worklog"] is None


class HeldFile:
    """A file with a lease: who opens it waits until it is let go (fcntl(2), "Leases")."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        fcntl.fcntl(self._file, fcntl.F_SETSIG, signal.SIGURG)  # The kernel sends it, and nobody minds it.
        fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def is_awaited(self) -> bool:
        """Whether somebody waits for it."""
        return fcntl.fcntl(self._file, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def close(self) -> None:
        """Let it go."""
        os.close(self._file)


@needs_cells
@pytest.mark.parametrize("sealed", [True, False])
def test_a_folder_that_becomes_a_link_while_git_reads_it_leads_to_no_other_job(
    hostile: Jobd, victim: Jobd, sealed: bool
) -> None:
    """As another job can do it that has got this folder's descriptor. Git has looked at the folder already."""
    (victim.root / "output" / "report.md").write_text(SECRET)
    jobd = hostile
    jobd.can_seal = sealed
    if not sealed:
        (jobd.workspace / "sealed").unlink(missing_ok=True)
    way = "copy" if sealed else "slot"
    assert jobd.prepare(ways=[way])["state"] == "done"
    for name in ("a", "report.md"):
        jobd.write(f"d/{name}", "mine\n")
    folder = jobd.find("d")
    with closing(HeldFile(folder / "a")) as file:
        jobd.call("collect", **{"base_commit": jobd.repository.git("rev-parse", "main"), **COLLECT})
        wait_until(file.is_awaited)
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to(victim.root / "output")
    jobd.wait("collect")
    contents = [base64.b64decode(change["content"]) for change in jobd.result()["changes"]]
    assert (SECRET.encode() in contents) is not sealed


@needs_cells
def test_a_job_without_a_network_reaches_a_socket_that_lies_in_its_own_folder_and_no_siblings(
    hostile: Jobd, victim: Jobd, tmp_path: Path
) -> None:
    jobd = hostile
    jobd.prepare(network="none")
    speak = (
        "import os, socket, sys; os.chdir(sys.argv[1]); one = socket.socket(socket.AF_UNIX); "
        "one.connect('relay.sock'); print(one.recv(9).decode())"
    )
    with closing(socket.socket(socket.AF_UNIX)) as mine, closing(socket.socket(socket.AF_UNIX)) as theirs:
        for listener, folder in ((mine, jobd.root), (theirs, victim.root)):
            short = tmp_path / f"to-{folder.parent.name}"  # The path of a socket has 108 bytes at most.
            short.symlink_to(folder)
            listener.bind(str(short / "relay.sock"))
            listener.listen()
        jobd.start(f'{sys.executable} -c "{speak}" {jobd.root}; {sys.executable} -c "{speak}" {victim.root} 2>&1')
        mine.settimeout(15)
        connection, _ = mine.accept()
        with closing(connection):
            connection.sendall(b"reached")
        log = jobd.wait("agent")["log"].decode()
    assert log.startswith("reached\n")
    assert "FileNotFoundError" in log


@needs_cells
@pytest.mark.skipif(not landlock.can_scope_sockets(), reason="this kernel cannot scope abstract sockets")
def test_a_job_with_the_machines_network_reaches_its_own_abstract_sockets_and_no_siblings(
    hostile: Jobd, victim: Jobd
) -> None:
    """Descriptors sent through one would outlive the job that sent them."""
    assert hostile.prepare(network="host")["state"] == "done"
    log = hostile.agent(f"{TALKS} {hostile.job_id} {victim.job_id}")["log"].decode()
    assert log == "reached\nOperation not permitted\n"


# What one job sees


LISTEN = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.accept, daemon=True).start()
socket.create_connection(server.getsockname(), 5)
print("own loopback works")
for address in sys.argv[1:]:
    try:
        if address.isdigit():
            socket.create_connection(("127.0.0.1", int(address)), 5)
        else:
            socket.socket(socket.AF_UNIX).connect("\\0" + address)
        print("reached")
    except OSError as error:
        print(error.strerror)
"""

MACHINE_CALLS = [kind for kind in (os.uname().machine, "i386") if kind in refused_calls.ANSWERS]
DEBUGGERS = {
    "strace": "strace -f -o $TMPDIR/trace sh -c true",
    "gdb": "gdb -batch -ex run -ex 'p $_exitcode' $(command -v sh) < /dev/null | grep -F '= 0'",
    "unshare": "unshare -Um --fork --pid sh -c true",
    sys.executable: f"{sys.executable} $TMPDIR/filter.py unshare 1 -c 'print()'",
}
VSOCK = "a namespace's lack of vsock"
LOOKS = {
    "folders that are open to everybody": (
        # Folders of this machine alone are not looked for: they may hold anything, and be large.
        "find /var /dev /run /etc /usr/local /home -xdev -type d -perm -0002 2> /dev/null"
    ),
    "the system's temporary folders": "ls -A /tmp /var/tmp /dev/shm",
    "homes": "python3 -c 'import os, pwd; print(*os.listdir(pwd.getpwuid(os.getuid()).pw_dir))'",
    # Root needs no capability to do so. The command writes what is there already.
    "settings of the kernel": (
        'now=$(cat /proc/sys/kernel/core_pattern); echo "$now" > /proc/sys/kernel/core_pattern && echo written'
    ),
    "what is writable in sys": "awk '$5 ~ \"^/sys(/|$)\" && $6 !~ /^ro/ { print $5 }' /proc/self/mountinfo",
    "fuse": "true 3<> /dev/fuse && echo opened",
    **{
        f"calls of {kind}": f"{sys.executable} - {kind} <<'END' || echo ended\n{refused_calls.PROGRAM}\nEND\n"
        for kind in MACHINE_CALLS
    },
    "debuggers": f"cat > $TMPDIR/filter.py <<'END'\n{Path(lesser_kernel.__file__).read_text()}\nEND\n"
    + "".join(
        f'if command -v {program} > /dev/null; then ( {words} ) > "$TMPDIR/log" 2>&1 || cat "$TMPDIR/log"; fi\n'
        for program, words in DEBUGGERS.items()
    ),
    VSOCK: (
        f"{sys.executable} -c 'import socket; socket.socket(socket.AF_VSOCK)' && echo made; "
        ": < /dev/vsock && echo opened"
    ),
}


@pytest.fixture(scope="module")
def see(
    tmp_path_factory: pytest.TempPathFactory, template: Repository, made_base: MadeBase
) -> Iterator[Callable[[str], Mapping[str, str]]]:
    """What each look shows to a job with the machine's network, and to one without: all at once, for all tests."""
    folder = tmp_path_factory.mktemp("seeing")
    machine = Jobd(folder, Repository(shutil.copytree(template.folder, folder / "origin")), {"HOME": "/nonexistent"})
    made_base.lay_out(machine)
    found: dict[str, Mapping[str, str]] = {}

    def see(network: str) -> Mapping[str, str]:
        if network not in found:
            found[network] = look_around(machine.beside(), network)
        return found[network]

    yield see
    for job in (machine.workspace / "jobs").iterdir():
        kill_processes(job.name)


def look_around(jobd: Jobd, network: str) -> Mapping[str, str]:
    with (
        NamedTemporaryFile(prefix="of-others-", dir="/tmp"),
        NamedTemporaryFile(prefix="of-others-", dir="/var/tmp"),
        NamedTemporaryFile(prefix="of-others-", dir="/dev/shm"),
        open_system_folder() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0job-{jobd.job_id}")
        abstract.listen()
        looks = {
            **(LOOKS if network == "host" else {VSOCK: LOOKS[VSOCK]}),
            "a system's folder": f"cd '{folder}'; ls -A; touch x || echo refused",
            "sockets": f"{sys.executable} - {server.getsockname()[1]} job-{jobd.job_id} <<'END'\n{LISTEN}\nEND\n",
        }
        # As a prompt: what an operator's command names is not hidden.
        script = "".join(
            f"sh -c {shlex.quote(look)} > $TMPDIR/look-{number} 2>&1\n" for number, look in enumerate(looks.values())
        )
        assert jobd.prepare(network=network)["state"] == "done"
        ended = jobd.agent('. "$PTQ_PROMPT_FILE" || true', prompt=f"set +e\n{script}")
        assert ended["result"]["exit_status"] == 0, ended["log"]
        assert not folder or [path.name for path in folder.iterdir()] == ["of-another"]
    return {name: (jobd.root / "tmp" / f"look-{number}").read_text() for number, name in enumerate(looks)}


@contextmanager
def open_system_folder() -> Iterator[Path | None]:
    """A folder of the system that is open to everybody, such as `/var/crash`. Only root can make one."""
    if not os.access("/var", os.W_OK):
        yield None
        return
    with TemporaryDirectory(prefix="ptq-crash-", dir="/var") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        (folder / "of-another").touch()
        yield folder


See = Callable[[str], Mapping[str, str]]


@needs_cells
@pytest.mark.skipif(not os.access("/var", os.W_OK), reason="only root can make a folder of the system's")
def test_a_systems_folder_that_is_open_to_everybody_is_hidden(see: See) -> None:
    seen = see("host")["a system's folder"]
    assert ("of-another" in seen, seen.endswith("refused\n")) == (False, True)


@needs_cells
@pytest.mark.skipif(not os.access("/var", os.W_OK), reason="only root can make a folder of the system's")
def test_a_systems_folder_that_goes_at_that_moment_keeps_no_job_out_of_its_sandbox(jobd_without_base: Jobd) -> None:
    assert jobd_without_base.prepare()["state"] == "done"
    for number in range(3):
        folders = [Path(f"/var/ptq-goes-{os.getpid()}-{number}-{one}") for one in range(40)]
        for folder in folders:
            folder.mkdir()
            folder.chmod(0o1777)
        box = sandbox.Sandbox(jobd_without_base.job, {})
        # They go one by one while the sandbox hides them, some of them in the middle of that.
        with subprocess.Popen(["sh", "-c", "for each; do rmdir $each; done", "sh", *folders]):
            assert box.do(lambda: "done") == "done"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSPC])
def test_what_is_there_and_cannot_be_hidden_keeps_a_job_out_of_its_sandbox(tmp_path: Path, number: int) -> None:
    with pytest.raises(OSError, match="refused"), sandbox.unless_gone(tmp_path):
        raise OSError(number, "refused")


@needs_cells
def test_nothing_that_everybody_may_write_to_is_left_in_a_jobs_sight(see: See) -> None:
    assert {*see("host")["folders that are open to everybody"].split()} <= {"/dev/shm", "/dev/mqueue"}


@needs_cells
def test_a_job_finds_nothing_of_others_in_the_systems_temporary_folders(see: See) -> None:
    seen = see("host")["the system's temporary folders"]
    assert "/var/tmp:\n" in seen
    assert "of-others" not in seen


@needs_cells
def test_the_accounts_real_home_is_hidden_whatever_the_environment_says(see: See) -> None:
    hidden = next(Path(pwd.getpwuid(os.getuid()).pw_dir).glob(".[!.]*rc"), None)
    seen = see("host")["homes"]
    assert "Error" not in seen
    assert hidden is None or hidden.name not in seen.split()


@needs_cells
@pytest.mark.skipif(bool(os.getuid()), reason="only root can write there at all")
def test_no_command_changes_a_setting_of_the_kernel(see: See) -> None:
    assert "written" not in see("host")["settings of the kernel"]


@needs_cells
def test_no_command_changes_what_the_kernel_shows_in_sys(see: See) -> None:
    assert see("host")["what is writable in sys"] == ""


@needs_cells
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="this account cannot open it, nor does it exist here")
def test_a_job_makes_no_fuse_file_system(see: See) -> None:
    seen = see("host")["fuse"]
    assert "/dev/fuse" in seen
    assert "opened" not in seen


@needs_cells
@pytest.mark.parametrize("kind", MACHINE_CALLS)
def test_a_job_makes_no_keys_and_holds_up_nobody_who_opens_a_file(see: See, kind: str) -> None:
    seen = see("host")[f"calls of {kind}"]
    if kind == "i386" and seen.endswith("ended\n"):
        pytest.skip("this machine runs no programs of i386")
    assert seen == refused_calls.ANSWERS[kind]


@needs_cells
def test_debuggers_namespaces_and_filters_of_a_jobs_own_work(see: See) -> None:
    assert see("host")["debuggers"] == ""


@needs_cells
@pytest.mark.parametrize("network", ["host", "none"])
def test_without_a_network_a_job_reaches_nothing_but_itself(see: See, network: str) -> None:
    works, *rest = see(network)["sockets"].splitlines()
    assert works == "own loopback works", rest
    refused = "Operation not permitted" if landlock.can_scope_sockets() else "reached"
    assert rest == (["reached", refused] if network == "host" else ["Connection refused"] * 2)


@needs_cells
@pytest.mark.skipif(not syscalls.can_filter(), reason="there is no filter for this kind of machine")
@pytest.mark.parametrize("network", ["host", "none"])
def test_without_a_network_a_job_has_no_way_to_others_on_its_host_beside_networks(see: See, network: str) -> None:
    """A namespace contains neither AF_VSOCK nor its device."""
    seen = see(network)[VSOCK].splitlines()
    if network == "host" and not {"made", "opened"}.issubset(seen):
        pytest.skip("this machine has no such sockets")
    assert ("made" in seen, "opened" in seen) == ((True, True) if network == "host" else (False, False))


# What a machine cannot do


has_known_calls = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="its system calls have other numbers"
)


@needs_cells
@has_known_calls
def test_a_job_writes_nowhere_else_where_the_kernel_cannot_close_all_mounts_at_once(jobd: Jobd, tmp_path: Path) -> None:
    jobd.python = lesser_kernel.write_interpreter(tmp_path, "mount_setattr", errno.EPERM)
    assert jobd.prepare()["state"] == "done"
    log = jobd.agent(f"touch {tmp_path}/x || touch /sys/x || touch mine /tmp/mine && echo done")["log"].decode()
    assert log.count("Read-only file system") == 2, log
    assert log.endswith("done\n")


@needs_cells
@has_known_calls
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_all_mounts_are_closed_one_by_one_where_the_kernel_cannot_close_them_at_once(
    tmp_path: Path, error: int
) -> None:
    child = os.fork()
    if not child:
        with suppress(BaseException):
            namespaces.unshare_mounts()
            lesser_kernel.refuse("mount_setattr", error)
            namespaces.make_all_read_only()
            try:
                (tmp_path / "x").touch()
            except OSError as refused:
                os._exit(refused.errno != errno.EROFS)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_machine_that_allows_no_namespaces_says_so_and_runs_jobs(unsealed: Jobd) -> None:
    answer = unsealed.ask("capabilities")
    assert (answer["sealed"], answer["works"]) == (False, [])
    assert answer["words"] == "not sealed: user namespaces: operation not permitted"
    assert b"[This job is not sealed: user namespaces: operation not permitted.]\n" in unsealed.prepare()["log"]
    assert unsealed.agent("echo done")["log"] == b"done\n"


def test_a_job_that_has_to_be_sealed_is_not_run_without(unsealed: Jobd) -> None:
    poll = unsealed.prepare(must_seal=True)
    assert poll["error"] == "not_sealed"
    assert "operation not permitted" in poll["message"]


@needs_cells
def test_a_job_that_was_prepared_in_a_cell_never_runs_without_nor_in_an_unknown_one(jobd: Jobd) -> None:
    jobd.prepare(network="none")
    environment, recipe = jobd.control / "environment.json", jobd.job.of_stage("prepare", "request")
    for file, unknown in ((environment, "whether the job has a sandbox"), (recipe, "what the job may see")):
        file.rename(jobd.control / "moved")
        # Without the second one, it would have the network and all GPUs.
        with pytest.raises(Failure, match=f"{unknown} cannot be read"):
            sandbox.open_sandbox(jobd.job, {})
        (jobd.control / "moved").rename(file)
    jobd.can_seal = False
    poll = jobd.agent("touch ran")
    assert (poll["state"], poll["error"]) == ("failed", "not_sealed")
    assert not jobd.find("ran").exists()


def test_this_machine_says_what_it_can(jobd: Jobd) -> None:
    answer = jobd.ask("capabilities")
    assert answer["missing"] == MISSING
    assert set(answer["works"]) | set(MISSING) == {"user", "mount", "pid", "ipc", "proc", "overlay"}
    assert answer["words"].startswith("sealed: user, mount, pid, ipc" if SEALED else "not sealed: ")


# What is left in sight


@pytest.mark.parametrize(
    ("files", "named", "kept"),
    [
        ([".cargo/bin/cargo", ".cargo/credentials"], ".cargo/bin", [".cargo/bin"]),
        ([".nvm/v20/bin/node", ".nvm/v20/lib/x"], ".nvm/v20/bin", [".nvm/v20"]),
        ([".local/bin/uv", ".local/lib/x", ".local/share/keyrings/x"], ".local/bin", [".local/bin"]),
        ([".ssh/id", ".ssh/other"], ".ssh/id", [".ssh/id"]),
        (["agents/mine.py", "agents/part.py"], "agents/mine.py", ["agents"]),
        (["mine.py", "other"], "mine.py", ["mine.py"]),
        (["x/node_modules/cli/bin/cli.js"], "x/node_modules/cli/bin/cli.js", ["x/node_modules"]),
        (["other"], "", []),
    ],
)
def test_of_a_home_what_a_tool_needs_is_kept(tmp_path: Path, files: list[str], named: str, kept: list[str]) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found = find_tools(frozenset([tmp_path / named]), frozenset([tmp_path]))
    assert sandbox.outermost(found) == [tmp_path / path for path in kept]


def test_links_among_tools_are_followed_to_what_they_need(tmp_path: Path) -> None:
    for path in ("uv/tools/ruff/bin", "uv/tools/ruff/lib", "uv/python/3.12/bin", "uv/python/3.12/lib", ".local/bin"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "uv/python/3.12/bin/python").touch()
    (tmp_path / "uv/tools/ruff/bin/python").symlink_to(tmp_path / "uv/python/3.12/bin/python")
    (tmp_path / "uv/tools/ruff/bin/ruff").touch()
    (tmp_path / ".local/bin/ruff").symlink_to(tmp_path / "uv/tools/ruff/bin/ruff")
    found = sandbox.outermost(find_tools(frozenset([tmp_path / ".local/bin"]), frozenset([tmp_path])))
    assert found == [tmp_path / path for path in (".local/bin", "uv/python/3.12", "uv/tools/ruff")]


def test_a_tool_in_a_home_is_found_behind_links_in_a_folder_of_the_system(tmp_path: Path) -> None:
    """Also where the folder is reached by a link, as `/bin` often is."""
    home, system, other = tmp_path / "home", tmp_path / "usr/bin", tmp_path / "opt"
    for folder in (system, other):
        folder.mkdir(parents=True)
    for tool in ("direct", "chained", "elsewhere", "folder", "unnamed"):
        (home / f"{tool}/bin").mkdir(parents=True)
        (home / f"{tool}/lib").mkdir()
        (home / f"{tool}/bin/tool").touch()
    (system / "direct").symlink_to(home / "direct/bin/tool")
    # A link to a link in the same folder, such as `python`, `python3` and `python3.12`, and one to the next folder.
    for link, target in (("a", "b"), ("b", "c"), ("c", home / "chained/bin/tool"), ("d", "../../opt/tool")):
        (system / link).symlink_to(target)
    (other / "tool").symlink_to(home / "elsewhere/bin/tool")
    (system / "f").symlink_to("g")
    (system / "g").symlink_to(home / "folder/bin")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "linked").symlink_to("usr")
    expected = [home / name for name in ("chained", "direct", "elsewhere", "folder")]
    for named in (system, tmp_path / "bin", tmp_path / "linked/bin"):
        assert sandbox.outermost(find_tools(frozenset([named]), frozenset([home]))) == expected, named


def test_a_link_in_a_command_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)  # Its links in /proc can no longer be read, for any account.
    try:
        (tmp_path / "mine").mkdir()
        (tmp_path / "theirs").mkdir()
        named = [f"/proc/{dead}/root", str(tmp_path / "mine"), str(tmp_path / "theirs"), "mine"]
        assert choose_named(named, [tmp_path / "theirs"]) == {tmp_path / "mine"}
    finally:
        os.waitpid(dead, 0)


@needs_cells
def test_a_device_that_is_not_a_jobs_cannot_be_opened() -> None:
    child = os.fork()
    if not child:
        with suppress(BaseException):
            namespaces.unshare_mounts()
            namespaces.close_device(Path("/dev/full"))
            with suppress(PermissionError), Path("/dev/full").open("rb"):
                os._exit(1)
            os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    Path("/dev/full").open("rb").close()


@needs_cells
def test_a_command_whose_starter_was_killed_before_it_could_look_does_not_run(tmp_path: Path) -> None:
    ran, never = tmp_path / "ran", 2**22  # The largest process id is one less: proc_pid_max(5).
    if not (child := os.fork()):
        namespaces.enter_namespaces(never, lambda: None)
        ran.touch()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGKILL
    assert not ran.exists()
