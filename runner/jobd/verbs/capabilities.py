"""What this machine can do to isolate jobs from each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..environment.environment import list_ways
from ..sandbox.exposure import find_exposures
from ..sandbox.namespaces import CLONE, OVERLAY
from ..sandbox.sealing import has_sealed
from ..sandbox.shortage import Shortage
from ..sandbox.trial import can_sandbox, describe_sandbox, find_missing


def describe_capabilities(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine can isolate, why it cannot isolate the rest, and what jobs can reach. Raises `Shortage`."""
    workspace = Path(request["workspace"])
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing, shortage = find_out(workspace)
    works = [name for name in (*CLONE, "proc", OVERLAY) if name not in missing]
    way = next(name for name, works in list_ways(missing).items() if works)
    return {
        "sealed": can_sandbox(missing),
        "works": works,
        "missing": missing,
        "words": f"{describe_sandbox(missing)}{shortage}",
        "way": way,
        "open": find_exposures(),
    }


def find_out(workspace: Path) -> tuple[dict[str, str], str]:
    """What is missing, and a clause for people if the machine has no room for a trial at the moment.

    If there is no room, jobs are sealed as before, or refused. Raises `Shortage` if no job was sealed before.
    """
    try:
        return find_missing(workspace), ""
    except Shortage as shortage:
        if not has_sealed(workspace):
            raise
        return {}, f" when it was last used; {shortage.message}"
