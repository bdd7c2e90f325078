"""Linux's namespaces, and what of them a machine allows: found out by trying, for no setting tells all of it.

By ctypes: Python has `os.unshare` from 3.12 on, and `mount` never. The rules: `namespaces(7)`, `mount(2)`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

CLONE = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "ipc": 0x08000000}
"""The namespaces of a cell, by the flag that makes each; without any one of them there is none."""

CLONE_NETWORK = 0x40000000
"""What a cell has only where its repository's table wants it."""

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, NO_ATIME, NO_DIR_ATIME = 1, 2, 4, 8, 32, 1024, 2048
BIND, RECURSIVE, PRIVATE, RELATIVE_ATIME = 4096, 16384, 1 << 18, 1 << 21
KEPT = NO_SUID | NO_DEVICES | NO_EXEC | NO_ATIME | NO_DIR_ATIME
"""What a remount has to repeat: to a namespace that only inherited a mount, its flags are locked."""

ROOT = Path("/")

OVERLAY = "overlay"

SIOCSIFFLAGS, IFF_UP = 0x8914, 1

KEYCTL = {"x86_64": 250, "i686": 288, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""The number of the system call `keyctl(2)`, for which libc has no function, on each kind of processor."""
KEYCTL_JOIN_SESSION_KEYRING = 1

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24

FORBIDDING = {
    "kernel/unprivileged_userns_clone": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
    "user/max_user_namespaces": "0",
}
"""Settings below /proc/sys that forbid user namespaces, where they have this value."""

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process into new namespaces (of processes: its children). Raises `OSError`."""
    _check(_libc.unshare(flags), None)


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount something. Raises `OSError`."""
    words = [os.fsencode(word) or None for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None), str(target))


def bind(source: Path, target: Path, *, writable: bool) -> None:
    """Let what is at one path be at another as well. Raises `OSError`."""
    mount(source, target, flags=BIND | RECURSIVE)
    if not writable:
        about = os.statvfs(target).f_flag
        relative = RELATIVE_ATIME if about & 4096 else 0
        mount("", target, flags=REMOUNT | BIND | READ_ONLY | relative | about & KEPT)


def close_device(device: Path) -> None:
    """Let nobody open a device; whoever tries is told so, as where cgroups forbid it. Raises `OSError`."""
    mount(device, device, flags=BIND)
    mount("", device, flags=REMOUNT | BIND | NO_DEVICES | os.statvfs(device).f_flag & KEPT)


def mount_empty(target: Path, options: str = "mode=0755") -> None:
    """Mount an empty folder, in memory. Raises `OSError`."""
    mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEVICES, options)


def make_read_only(target: Path) -> None:
    """Let nobody write to what `mount_empty` made. Raises `OSError`."""
    mount("", target, flags=REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)


def mount_overlay(target: Path, layers: Sequence[Path], upper: Path, work: Path) -> None:
    """Mount folders above each other, the newest first, with `upper` for what is written. Raises `OSError`.

    `userxattr` is what it takes without being root. By descriptors, for no path of an option may hold a colon, and all
    options together have one page.
    """
    folders = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in (*layers, upper, work)]
    *lower, up, beside = (f"/proc/self/fd/{folder}" for folder in folders)
    try:
        mount(OVERLAY, target, OVERLAY, options=f"lowerdir={':'.join(lower)},upperdir={up},workdir={beside},userxattr")
    finally:
        _close(folders)


def unmount(target: Path) -> None:
    """Take away what was mounted last. Raises `OSError`."""
    _check(_libc.umount2(os.fsencode(target), 0), str(target))


def have_own_mounts() -> None:
    """Let what this process mounts from now on be seen by it, and those that it starts, alone. Raises `OSError`."""
    ids = (os.getuid(), os.getgid())
    unshare(CLONE["user"] | CLONE["mount"])
    # Otherwise nobody but root could look at this process: neither we by /proc, nor the one that is to kill it.
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    keep_ids(*ids)
    mount("", ROOT, flags=RECURSIVE | PRIVATE)


def enter(arrange: Callable[[], None], *, network: bool = True, start_beside: Callable[[], None] | None = None) -> None:
    """Have this process, which is about to become a command, become it in namespaces of its own. Raises `OSError`.

    Without `network` it reaches nothing but what listens in there. `start_beside` starts a process beside it.

    Three come of it: this one, outside the namespace of processes, ends as the command does; below it the namespace's
    first process, with whose end the kernel kills all the others; below that the command, which alone returns from
    here. Each dies with the one above it. A SIGINT to this one's group reaches that of the command.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGCHLD})
    stage, ids = os.getppid(), (os.getuid(), os.getgid())
    descriptors = list_descriptors()  # For later: /proc will be another's.
    unshare(sum(CLONE.values()) | (0 if network else CLONE_NETWORK))
    keep_ids(*ids)
    leave_session_keyring()
    die_with(stage)
    first = os.fork()
    if first:
        _close(descriptors)
        os._exit(_as_exit_status(os.waitpid(first, 0)[1]))
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mount("", ROOT, flags=RECURSIVE | PRIVATE)
    if not network:
        bring_loopback_up()
    arrange()
    if start_beside:
        start_beside()
    command = os.fork()
    if command:
        _be_first(command)
    os.setsid()
    give_up_capabilities()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_ids(user: int, group: int) -> None:
    """In a new user namespace, let user and group be those of before, and nobody anyone else. Raises `OSError`."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)


def leave_session_keyring() -> None:
    """Give this process an empty session keyring: the login's, from `pam_keyinit(8)`, may hold keys. Raises `OSError`.

    Where a container forbids `keyctl(2)`, or the kernel lacks it, the job's programs cannot read a keyring either.
    """
    number = KEYCTL.get(os.uname().machine)
    if number and _libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        error = ctypes.get_errno()
        if error not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            raise OSError(error, os.strerror(error), "session keyring")


def bring_loopback_up() -> None:
    """In a new namespace of networks, let programs talk to each other by 127.0.0.1 (netdevice(7)). Raises `OSError`."""
    request = struct.pack("16sh", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request.ljust(40, b"\0"))


def hide_from_job() -> None:
    """Let no process of the job look into this one, which is among them: it has open what they may not reach."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with(parent: int) -> None:
    """Let this process be killed when its parent ends, which it may have done already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def give_up_capabilities() -> None:
    """Let no program that is run from here on have a right over this namespace, not even root's: it could undo it."""
    number = 0
    while _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1


def find_missing(folder: Path) -> dict[str, str]:
    """What this machine does not allow, each with the reason: of `CLONE`, a `proc` of one's own, an `overlay` there."""
    missing = _ask_child(lambda: _try(folder))
    return {"user": "the trial was cut short"} if missing is None else missing


def describe_cell(missing: Mapping[str, str]) -> str:
    """What `find_missing` found of namespaces, in words for people."""
    reasons = [f"{name} namespaces: {missing[name]}" for name in CLONE if name in missing]
    if reasons:
        return f"not sealed: {reasons[0]}"
    own = f"; /proc is the machine's: {missing['proc']}" if "proc" in missing else ""
    return f"sealed: {', '.join(CLONE)}{own}"


def is_sealable(missing: Mapping[str, str]) -> bool:
    """Whether there is enough for a cell."""
    return not any(name in missing for name in CLONE)


def _ask_child(find_out: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    """What a child finds out, which then ends: nothing that it tries changes us. None when it ended too early."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.write(writer, json.dumps(find_out()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def _try(folder: Path) -> dict[str, str]:
    """Of a child that ends here: try all of it. Each namespace needs the ones before."""
    ids, names = (os.getuid(), os.getgid()), [*CLONE]
    missing = {OVERLAY: "it needs mount"}
    for position, name in enumerate(names):
        try:
            unshare(CLONE[name])
            if name == "user":
                keep_ids(*ids)
            elif name == "mount":
                mount("", ROOT, flags=RECURSIVE | PRIVATE)
                mount_empty(folder)
                unmount(folder)
                missing = _explain_failure(OVERLAY, lambda: _try_overlay(folder))
        except OSError as error:
            return {
                **missing,
                name: _explain(error),
                **dict.fromkeys([*names[position + 1 :], "proc"], f"it needs {name}"),
            }
    # By a child, for we are not in the namespace of processes; it is the first one there, and the last.
    proc = _ask_child(lambda: _explain_failure("proc", lambda: mount("proc", Path("/proc"), "proc")))
    return {**missing, **({"proc": "the trial was cut short"} if proc is None else proc)}


def _explain_failure(name: str, attempt: Callable[[], None]) -> dict[str, str]:
    """Why something fails, by its name; empty when it does not."""
    try:
        attempt()
    except OSError as error:
        return {name: _explain(error)}
    return {}


def _try_overlay(folder: Path) -> None:
    with TemporaryDirectory(prefix=".trial-", dir=folder) as trial:
        parts = [Path(trial, name) for name in ("place", "layer", "content", "work")]
        for part in parts:
            part.mkdir()
        place, layer, content, work = parts
        (layer / "file").touch()
        mount_overlay(place, [layer], content, work)
        try:
            (place / "file").unlink()
        finally:
            unmount(place)
            work.chmod(0o700)
            with suppress(OSError):
                (work / "work").chmod(0o700)


def _explain(error: OSError) -> str:
    named = [
        f"{name.replace('/', '.')} is {value}"
        for name, value in FORBIDDING.items()
        if _read(Path("/proc/sys", name)) == value
    ]
    return "; ".join([os.strerror(error.errno or 0).lower(), *named])


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _be_first(command: int) -> None:
    """Be the first process of a namespace, until the command has ended. Does not return."""
    _close(list_descriptors())
    while True:
        if signal.sigwait({signal.SIGINT, signal.SIGCHLD}) == signal.SIGINT:
            with suppress(ProcessLookupError):
                os.killpg(command, signal.SIGINT)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == command:
                    os._exit(_as_exit_status(ended[1]))


def list_descriptors() -> list[int]:
    """What this process has open; one of them was to find that out."""
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _as_exit_status(status: int) -> int:
    """How a shell would say that a process ended."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _check(result: int, path: str | None) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
