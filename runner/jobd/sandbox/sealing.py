"""Remembers whether a workspace has sealed jobs, so that no job can make the machine run later jobs unsealed."""

from __future__ import annotations

import os
from pathlib import Path

from ..files import write_file

NAME = "sealed"
"""A file in the workspace. Sandboxes hide the workspace, so no sealed job can delete the file."""

NOTE = """\
Jobs of this workspace have run in a sandbox. If the machine cannot provide one any more, ptq-bot runs no jobs here.
Delete this file to let jobs run without a sandbox (see docs/machines.md).
"""


def has_sealed(workspace: Path) -> bool:
    """Whether a job of this workspace was sealed."""
    return os.path.lexists(workspace / NAME)


def remember_sealing(workspace: Path) -> None:
    """Record that a job of this workspace is sealed. Raises `OSError`."""
    if not has_sealed(workspace):
        write_file(workspace / NAME, NOTE)
