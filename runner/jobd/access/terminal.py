"""Runs one program in a terminal of its own, and copies data between it and the person's terminal.

Because there are two terminals, the program cannot access the person's, and this process decides when the session ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
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

from ..files import Failure, JobPaths, write_all
from ..sandbox.namespaces import leave_descriptors
from ..sandbox.processes import kill_processes, reap_orphans
from ..sandbox.sandbox import Sandbox
from ..stages.stage import PR_SET_CHILD_SUBREAPER

CHUNK = 65_536
TICK_S = 0.2
"""How soon the end of the program is noticed when another process keeps its terminal open."""

MAX_REASON = 1_000

SIZE = struct.Struct("HHHH")
"""`struct winsize` of ioctl_tty(2)."""

HUNG_UP = (signal.SIGHUP, signal.SIGTERM)
"""The signals that end a session: its connection was closed, or somebody asked it to end."""


class SessionEnded(Exception):  # noqa: N818 - not an error
    """The session ends. The message tells the person why."""


def run_in_terminal(
    job: JobPaths, sandbox: Sandbox | None, argv: Sequence[str], env: Mapping[str, str], limit_s: float
) -> None:
    """Run a program in the job's worktree until it ends, its time is over, or the person is gone.

    Then kill everything that it started. Raises `Failure` if it cannot start.
    """
    # In a job without a sandbox, processes that leave their parent become children of this process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process, terminal = start(job, sandbox, argv, env)
    try:
        with raw_input(terminal), ending(limit_s):
            pass_on(process, terminal)
    finally:
        process.kill()
        kill_processes(job.id)
        process.wait()
        os.close(terminal)


def start(
    job: JobPaths, sandbox: Sandbox | None, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program in a new terminal. Returns its process, and the other end of the terminal. Raises `Failure`."""
    ours, theirs = socket.socketpair()

    def enter() -> None:
        try:
            if sandbox:
                # Before the terminal is opened, so that it is one of the sandbox's own. Other jobs' are out of reach.
                sandbox.enter(job.worktree)
            master, slave = os.openpty()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number in (0, 1, 2):
                os.dup2(slave, number)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            # With a lower limit, another job could make the next line fail (`leave_descriptors`).
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            socket.send_fds(theirs, [b"\0"], [master])
            if sandbox:
                leave_descriptors(soft)
            else:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
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
        raise Failure("not_entered", f"{argv[0]} cannot run: {(error.strerror or '').lower()}") from None
    finally:
        ours.close()
        theirs.close()
    return process, descriptors[0]


@contextmanager
def raw_input(terminal: int) -> Iterator[None]:
    """Let the person's terminal pass on each key at once, and give the program's terminal the same size."""

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
        with suppress(OSError, termios.error):  # It fails if the person is gone.
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, before)


@contextmanager
def ending(limit_s: float) -> Iterator[None]:
    """Raise `SessionEnded` when the session's time is over or the person is gone, even during a blocking write."""

    def end(reason: str) -> Callable[[int, Any], None]:
        def raise_over(*_: object) -> None:
            raise SessionEnded(reason)

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
    """Copy keys and output until the program has ended and all of its output is shown. Raises `SessionEnded`."""
    person, screen = sys.stdin.fileno(), sys.stdout.fileno()
    # A blocking write to a program that does not read would stop us from showing its output: a deadlock.
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
            show(screen, shown)
        elif process.poll() is not None:
            break
        reap_orphans(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(TICK_S)


def read(terminal: int) -> bytes:
    """Read what is available. Empty if the other end is closed, which terminals report as an error."""
    try:
        return os.read(terminal, CHUNK)
    except OSError:
        return b""


def show(screen: int, data: bytes) -> None:
    """Show everything to the person. Raises `SessionEnded` if they are gone."""
    try:
        write_all(screen, data)
    except OSError:
        _hang_up()


def _hang_up() -> bytes:
    raise SessionEnded("the connection has ended")
