"""Keeps a job's command from connecting to abstract Unix sockets of programs outside it (landlock(7)).

Such a socket belongs to a network namespace, and has no path that a mount could hide. If two jobs use the machine's
network, one could send open descriptors to the other through such a socket. The other would still have them after the
first has ended. Sockets that the command's own processes make still work. Kernels before 6.12 cannot do this.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .shortage import unless_forbidden

CREATE_RULESET, RESTRICT_SELF = 444, 446
"""The numbers of the system calls, for which libc has no functions, on every kind of processor."""
ASK_VERSION = 1
SCOPED_SINCE = 6
"""The first version of Landlock that knows scopes."""
ABSTRACT_UNIX_SOCKET = 1

RULESET = struct.pack("=QQQ", 0, 0, ABSTRACT_UNIX_SOCKET)
"""`struct landlock_ruleset_attr`. It restricts no access to files. Otherwise the kernel would refuse mounts, and a
job's programs could not make sandboxes of their own."""

_libc = ctypes.CDLL(None, use_errno=True)


def can_scope_sockets() -> bool:
    """Whether the kernel can restrict connections to abstract sockets."""
    return bool(_libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION) >= SCOPED_SINCE)


def scope_sockets() -> None:
    """Let this process and its children connect only to abstract sockets that they make. Raises `OSError`.

    Does nothing if the kernel cannot do this, or if the machine forbids it. The process needs CAP_SYS_ADMIN in its user
    namespace, or else `no_new_privs`.
    """
    if not can_scope_sockets():
        return
    with unless_forbidden():
        ruleset = _call(CREATE_RULESET, RULESET, ctypes.c_size_t(len(RULESET)), 0)
        try:
            _call(RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)


def _call(*words: object) -> int:
    found: int = _libc.syscall(*words)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "Landlock")
    return found
