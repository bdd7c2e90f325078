"""Linux namespaces: moves processes into new ones, and changes what they see and share there.

The module uses ctypes, because Python has `os.unshare` only since 3.12, and has no `mount`. `namespaces(7)` and
`mount(2)` describe the rules.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .child import close_all, list_descriptors
from .landlock import scope_sockets
from .shortage import unless_forbidden
from .syscalls import filter_calls
from .tools import is_inside

CLONE = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "ipc": 0x08000000}
"""The namespaces of a sandbox, each with its flag. A sandbox needs all of them."""

CLONE_NETWORK = 0x40000000
"""The flag of a network namespace. Used only for a repository whose table turns the network off."""

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, NO_ATIME, NO_DIR_ATIME = 1, 2, 4, 8, 32, 1024, 2048
BIND, RECURSIVE, PRIVATE, RELATIVE_ATIME = 4096, 16384, 1 << 18, 1 << 21
KEPT = NO_SUID | NO_DEVICES | NO_EXEC | NO_ATIME | NO_DIR_ATIME
"""Flags that a remount must repeat: a namespace cannot clear the flags of a mount that it inherited."""

MOUNT_SETATTR, MOUNT_ATTR_RDONLY, AT_RECURSIVE, AT_FDCWD = 442, 1, 0x8000, -100
"""The number of the system call `mount_setattr(2)`, which is the same on each kind of processor, and its arguments."""

ROOT = Path("/")

OVERLAY = "overlay"

SIOCSIFFLAGS, IFF_UP = 0x8914, 1

KEYCTL = {"x86_64": 250, "i686": 288, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""The number of the system call `keyctl(2)`, for which libc has no function, on each kind of processor."""
KEYCTL_JOIN_SESSION_KEYRING = 1

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24

LIMITS = Path("/proc/sys/user")
"""How many namespaces of each kind a user may have in a user namespace with its descendants (namespaces(7))."""

LIMITS_OF = {"user": "max_user_namespaces", "mount": "max_mnt_namespaces"} | {
    name: f"max_{name}_namespaces" for name in ("pid", "ipc", "net", "uts", "cgroup", "time")
}

MAX_NESTED = 64
"""How many namespaces of each kind a job's command may have: enough for nested sandboxes of browsers and agents. The
account has some thousands for all jobs together."""

HALVED = {
    "max_inotify_instances": "inotify/max_user_instances",
    "max_inotify_watches": "inotify/max_user_watches",
    "max_fanotify_groups": "fanotify/max_user_groups",
    "max_fanotify_marks": "fanotify/max_user_marks",
}
"""Limits of a user namespace -> the setting in /proc/sys/fs that limits the account. A job gets half of each."""

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Only its children move into a new PID namespace. Raises `OSError`."""
    _check(_libc.unshare(flags), None)


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2). Raises `OSError`."""
    words = [os.fsencode(word) or None for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None), str(target))


def bind(source: Path, target: Path, *, writable: bool) -> None:
    """Mount a file or folder at a second path. `writable` undoes `make_all_read_only` there. Raises `OSError`."""
    mount(source, target, flags=BIND | RECURSIVE)
    if writable:
        _remount(target, 0)
    else:
        make_read_only(target)


def close_device(device: Path) -> None:
    """Forbid opening a device, or the devices in a folder. Opening one then fails with `EACCES`. Raises `OSError`."""
    mount(device, device, flags=BIND)
    mount("", device, flags=REMOUNT | BIND | NO_DEVICES | os.statvfs(device).f_flag & KEPT)


def mount_empty(target: Path, options: str = "mode=0755") -> None:
    """Mount an empty folder in memory. Raises `OSError`."""
    mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEVICES, options)


def make_read_only(target: Path) -> None:
    """Forbid writing to a mount. Mounts inside it stay as they are. Raises `OSError`."""
    _remount(target, READ_ONLY)


def _remount(target: Path, flags: int) -> None:
    about = os.statvfs(target).f_flag
    relative = RELATIVE_ATIME if about & 4096 else 0
    mount("", target, flags=REMOUNT | BIND | flags | relative | about & KEPT)


def make_all_read_only() -> None:
    """Forbid writing to all current mounts. Raises `OSError`.

    One system call does this for all mounts. Linux before 5.12 does not have this call, and some containers refuse it:
    each mount is then changed on its own.
    """
    try:
        _set_attributes(ROOT, set_bits=MOUNT_ATTR_RDONLY, flags=AT_RECURSIVE)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        for mounted in find_mounts():
            _make_read_only_if_reachable(mounted.place)


