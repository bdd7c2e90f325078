"""Reads what a machine says came out of a job. All of it may have been written by the agent: nothing is believed.

Pure. Shapes, sizes and paths are checked again here, whatever the machine-side program checked; what may not become a
pull request is refused with a sentence that names the path.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.characters import is_invisible, name_oddities, show_invisible
from runner.environment import Limits, Profile
from runner.job import FileChange, Job, Report, digest_of

MODES = ("100644", "100755", "120000", "160000")
MAX_PATH = 4096
MAX_PATCH_FACTOR = 4
"""A patch may be this many times as large as the changed files: it repeats what was there before."""

MAX_NOTES = 50
_GIT_SHORT_NAME = re.compile(r"git~[0-9]+")


class BadArtifacts(Exception):  # noqa: N818 - says what they are
    """What the machine sent has another shape than our own program gives it."""


def read_report(job: Job, raw: Mapping[str, Any], profile: Profile) -> Report:
    """The report of a job. Raises `BadArtifacts` when there is no sense to be made of `raw`."""
    limits = profile.limits
    changes = _read_changes(raw, limits)
    patch = _read_text(raw, "patch", MAX_PATCH_FACTOR * limits.max_change_bytes + limits.max_text_bytes)
    refusals = tuple(find_refusals(job, changes, profile.protected_paths))
    problems = raw.get("problems")
    if not isinstance(problems, list):
        raise BadArtifacts("the list of problems is missing")
    warnings = [_one_line(problem) for problem in problems[:MAX_NOTES] if isinstance(problem, str)]
    return Report(
        job_id=job.id,
        body=_read_text(raw, "report", limits.max_text_bytes),
        worklog=_read_text(raw, "worklog", limits.max_text_bytes),
        pr_title=_read_text(raw, "pr_title", limits.max_text_bytes),
        repro=_read_text(raw, "repro", limits.max_text_bytes),
        patch=patch,
        changes=changes,
        digest=digest_of(job.base_commit or "", changes) if changes and not refusals else None,
        refusals=refusals[:MAX_NOTES],
        warnings=(*warnings, *list(find_warnings(changes))[:MAX_NOTES]),
    )


def _read_text(raw: Mapping[str, Any], name: str, limit: int) -> str:
    text = raw.get(name)
    if not isinstance(text, str):
        raise BadArtifacts(f"the text {name!r} is missing")
    if len(text) > limit:
        raise BadArtifacts(f"the text {name!r} is longer than {limit} characters")
    # A database refuses what UTF-8 cannot say, and PostgreSQL a NUL.
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _read_changes(raw: Mapping[str, Any], limits: Limits) -> tuple[FileChange, ...]:
    rows = raw.get("changes")
    if not isinstance(rows, list) or len(rows) > limits.max_changes:
        raise BadArtifacts(f"the list of changes is missing, or longer than {limits.max_changes}")
    changes = tuple(_read_change(row) for row in rows)
    if sum(len(change.content or b"") for change in changes) > limits.max_change_bytes:
        raise BadArtifacts(f"the changed files are larger than {limits.max_change_bytes} bytes together")
    if len({change.path for change in changes}) != len(changes):
        raise BadArtifacts("a path is changed twice")
    return changes


def _read_change(row: Any) -> FileChange:
    if not isinstance(row, Mapping):
        raise BadArtifacts("a change has no fields")
    path, mode, old_mode, encoded = (row.get(name) for name in ("path", "mode", "old_mode", "content"))
    if not isinstance(path, str) or not 0 < len(path) <= MAX_PATH or path != path.encode(errors="replace").decode():
        raise BadArtifacts("a change has no usable path")
    if mode not in (None, *MODES) or old_mode not in (None, *MODES) or (mode is None and old_mode is None):
        raise BadArtifacts(f"a change has an unknown mode: {show_invisible(path)}")
    if (encoded is None) != (mode in (None, "160000")):
        raise BadArtifacts(f"a change has content and no file, or the reverse: {show_invisible(path)}")
    return FileChange(path, mode, _decode(encoded, path), old_mode)


def _decode(encoded: Any, path: str) -> bytes | None:
    try:
        return None if encoded is None else base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise BadArtifacts(f"a change has garbled content: {show_invisible(path)}") from error


def _one_line(text: str) -> str:
    return show_invisible(" ".join(text.split()))[:300]


# What may not become a pull request


def find_refusals(job: Job, changes: Sequence[FileChange], protected: Sequence[str]) -> Iterable[str]:
    """Why these changes may not be proposed, a sentence each; nothing when they may."""
    if changes and not job.may_change:
        names = ", ".join(_show(change.path) for change in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        yield f"the preset {job.preset} changes no file, but the agent changed {names}{more}"
    folded: dict[str, str] = {}
    for change in changes:
        for reason in _refuse(change, protected):
            yield f"{_show(change.path)} {reason}"
        twin = change.path if change.mode is None else folded.setdefault(fold(change.path), change.path)
        if twin != change.path:
            yield f"{_show(change.path)} and {_show(twin)} are the same file on some systems"


def _refuse(change: FileChange, protected: Sequence[str]) -> Iterable[str]:
    parts = change.path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in change.path:
        yield "is no path inside the repository"
    if any(is_invisible(char) or char in "\n\r\t" for char in change.path):
        yield "has characters in its name that nobody can see"
    if any(looks_like_git(part) for part in parts):
        yield "looks like git's own folder"
    if pattern := find_protecting(change.path, protected):
        yield f"is protected by `{pattern}`"
    if "160000" in (change.mode, change.old_mode):
        yield "changes a submodule"
    if change.mode == "120000" and not stays_inside(change):
        yield "is a link out of the tree"


def fold(path: str) -> str:
    """The path as a file system that knows no case and ignores what is invisible would compare it."""
    plain = unicodedata.normalize("NFKC", path)
    return unicodedata.normalize("NFKC", "".join(char for char in plain if not is_invisible(char)).casefold())


def looks_like_git(part: str) -> bool:
    """Whether some file system would take this name for `.git` (HFS+ drops characters, NTFS has short names)."""
    name = fold(part).split(":")[0].rstrip(" .")
    return name == ".git" or bool(_GIT_SHORT_NAME.fullmatch(name))


def find_protecting(path: str, patterns: Iterable[str]) -> str | None:
    """The pattern that protects a path. `dir/**` is a folder; a pattern without a slash counts at any depth."""
    name = fold(path)
    for pattern in patterns:
        folded = fold(pattern)
        anywhere = "/" not in folded and fnmatch.fnmatchcase(name.rpartition("/")[2], folded)
        if anywhere or fnmatch.fnmatchcase(name, folded) or name == folded.removesuffix("/**"):
            return pattern
    return None


def stays_inside(change: FileChange) -> bool:
    """Whether a link leads to a path inside the tree.

    Allowed are targets that climb first and then only go down: a `..` after a name could climb out through another
    link of the tree, however harmless it looks.
    """
    target = (change.content or b"").decode(errors="replace")
    parts = target.split("/")
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    rest = parts[climbs:]
    if not target or target.startswith("/") or "\\" in target or "\0" in target or ".." in rest:
        return False
    return climbs <= change.path.count("/") and not any(looks_like_git(part) for part in rest)


def _show(path: str) -> str:
    return f"`{show_invisible(path)[:200].replace('`', chr(0x2BC))}`"


def find_warnings(changes: Iterable[FileChange]) -> Iterable[str]:
    """What the eye of a reader of these changes would miss, a sentence each."""
    for change in changes:
        if change.mode == "100755" and change.old_mode != "100755":
            yield f"{_show(change.path)} is executable now"
        if change.mode == "120000":
            yield f"{_show(change.path)} is a link to {_show((change.content or b'').decode(errors='replace'))}"
        elif change.binary:
            yield f"{_show(change.path)} is binary ({len(change.content or b'')} bytes)"
        elif change.content:
            for oddity in name_oddities(change.content.decode()):
                yield f"{_show(change.path)} has {oddity}"
