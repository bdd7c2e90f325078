"""A command that was run on a machine and has ended. A plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. `exit_status` is the negative signal number when a signal killed it."""

    exit_status: int
    stdout: bytes
    stderr: bytes
