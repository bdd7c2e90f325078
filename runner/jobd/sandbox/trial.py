"""Tries which namespaces this machine allows, because no setting tells that completely."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from .child import ask_child
from .namespaces import (
    CLONE,
    LIMITS,
    LIMITS_OF,
    OVERLAY,
    PRIVATE,
    RECURSIVE,
    ROOT,
    keep_ids,
    make_all_read_only,
    mount,
    mount_empty,
    mount_overlay,
    unmount,
    unshare,
)
from .shortage import FORBIDDEN, Shortage, explain_shortage, wait_for_room
from .syscalls import can_filter

FORBIDDING = {
    "kernel/unprivileged_userns_clone": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
    "user/max_user_namespaces": "0",
}
"""Settings in /proc/sys that forbid user namespaces when they have this value."""


def find_missing(folder: Path, patience_s: float = 1.0) -> dict[str, str]:
    """The namespaces, and `proc` and `overlay`, that this machine does not allow, each with the reason.

    Raises `Shortage` if the machine has no room for a trial within `patience_s`.
    """
    return wait_for_room(lambda: _try_in_child(folder), patience_s)


def can_sandbox(missing: Mapping[str, str]) -> bool:
    """Whether the machine allows a sandbox."""
    return not any(name in missing for name in CLONE)


def describe_sandbox(missing: Mapping[str, str]) -> str:
    """The result of `find_missing` for people."""
    reasons = [f"{name} namespaces: {missing[name]}" for name in CLONE if name in missing]
    if reasons:
        return f"not sealed: {reasons[0]}"
    own = f"; /proc is the machine's: {missing['proc']}" if "proc" in missing else ""
    calls = "" if can_filter() else "; system calls are not filtered on this kind of machine"
    return f"sealed: {', '.join(CLONE)}{own}{calls}"


def _try_in_child(folder: Path) -> dict[str, str]:
    try:
        found = ask_child(lambda: _try(folder))
    except OSError as error:
        raise Shortage(explain_shortage(error.errno)) from None
    if isinstance(found, dict):
        return found
    raise Shortage(found or "the trial was cut short")


def _try(folder: Path) -> dict[str, str] | str:
    """Try everything, in a process that ends afterwards. Each namespace needs the ones before it.

    Returns what is missing, or the reason why the machine has no room at the moment.
    """
    ids, names = (os.getuid(), os.getgid()), [*CLONE]
    turned_off = {name for name in names if _read(LIMITS / LIMITS_OF[name]) == "0"}  # A new namespace has new limits.
    missing = {OVERLAY: "it needs mount"}
    for position, name in enumerate(names):
        try:
            unshare(CLONE[name])
            if name == "user":
                keep_ids(*ids)
            elif name == "mount":
                mount("", ROOT, flags=RECURSIVE | PRIVATE)
                mount_empty(folder)
                unmount(folder)
                missing = _explain_failure(OVERLAY, lambda: _try_overlay(folder))
                make_all_read_only()
        except OSError as error:
            if error.errno not in FORBIDDEN and not (error.errno == errno.ENOSPC and name in turned_off):
                return explain_shortage(error.errno)
            return {
                **missing,
                name: _explain(error),
                **dict.fromkeys([*names[position + 1 :], "proc"], f"it needs {name}"),
            }
    # In a child, because this process is not in the PID namespace. The child is the first process in it, and the last.
    proc = ask_child(lambda: _explain_failure("proc", lambda: mount("proc", Path("/proc"), "proc")))
    return {**missing, **({"proc": "the trial was cut short"} if proc is None else proc)}


def _explain_failure(name: str, attempt: Callable[[], None]) -> dict[str, str]:
    """The reason why an attempt fails, by the name of what it tries. Empty if it succeeds."""
    try:
        attempt()
    except OSError as error:
        return {name: _explain(error)}
    return {}


def _try_overlay(folder: Path) -> None:
    with TemporaryDirectory(prefix=".trial-", dir=folder) as trial:
        parts = [Path(trial, name) for name in ("place", "layer", "content", "work")]
        for part in parts:
            part.mkdir()
        place, layer, content, work = parts
        (layer / "file").touch()
        mount_overlay(place, [layer], content, work)
        try:
            (place / "file").unlink()
        finally:
            unmount(place)
            work.chmod(0o700)
            with suppress(OSError):
                (work / "work").chmod(0o700)


def _explain(error: OSError) -> str:
    named = [
        f"{name.replace('/', '.')} is {value}"
        for name, value in FORBIDDING.items()
        if _read(Path("/proc/sys", name)) == value
    ]
    return "; ".join([os.strerror(error.errno or 0).lower(), *named])


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
