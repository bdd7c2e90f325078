"""What this machine can do to isolate jobs from each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..environment.environment import list_ways
from ..sandbox.exposure import find_exposures
from ..sandbox.namespaces import CLONE, OVERLAY, can_sandbox, describe_sandbox, find_missing


def describe_capabilities(request: Mapping[str, Any]) -> dict[str, Any]:
    """What works here, why the rest does not, and what jobs can reach."""
    workspace = Path(request["workspace"])
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = find_missing(workspace)
    works = [name for name in (*CLONE, "proc", OVERLAY) if name not in missing]
    way = next(name for name, works in list_ways(missing).items() if works)
    return {
        "sealed": can_sandbox(missing),
        "works": works,
        "missing": missing,
        "words": describe_sandbox(missing),
        "way": way,
        "open": find_exposures(),
    }
