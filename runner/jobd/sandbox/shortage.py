"""Distinguishes a machine that forbids sandboxes from one that has no room for another sandbox at the moment.

A job can use up namespaces, processes or keys. So a shortage never means that a machine cannot seal jobs.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..files import Failure

FORBIDDEN = frozenset(
    {
        *(errno.EPERM, errno.EACCES, errno.EROFS),
        *(errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP, errno.ENOENT),
    }
)
"""The errors by which a kernel says that it forbids or lacks something (unshare(2), mount(2), user_namespaces(7)).

Other errors may be over in a moment: ENOSPC, EUSERS (namespaces), EAGAIN (processes), EDQUOT (keys), ENOMEM, EMFILE.
"""

NO_PROCESS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""The errors of a process that cannot be started for lack of room (fork(2), pipe(2))."""

USED_UP = {
    errno.ENOSPC: "the account's namespaces are used up",
    errno.EUSERS: "the account's namespaces are used up",
    errno.EAGAIN: "the account's processes are used up",
    errno.EDQUOT: "the account's keys are used up",
}
"""Clauses for people. `os.strerror` would speak of a device without space, for example."""

PATIENCE_S = 60.0
"""How long to wait for room."""

PAUSE_S = 0.2

T = TypeVar("T")


def explain_shortage(number: int | None) -> str:
    """An error number that is not in `FORBIDDEN`, as a clause for people."""
    return USED_UP.get(number or 0) or os.strerror(number or 0).lower()


class Shortage(Failure):
    """The machine has no room for another sandbox at the moment."""

    def __init__(self, reason: str) -> None:
        super().__init__("sandbox_shortage", f"the machine has no room for another sandbox at the moment: {reason}")


def explain_refusal(number: int | None, reason: str) -> Failure:
    """The failure of a process that could not enter its sandbox: there was no room, or the kernel does not allow it."""
    if number and number not in FORBIDDEN:
        return Shortage(explain_shortage(number))
    return Failure("not_sealed", f"a command could not enter its sandbox: {reason}")


def wait_for_room(attempt: Callable[[], T], patience_s: float) -> T:
    """Repeat an attempt while it raises `Shortage`. After `patience_s`, raises the `Shortage`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return attempt()
        except Shortage:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


@contextmanager
def unless_forbidden() -> Iterator[None]:
    """Ignore an error of the block that is in `FORBIDDEN`. Raises `OSError` for others, such as a shortage."""
    try:
        yield
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
