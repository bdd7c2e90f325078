"""Runs one program in a terminal of its own, and passes on what the person before ours types and sees.

By two terminals, nothing of the program can reach the person's own; and it is we who end it, whatever it does.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..files import Failure, JobPaths
from ..sandbox.processes import kill_processes, reap_orphans
from ..sandbox.sandbox import Cell
from ..stages.stage import PR_SET_CHILD_SUBREAPER

CHUNK = 65_536
TICK_S = 0.2
"""How long after the program's end it is noticed where something of it holds the terminal open."""

MAX_REASON = 1_000

SIZE = struct.Struct("HHHH")
"""`struct winsize` of ioctl_tty(2)."""

HUNG_UP = (signal.SIGHUP, signal.SIGTERM)
"""What ends a session: its connection is gone, or somebody wants it."""


class Over(Exception):  # noqa: N818 - a fact, not a fault
    """The session ends, for a reason that the person may be told."""


def run_in_terminal(
    job: JobPaths, cell: Cell | None, argv: Sequence[str], env: Mapping[str, str], limit_s: float
) -> None:
    """Run a program in the job's worktree until it ends, its time is over, or the person is gone.

    Then nothing of it is alive. Raises `Failure` when it cannot be started.
    """
    # Where nothing is sealed, what leaves its parent is found below us.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process, terminal = start(job, cell, argv, env)
    try:
        with raw_input(terminal), ending(limit_s):
            pass_on(process, terminal)
    finally:
        process.kill()
        kill_processes(job.id)
        process.wait()
        os.close(terminal)


def start(
    job: JobPaths, cell: Cell | None, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """A program in a new terminal, and that terminal's other end. Raises `Failure`."""
    ours, theirs = socket.socketpair()

    def enter() -> None:
        try:
            if cell:
                cell.enter(job.worktree)  # With terminals of its own, so that no other job's are in reach.
            master, slave = os.openpty()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number in (0, 1, 2):
                os.dup2(slave, number)
            socket.send_fds(theirs, [b"\0"], [master])
        except BaseException as error:
            theirs.send(str(error).encode()[:MAX_REASON] or b"?")
            raise

    try:
        process = subprocess.Popen(argv, cwd=job.worktree, env=env, preexec_fn=enter, start_new_session=True)
        _, descriptors, _, _ = socket.recv_fds(ours, MAX_REASON, 1)
    except subprocess.SubprocessError:
        reason = ours.recv(MAX_REASON).decode(errors="replace")
        raise Failure("not_entered", f"the job cannot be entered: {reason}") from None
    except OSError as error:
        raise Failure("not_entered", f"{argv[0]} cannot be run: {(error.strerror or '').lower()}") from None
    finally:
        ours.close()
        theirs.close()
    return process, descriptors[0]


@contextmanager
def raw_input(terminal: int) -> Iterator[None]:
    """Let keys reach the program as they are struck, and its terminal be as large as the person's."""

    def fit(*_: object) -> None:
        with suppress(OSError):
            size = fcntl.ioctl(sys.stdin.fileno(), termios.TIOCGWINSZ, b"\0" * SIZE.size)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)

    before = termios.tcgetattr(sys.stdin.fileno())
    fit()
    signal.signal(signal.SIGWINCH, fit)
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        with suppress(OSError, termios.error):  # The person is gone.
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, before)


@contextmanager
def ending(limit_s: float) -> Iterator[None]:
    """Let the session end by `Over` when its time is over, or the person is gone, even while it waits to write."""

    def end(reason: str) -> Callable[[int, Any], None]:
        def raise_over(*_: object) -> None:
            raise Over(reason)

        return raise_over

    for number in HUNG_UP:
        signal.signal(number, end("the connection has ended"))
    signal.signal(signal.SIGALRM, end("your time in this job is over"))
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, 0.001))
    try:
        yield
    finally:
        for number in (*HUNG_UP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)


def pass_on(process: subprocess.Popen[bytes], terminal: int) -> None:
    """Pass on keys and output until the program has ended and all of its output is out. Raises `Over`."""
    person, screen = sys.stdin.fileno(), sys.stdout.fileno()
    # A program that does not read must not keep us from showing what it writes: else both would wait for ever.
    os.set_blocking(terminal, False)
    typed = b""
    while True:
        sources = [terminal, *([person] if len(typed) < CHUNK else [])]
        readable, writable, _ = select.select(sources, [terminal] if typed else [], [], TICK_S)
        if person in readable:
            typed += read(person) or _hang_up()
        if terminal in writable:
            typed = typed[os.write(terminal, typed) :]
        if terminal in readable:
            if not (shown := read(terminal)):
                break
            write_all(screen, shown)
        elif process.poll() is not None:
            break
        reap_orphans(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(TICK_S)


def read(terminal: int) -> bytes:
    """What there is to read; nothing when the other end is closed, which reading a terminal takes for an error."""
    try:
        return os.read(terminal, CHUNK)
    except OSError:
        return b""


def write_all(screen: int, data: bytes) -> None:
    """Show everything to the person. Raises `Over` when they are gone."""
    try:
        while data:
            data = data[os.write(screen, data) :]
    except OSError:
        _hang_up()


def _hang_up() -> bytes:
    raise Over("the connection has ended")
