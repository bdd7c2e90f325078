"""A filter for the system calls of a job's commands (seccomp(2), linux/filter.h). It refuses what no namespace
seals:

- keys: all processes of an account share one quota, so a job could use it up and leave none for its neighbours;
- leases and delegations of files (`F_SETLEASE`): anyone who opens such a file waits until its holder answers, for up to
  45 seconds, and a job can get a lease on each file of its account that it can read;
- snapshots and subvolumes of btrfs: an account may make a snapshot of a folder of its own, including everything in it
  that mounts hide; a read-only snapshot cannot be removed with the job;
- without a network, sockets of families that no network namespace contains (`AF_VSOCK`, for example). The filter does
  not see the sockets that io_uring makes, nor the family in `socketcall`, which 32-bit programs use on x86-64. So it
  refuses io_uring, and all sockets that `socketcall` would make.

The answer is EPERM, as in containers. A program cannot remove the filter, and its children inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SECCOMP = {"x86_64": 317, "aarch64": 277}
"""The number of `seccomp(2)`, for which libc has no function, on each kind of processor that has a filter."""
SET_MODE_FILTER, SPEC_ALLOW = 1, 4
"""Without `SPEC_ALLOW`, kernels before 5.16 slow down programs with a filter, to protect these programs' memory."""

F_SETLEASE, F_SETDELEG = 1024, 1040

SUBVOLUMES = (0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x4008941A, 0x5000943F)
"""The requests of `ioctl` that make, change or remove subvolumes and snapshots (linux/btrfs.h)."""

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""The families whose sockets belong to one network namespace or have a path."""
MAKE_SOCKET, MAKE_PAIR = 1, 8
"""Numbers of what `socketcall` does (linux/net.h)."""
IO_URING_SETUP = 425
"""The number of `io_uring_setup(2)`, on every kind of processor."""

LOAD, EQUALS, HAS_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
"""Instructions: load a word of the call, compare it, and return."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`. Only the lower half of each argument counts: the kernel ignores the rest here."""
ALLOW, ERROR = 0x7FFF0000, 0x00050000
X32 = 0x40000000
"""On x86-64, the bit in the numbers of calls that are for programs with short pointers (x32)."""
SKIPPED = 0xFFFFFFFF
"""The number of a call that a debugger has cancelled."""


class CallNumbers(NamedTuple):
    """The numbers of the calls that one kind of program makes."""

    architecture: int
    """The number of the kind of processor in `linux/audit.h`."""
    keys: tuple[int, ...]
    """`add_key`, `request_key` and `keyctl`."""
    fcntl: tuple[int, ...]
    """`fcntl`, and `fcntl64` of programs with 32 bits."""
    sockets: tuple[int, ...]
    """`socket` and `socketpair`."""
    ioctl: int
    socketcall: tuple[int, ...] = ()


KINDS = (
    CallNumbers(0xC000003E, (248, 249, 250), (72,), (41, 53), 16),  # x86-64
    CallNumbers(0xC00000B7, (217, 218, 219), (25,), (198, 199), 29),  # AArch64
    CallNumbers(0x40000003, (286, 287, 288), (55, 221), (359, 360), 54, (102,)),  # i386, also on x86-64
    CallNumbers(0x40000028, (309, 310, 311), (55, 221), (281, 288), 54),  # Arm, also on AArch64
)

Instruction = tuple[int, int, int, int]
"""Code, how many instructions to skip if a comparison holds and if it does not, and a number (`struct sock_filter`)."""
REFUSE: Instruction = ANSWER, 0, 0, ERROR | errno.EPERM


class Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


def can_filter() -> bool:
    """Whether there is a filter for this kind of processor, and for this Python: one with 64 bits."""
    return os.uname().machine in SECCOMP and sys.maxsize > 2**32


def filter_calls(*, network: bool) -> None:
    """Refuse these system calls from here on, in this process and its children. Raises `OSError`.

    Does nothing if there is no filter for this machine. The process needs CAP_SYS_ADMIN in its user namespace, or else
    `no_new_privs`.
    """
    if not can_filter():
        return
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in make_filter(KINDS, network=network))
    loaded = Filter(len(program) // 8, program)
    if _libc.syscall(SECCOMP[os.uname().machine], SET_MODE_FILTER, SPEC_ALLOW, ctypes.byref(loaded)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "system call filter")


def make_filter(kinds: Iterable[CallNumbers], *, network: bool) -> Iterator[Instruction]:
    """The filter's instructions. They allow all calls of programs of another kind."""
    for kind in kinds:
        yield load(ARCHITECTURE)
        yield from when(EQUALS, kind.architecture, [*_judge(kind, network=network)])
    yield answer(ALLOW)


def _judge(kind: CallNumbers, *, network: bool) -> Iterator[Instruction]:
    yield load(NUMBER)
    yield from when(EQUALS, SKIPPED, [answer(ALLOW)])
    yield from when(HAS_BIT, X32, [answer(ERROR | errno.ENOSYS)])
    yield from when_any(kind.keys, [REFUSE])
    leases = when_any((F_SETLEASE, F_SETDELEG), [REFUSE])
    yield from when_any(kind.fcntl, [load(SECOND_ARGUMENT), *leases, answer(ALLOW)])
    subvolumes = when_any(SUBVOLUMES, [REFUSE])
    yield from when(EQUALS, kind.ioctl, [load(SECOND_ARGUMENT), *subvolumes, answer(ALLOW)])
    if not network:
        usual = when_any(FAMILIES, [answer(ALLOW)])
        makes = when_any((MAKE_SOCKET, MAKE_PAIR), [REFUSE])
        yield from when_any(kind.sockets, [load(FIRST_ARGUMENT), *usual, REFUSE])
        yield from when_any(kind.socketcall, [load(FIRST_ARGUMENT), *makes, answer(ALLOW)])
        yield from when(EQUALS, IO_URING_SETUP, [REFUSE])
    yield answer(ALLOW)


def load(offset: int) -> Instruction:
    """Load the word of the call at this offset."""
    return LOAD, 0, 0, offset


def when(comparison: int, number: int, then: list[Instruction]) -> list[Instruction]:
    """Instructions that run only if the comparison holds."""
    return [(comparison, 0, len(then), number), *then]


def when_any(numbers: Iterable[int], then: list[Instruction]) -> list[Instruction]:
    """Instructions that run if the word equals one of these numbers. `then` must end with an answer."""
    return [instruction for number in numbers for instruction in when(EQUALS, number, then)]


def answer(action: int) -> Instruction:
    """End the filter with this action."""
    return ANSWER, 0, 0, action
