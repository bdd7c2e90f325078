"""The result of a command on a machine. A plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command. `exit_status` is the negative signal number if a signal killed it."""

    exit_status: int
    stdout: bytes
    stderr: bytes