def _make_read_only_if_reachable(place: Path) -> None:
    try:
        make_read_only(place)
    except OSError as error:
        # Another mount hides this one, or this account cannot enter the folder that it is in.
        is_out_of_reach = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EINVAL)
        if not is_out_of_reach and not place.is_relative_to("/sys"):  # Some containers refuse it there.
            raise


def _set_attributes(target: Path, *, set_bits: int, flags: int) -> None:
    """Call mount_setattr(2), for which libc has no function before glibc 2.36. Raises `OSError`."""
    attributes = struct.pack("4Q", set_bits, 0, 0, 0)
    words = (AT_FDCWD, os.fsencode(target), flags, attributes, ctypes.c_size_t(len(attributes)))
    _check(_libc.syscall(MOUNT_SETATTR, *words), str(target))


class Mount(NamedTuple):
    """A folder or file of a file system, and the path at which it is mounted."""

    device: str
    root: Path
    """The path of the folder or file in its file system."""
    place: Path


def find_mounts() -> list[Mount]:
    """All mounts of this process, also those that another mount hides. The oldest is first (proc_pid_mountinfo(5))."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        plain = [re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), word) for word in line.split()[2:5]]
        device, root, place = map(os.fsdecode, plain)
        found.append(Mount(device, Path(root), Path(place)))
    return found


def find_other_places(path: Path, mounts: Sequence[Mount]) -> Iterator[Path]:
    """The paths at which other mounts show the same file or folder as `path`, or something inside it.

    `path` contains no links.
    """
    own = max((mount for mount in reversed(mounts) if is_inside(path, [mount.place])), key=lambda mount: mount.place)
    inside = own.root / path.relative_to(own.place)
    for mount in mounts:
        if mount.device != own.device or mount.place == own.place:
            continue
        if inside.is_relative_to(mount.root):
            yield mount.place / inside.relative_to(mount.root)
        elif mount.root.is_relative_to(inside):
            yield mount.place


def mount_overlay(target: Path, layers: Sequence[Path], upper: Path, work: Path) -> None:
    """Mount layers on top of each other, the newest first. What is written goes to `upper`. Raises `OSError`.

    `userxattr` makes this possible without root. Paths are passed as descriptors, because a path in an option cannot
    contain a colon and all options together must fit into one page.
    """
    folders = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in (*layers, upper, work)]
    *lower, up, working = (f"/proc/self/fd/{folder}" for folder in folders)
    try:
        mount(OVERLAY, target, OVERLAY, options=f"lowerdir={':'.join(lower)},upperdir={up},workdir={working},userxattr")
    finally:
        close_all(folders)


def unmount(target: Path) -> None:
    """Remove the topmost mount at a path. Raises `OSError`."""
    _check(_libc.umount2(os.fsencode(target), 0), str(target))


def unshare_mounts() -> None:
    """Give this process and its children private mounts. Raises `OSError`."""
    ids = (os.getuid(), os.getgid())
    unshare(CLONE["user"] | CLONE["mount"])
    # Without this, only root could read this process in /proc, and jobd could not kill it.
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    keep_ids(*ids)
    mount("", ROOT, flags=RECURSIVE | PRIVATE)


def own_files() -> None:
    """Let this process read all folders of its account, even if their permissions forbid it. Raises `OSError`.

    In a user namespace of its own, a process has `CAP_DAC_READ_SEARCH` over the files of its account.
    """
    ids = (os.getuid(), os.getgid())
    unshare(CLONE["user"])
    keep_ids(*ids)


def enter_namespaces(
    parent: int,
    arrange: Callable[[], None],
    *,
    network: bool = True,
    start_beside: Callable[[], None] | None = None,
) -> None:
    """Move this process into new namespaces, just before it executes a command. Raises `OSError`.

    `parent` is the PID of the process that started this one. That process passes its PID, because it may be killed
    before this one can ask for it. `arrange` changes the mounts of the new namespaces. Without `network`, the command
    can reach only programs in its own network namespace. `start_beside` starts another process beside the command.

    There are three processes. This process stays outside the PID namespace, and exits as the command does. Its child is
    the first process of the PID namespace. When the child ends, the kernel kills all other processes in the namespace.
    The grandchild becomes the command, and this function returns only there. Each process dies with its parent. A
    SIGINT to this process's group also reaches the command's group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGCHLD})
    ids = (os.getuid(), os.getgid())
    descriptors = list_descriptors()  # Now, because /proc shows another PID namespace later.
    leave_signals_and_queues()
    unshare(sum(CLONE.values()) | (0 if network else CLONE_NETWORK))
    keep_ids(*ids)
    limit_what_jobs_share()
    leave_session_keyring()
    die_with(parent)
    reader, writer = os.pipe()
    first = os.fork()
    if first:
        close_all(descriptors)
        os._exit(_as_exit_status(os.waitpid(first, 0)[1]))
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.close(writer)
    # The pipe has ended if the parent was killed before `prctl` was called.
    if select.select([reader], [], [], 0)[0]:
        os._exit(128 + signal.SIGKILL)
    os.close(reader)
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
    scope_sockets()
    filter_calls(network=network)
    give_up_capabilities()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_ids(user: int, group: int) -> None:
    """Map only this user and group into a new user namespace. Raises `OSError`."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)


def limit_what_jobs_share() -> None:
    """Keep the programs of this user namespace from using up what the account has for all jobs. Raises `OSError`.

    The programs cannot raise the limits, because that needs a capability in this namespace. In a nested namespace, its
    own limits and these count. In containers that show /proc/sys read-only, there are no limits.
    """
    for name in LIMITS_OF.values():
        with unless_forbidden():
            (LIMITS / name).write_text(str(MAX_NESTED))
    for name, setting in HALVED.items():
        with unless_forbidden():
            (LIMITS / name).write_text(str(int(Path("/proc/sys/fs", setting).read_text()) // 2))


def leave_descriptors(soft: int) -> None:
    """Limit this process and its children to `soft` open files, and to half of what other processes may open.

    The kernel counts the descriptors that an account's processes have sent and that nobody has received yet. A process
    cannot send any while there are more than it may have open (unix(7), `ETOOMANYREFS`).
    """
    half = max(resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2, 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, half), half))


def leave_signals_and_queues() -> None:
    """Let the user namespace that this process makes next have half of the signals and messages that may be queued.

    The kernel counts them for the account, and from Linux 5.14 on also for each user namespace. The limits of a
    namespace are those of the process that made it (`create_user_ns` in kernel/user_namespace.c). If there is no limit
    (-1), half of it is no limit either.
    """
    for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (soft // 2, hard // 2))


def leave_session_keyring() -> None:
    """Give this process an empty session keyring, because the login's keyring may hold keys. Raises `OSError`.

    The login's keyring comes from `pam_keyinit(8)`. Some file systems (AFS, encrypted folders) look for keys in it
    themselves. Everything else needs `keyctl(2)`, which is refused to the job's commands. So the login's keyring may
    stay if a container forbids `keyctl(2)`, or if the kernel lacks it. It may also stay if the account has used up its
    quota of keys. Otherwise, other jobs could make this job fail by using up the quota.
    """
    number = KEYCTL.get(os.uname().machine)
    if number and _libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        error = ctypes.get_errno()
        if error not in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EDQUOT):
            raise OSError(error, os.strerror(error), "session keyring")


def bring_loopback_up() -> None:
    """In a new network namespace, let programs use 127.0.0.1 (netdevice(7)). Raises `OSError`."""
    request = struct.pack("16sh", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request.ljust(40, b"\0"))


def hide_from_job() -> None:
    """Forbid the job's processes to inspect this process, which has files open that they must not reach."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. Exits if the parent has ended already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def give_up_capabilities() -> None:
    """Drop all capabilities for programs that run from here on. Otherwise root here could undo the sandbox."""
    number = 0
    while _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1


def _be_first(command: int) -> None:
    """Be the first process of a PID namespace until the command has ended. Does not return."""
    close_all(list_descriptors())
    while True:
        if signal.sigwait({signal.SIGINT, signal.SIGCHLD}) == signal.SIGINT:
            with suppress(ProcessLookupError):
                os.killpg(command, signal.SIGINT)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == command:
                    os._exit(_as_exit_status(ended[1]))


def _as_exit_status(status: int) -> int:
    """The exit status that a shell would report."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _check(result: int, path: str | None) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
