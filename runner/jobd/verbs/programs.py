"""The programs on the machine, and their versions. All of it must be quick."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from ..bounded_run import run_bounded

TIMEOUT_S = 10.0
"""How long a program may take to print its version; programs in JavaScript are slow."""

MAX_VERSION = 100


def describe_python(request: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of Python and git that jobd uses."""
    git = shutil.which("git")
    said = subprocess.run([git, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode() if git else ""
    return {"python": ".".join(map(str, sys.version_info[:3])), "git": said.split()[2] if git else None}


def find_programs(request: Mapping[str, Any]) -> dict[str, Any]:
    """The machine's time in seconds since 1970, and each program's version.

    A version is empty if it is unknown or was not requested, and None if the program is missing.
    """
    asked = {name: name in request["versions"] for name in (*request["programs"], *request["versions"])}
    return {"now": time.time(), "programs": {name: find_version(name, ask) for name, ask in asked.items()}}


def find_version(name: str, ask: bool) -> str | None:
    """The first line of what a program prints as its version. None if the program is missing."""
    path = shutil.which(name)
    if path is None or not ask:
        return None if path is None else ""
    try:
        status, out, _ = run_bounded([path, "--version"], TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = out.decode(errors="replace").strip().splitlines()
    return lines[0][:MAX_VERSION] if lines and not status else ""
