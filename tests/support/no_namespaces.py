"""A machine that allows no namespaces: as a program, an interpreter that runs Python there."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
UNSHARE = {"x86_64": 272, "aarch64": 97}


class Filter(ctypes.Structure):
    """A program for seccomp: `struct sock_fprog` of Linux's `filter.h`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def forbid_namespaces() -> None:
    """Let this process and all that come of it make no namespaces, as Docker does: seccomp answers EPERM."""
    instructions = [
        (0x20, 0, 0, 0),  # The system call's number.
        (0x15, 0, 1, UNSHARE[os.uname().machine]),
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x06, 0, 0, 0x7FFF0000),  # Any other is allowed.
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Filter(len(instructions), code)), 0, 0) == 0


def write_interpreter(folder: Path) -> str:
    """An interpreter for such a machine, by its path."""
    path = folder / "python-without-namespaces"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    path.chmod(0o755)
    return str(path)


if __name__ == "__main__":
    forbid_namespaces()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
