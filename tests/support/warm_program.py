"""The machine-side program in a process that has imported it already: a call costs a fork, and no start of Python.

A call is still a process of its own, with its own environment and rights, and gone with all that it changed of itself.
So is a stage. What depends on how Python starts, or on what a caller passes on to its child, has to start one
(`Jobd.is_warm`).
"""

from __future__ import annotations

import array
import atexit
import compileall
import ctypes
import gc
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import runner.jobd
from runner.jobd.files import JobPaths
from runner.jobd.main import main
from runner.jobd.stages import starting
from runner.transport.jobd_program import build_program
from tests.support.lesser_kernel import forbid_namespaces

ROOT = Path(__file__).parents[2]
PR_CAPBSET_DROP = 24
PR_SET_DUMPABLE = 4
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
CAPABILITIES_V3 = 0x20080522
"""The layout of capget(2) and capset(2): three sets of 32 bits, twice."""

MAX_MESSAGE = 1_000_000
FORWARDING = "runner.jobd.proxy.forwarding"
"""The one module that needs asyncio, which would make each fork a tenth dearer. A relay imports it when it begins."""

ROOM = " " * 2_000
"""A word on the command line of the process, in whose place a stage puts its own."""


def obey_file_modes() -> None:
    """Take from root what no user has: to read and to enter what its mode forbids."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def drop_rights_now() -> None:
    """Do at once what `obey_file_modes` does to the next program: this process executes none."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = struct.pack("=Ii", CAPABILITIES_V3, 0), ctypes.create_string_buffer(24)
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    kept = ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    low = [each & kept & 0xFFFFFFFF for each in struct.unpack_from("=3I", sets.raw)]
    struct.pack_into("=3I", sets, 0, *low)
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def be_on_machine(account: int | None, *, can_seal: bool) -> None:
    """Have the rights that the program has on a machine: those of an account, if not of ours, and no others."""
    obey_file_modes()
    if account is not None:
        os.setgroups([])
        os.setgid(account)
        os.setuid(account)
    if not can_seal:
        forbid_namespaces()


@cache
def unpack_program() -> Path:
    """The program as a folder, compiled. Any account may read it, and nobody may change it."""
    folder = tempfile.TemporaryDirectory(prefix="program-")
    Path(folder.name).chmod(0o755)
    atexit.register(folder.cleanup)
    program = Path(folder.name, "jobd")
    with zipfile.ZipFile(io.BytesIO(build_program())) as archive:
        archive.extractall(program)
    compileall.compile_dir(program, quiet=2)
    return program


class Call(NamedTuple):
    """What a call begins with."""

    argv: Sequence[str]
    env: Mapping[str, str]
    account: int | None
    can_seal: bool


class WarmProgram:
    """The process that waits for calls."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", __name__, str(theirs.fileno()), ROOM]
        with theirs:
            self._process = subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
        atexit.register(self._end)

    def _end(self) -> None:
        self._calls.close()
        self._process.wait()

    def call(self, call: Call, body: bytes, patience_s: float) -> tuple[int, bytes]:
        """How a call ends, and what it prints. Raises `TimeoutExpired`, like `subprocess`."""
        (out, out_end), (status, status_end) = os.pipe(), os.pipe()
        stdin = os.memfd_create("request")
        with os.fdopen(stdin, "wb") as request:
            request.write(body)
            request.flush()
            request.seek(0)
            descriptors = array.array("i", [stdin, out_end, status_end])
            with self._lock:
                self._calls.sendmsg([json.dumps(call).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        os.close(out_end)
        os.close(status_end)
        deadline = time.monotonic() + patience_s
        with os.fdopen(out, "rb") as out_file, os.fdopen(status, "rb") as status_file:
            said, ended = (read_all(pipe.fileno(), call.argv, deadline) for pipe in (out_file, status_file))
        return int(ended or -signal.SIGKILL), said


def read_all(pipe: int, argv: Sequence[str], deadline: float) -> bytes:
    """What comes out of a pipe until everybody has closed it. Raises `TimeoutExpired`."""
    parts: list[bytes] = []
    while True:
        if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise subprocess.TimeoutExpired(argv, 0, b"".join(parts))
        part = os.read(pipe, 1_000_000)
        if not part:
            return b"".join(parts)
        parts.append(part)


@cache
def warm_program() -> WarmProgram:
    """The one of this process."""
    return WarmProgram()


# In that process


def serve(calls: socket.socket) -> None:
    """Become a call whenever there is one, until nobody is left who could make any."""
    for module in pkgutil.walk_packages(runner.jobd.__path__, f"{runner.jobd.__name__}."):
        if module.name != FORWARDING:
            import_module(module.name)
    starting.start_process = start_stage
    gc.freeze()  # A collection in a child would write to all that it shares with this process.
    while True:
        message, descriptors, _, _ = socket.recv_fds(calls, MAX_MESSAGE, 3)
        reap()
        if not message:
            return
        if not os.fork():
            calls.close()
            be_call(Call(*json.loads(message)), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def reap() -> None:
    """Take the exit statuses of calls that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def be_call(call: Call, stdin: int, stdout: int, status: int) -> None:
    """Be one call, to its end. Does not return."""
    ended = 1
    try:
        for descriptor, number in ((stdin, 0), (stdout, 1)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(status, False)
        os.environ.clear()
        os.environ.update(call.env)
        be_on_machine(call.account, can_seal=call.can_seal)
        # After a change of account, nobody may read a process in /proc. A new program would be readable again.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        sys.argv = [*call.argv]
        main()
        ended = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os.close(1)
        os.write(status, str(ended).encode())
        os._exit(ended)


def start_stage(words: Sequence[str], job: JobPaths, log: int, lock: int) -> None:
    """What `runner.jobd.stages.starting.start_process` does, without a start of Python.

    Returns once the process can be found as the job's.
    """
    begun, begun_end = os.pipe()
    if os.fork():
        os.close(begun_end)
        os.read(begun, 1)
        os.close(begun)
        return
    ended = 1
    try:
        os.setsid()
        drop_rights_now()
        for descriptor, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(descriptor, number)
        os.chdir(job.workspace)
        os.environ["PTQ_JOB_ID"] = job.id
        sys.argv = [sys.argv[0], *words]
        show([sys.executable, "-I", "-S", *sys.argv], [f"PTQ_JOB_ID={job.id}"])
        for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, lock}:  # noqa: PTH208
            with suppress(OSError):  # The folder's own is closed already.
                os.close(descriptor)
        main()
        ended = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(ended)


def show(words: Sequence[str], variables: Sequence[str]) -> None:
    """Let other processes read this command line and this environment, as if this process had begun with them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # proc(5): `arg_start` and the three fields after it. Whoever uses a variable has copied it.
    arguments, arguments_end, environment, environment_end = map(int, fields[45:49])
    overwrite(arguments, arguments_end, words)
    overwrite(environment, environment_end, variables)


def overwrite(begin: int, end: int, texts: Sequence[str]) -> None:
    """Put texts into the memory between two addresses, each with a NUL behind it."""
    data = b"".join(os.fsencode(text) + b"\0" for text in texts)
    assert len(data) <= end - begin
    ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
