"""What of that which seals jobs from each other works on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..environment.environment import list_ways
from ..sandbox.exposure import find_exposures
from ..sandbox.namespaces import CLONE, OVERLAY, describe_cell, find_missing, is_sealable


def describe_capabilities(request: Mapping[str, Any]) -> dict[str, Any]:
    """What of that works here, for the rest the reasons, and what is open."""
    workspace = Path(request["workspace"])
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = find_missing(workspace)
    works = [name for name in (*CLONE, "proc", OVERLAY) if name not in missing]
    way = next(name for name, works in list_ways(missing).items() if works)
    return {
        "sealed": is_sealable(missing),
        "works": works,
        "missing": missing,
        "words": describe_cell(missing),
        "way": way,
        "open": find_exposures(),
    }
