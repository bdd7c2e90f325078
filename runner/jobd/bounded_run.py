"""Runs a program that answers quickly, such as one that prints its version."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MAX_OUTPUT = 65_536
"""Bytes that fit into a pipe by default (`pipe(7)`)."""


def run_bounded(
    argv: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[int, bytes, bytes]:
    """A program's exit status, its output and its errors.

    Raises `OSError` if the program cannot be started. Raises `TimeoutExpired` if it takes longer than `limit_s`, also
    because its output fills the pipe. Does not wait for the program after that: a process that hangs in a driver cannot
    be killed.
    """
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stderr
    try:
        status = process.wait(limit_s)
        return status, read_now(process.stdout.fileno()), read_now(process.stderr.fileno())
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.returncode = 0  # So that `Popen` does not wait for it later.
        raise
    finally:
        process.stdout.close()
        process.stderr.close()


def read_now(pipe: int) -> bytes:
    """Read what a pipe holds, without waiting for its other end to close."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        return os.read(pipe, MAX_OUTPUT)
    return b""
