"""A machine whose kernel refuses a system call: as a program, an interpreter that runs Python there."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CALLS = {"unshare": {"x86_64": 272, "aarch64": 97}, "mount_setattr": {"x86_64": 442, "aarch64": 442}}


class Filter(ctypes.Structure):
    """A program for seccomp: `struct sock_fprog` of Linux's `filter.h`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def forbid_namespaces() -> None:
    """Let this process and its children make no namespaces."""
    refuse("unshare", errno.EPERM)


def refuse(call: str, error: int) -> None:
    """Answer this system call of this process, and of its children, with an error, as seccomp does for Docker."""
    instructions = [
        (0x20, 0, 0, 0),  # The system call's number.
        (0x15, 0, 1, CALLS[call][os.uname().machine]),
        (0x06, 0, 0, 0x00050000 | error),
        (0x06, 0, 0, 0x7FFF0000),  # Any other is allowed.
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Filter(len(instructions), code)), 0, 0) == 0


def write_interpreter(folder: Path, call: str = "unshare", error: int = errno.EPERM) -> str:
    """An interpreter for such a machine, by its path. Without `unshare` it has no namespaces."""
    path = folder / f"python-without-{call}"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {call} {error} "$@"\n')
    path.chmod(0o755)
    return str(path)


if __name__ == "__main__":
    refuse(sys.argv[1], int(sys.argv[2]))
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
