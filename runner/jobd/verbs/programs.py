"""Which programs the machine has, and which version each says that it is. None of it may take long."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from .inventory import run_bounded

PATIENCE_S = 10.0
"""How long a program may take to say its version: those in JavaScript are slow at it."""

MAX_VERSION = 100


def describe_python(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine runs us with."""
    git = shutil.which("git")
    said = subprocess.run([git, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode() if git else ""
    return {"python": ".".join(map(str, sys.version_info[:3])), "git": said.split()[2] if git else None}


def find_programs(request: Mapping[str, Any]) -> dict[str, Any]:
    """The machine's clock, in seconds since 1970, and of each program its version: empty where it says none that makes
    sense or is not to be asked, None where there is no such program."""
    asked = {name: name in request["versions"] for name in (*request["programs"], *request["versions"])}
    return {"now": time.time(), "programs": {name: find_version(name, ask) for name, ask in asked.items()}}


def find_version(name: str, ask: bool) -> str | None:
    """What a program says of itself in its first line."""
    path = shutil.which(name)
    if path is None or not ask:
        return None if path is None else ""
    try:
        status, out, _ = run_bounded([path, "--version"], PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = out.decode(errors="replace").strip().splitlines()
    return lines[0][:MAX_VERSION] if lines and not status else ""
