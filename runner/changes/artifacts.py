"""Reads a job's result from a machine's answer. An agent may have written any of it, so everything is checked.

Pure. Checks shapes, sizes and paths again, although the program on the machine has checked them. A change that must not
become a pull request is refused, with a sentence that names its path.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

from runner.agents.configuration import configures_agents
from runner.changes.patch import check_patch, list_bare_returns, list_unshown
from runner.changes.patch_text import PatchMismatch
from runner.characters import (
    decode_exactly,
    drop_invisible,
    make_storable,
    name_oddities,
    show_invisible,
    show_path,
    unify,
)
from runner.model.environment import Limits, Profile
from runner.model.job import LINK, SUBMODULE, FileChange, Job, Report, digest_of
from runner.model.jobd_answers import SAYS

MODES = ("100644", "100755", LINK, SUBMODULE)

MAX_PATH = 4096
"""Characters of a path or of a link's target: Linux's limit."""

MAX_PATHS = 500_000
"""Characters of all paths in total: each is quoted, compared and shown several times."""

MAX_DEPTH = 100
"""Names in a path. Real repositories stay far below, and comparing paths may take time for each name."""

MAX_PATCH_FACTOR = 4
"""How many times larger than the changed files a patch may be: it also holds the old content."""

MAX_PATCH_LINES = 200_000
"""Nobody reads more lines, and each line, even an empty one, takes time wherever a patch is read."""

MAX_ESCAPED = 6
"""The most bytes that one byte takes in JSON."""

ESCAPED = 3
"""The most bytes that one byte of UTF-8 without control characters takes in JSON. Nothing else runs while JSON is
parsed, so a longer patch is accepted only if its text is shorter than its own limit."""

MAX_NOTES = 50
MAX_NOTE = 300


class BadArtifacts(Exception):  # noqa: N818 - a state
    """The machine's answer does not have the form that our program gives it."""


def read_report(job: Job, raw: Mapping[str, Any], profile: Profile, secret: bytes) -> Report:
    """The report of a job, with a digest that needs `secret`. Raises `BadArtifacts` if `raw` is invalid."""
    limits = profile.limits
    changes = _read_changes(raw, limits)
    patch = _read_patch(raw, limits)
    refusals = [*find_refusals(job, changes, profile.protected_paths), *_refuse_long(patch, limits)]
    refusals += [] if refusals else _refuse_mismatch(patch, changes)
    texts = {name: _read_text(raw, name, limits.max_text_bytes) for name in ("report", "worklog", "pr_title", "repro")}
    return Report(
        job_id=job.id,
        body=texts["report"],
        worklog=texts["worklog"],
        pr_title=texts["pr_title"],
        repro=texts["repro"],
        patch=_cut_patch(patch, limits),
        changes=changes,
        digest=digest_of(job.base_commit, changes, secret) if job.base_commit and changes and not refusals else None,
        refusals=_first(refusals),
        warnings=_first([*find_warnings(changes, _list_unshown(patch, changes)), *_read_problems(raw)]),
    )


def _read_text(raw: Mapping[str, Any], name: str, limit: int | None = None) -> str:
    text = raw.get(name)
    if not isinstance(text, str):
        raise BadArtifacts(f"the text {name!r} is missing")
    if limit is not None and len(text) > limit:
        raise BadArtifacts(f"the text {name!r} is longer than {limit} characters")
    return make_storable(text)  # At once, so that the text that is checked, shown and stored is the same.


def _read_patch(raw: Mapping[str, Any], limits: Limits) -> str:
    """The patch exactly as git wrote it: see `decode_exactly`. One that is too long is cut, and refused elsewhere."""
    patch = raw.get("patch")
    if not isinstance(patch, str):
        raise BadArtifacts("the text 'patch' is missing")
    patch = patch[: _max_patch(limits) + 1]
    try:
        return decode_exactly(patch.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # Our program sends no such text, and the replacement never matches a change.
        return make_storable(patch)


def _max_patch(limits: Limits) -> int:
    """Bytes of the longest patch."""
    return MAX_PATCH_FACTOR * limits.max_change_bytes + limits.max_text_bytes


def _refuse_long(patch: str, limits: Limits) -> Iterable[str]:
    """Nobody can approve what is not shown.

    A small change can have a long patch, because it may delete a large file.
    """
    if _is_longer(patch, _max_patch(limits)):
        yield f"the diff is longer than {_max_patch(limits)} bytes, too long to be shown whole"
    elif patch.count("\n") > MAX_PATCH_LINES:
        yield f"the diff has more than {MAX_PATCH_LINES} lines, too many to be read"


def _is_longer(text: str, limit: int) -> bool:
    """Whether a text has more bytes than the limit. Most texts are too short for that."""
    return 4 * len(text) > limit and len(text.encode()) > limit


def _cut_patch(patch: str, limits: Limits) -> str:
    """The part of the patch that is stored: all of it, unless it is refused because of its length."""
    kept, limit = patch, _max_patch(limits)
    if _is_longer(patch, limit):
        kept = patch.encode()[:limit].decode(errors="ignore")
    if kept.count("\n") <= MAX_PATCH_LINES:
        return kept
    return "".join(f"{line}\n" for line in kept.split("\n", MAX_PATCH_LINES)[:MAX_PATCH_LINES])


def find_max_answer(limits: Limits) -> int:
    """Bytes of the longest result that an honest machine sends."""
    texts = 4 * limits.max_text_bytes + limits.max_changes * (MAX_PATH + MAX_NOTE)
    return ESCAPED * _max_patch(limits) + MAX_ESCAPED * texts + 2 * limits.max_change_bytes + 1_000_000


def _refuse_mismatch(patch: str, changes: Sequence[FileChange]) -> list[str]:
    """Check what can be checked without the base commit. The rest is checked before a pull request opens."""
    try:
        check_patch(patch, changes)
        return [describe_bare_return(name) for name in list_bare_returns(patch)]
    except PatchMismatch as error:
        return [f"the diff is not the change: {error}"]


def _list_unshown(patch: str, changes: Sequence[FileChange]) -> frozenset[str]:
    try:
        return list_unshown(patch, changes)
    except PatchMismatch:  # It is refused elsewhere.
        return frozenset()


def describe_bare_return(path: str) -> str:
    """Why a change that adds a carriage return within a line cannot become a pull request."""
    return f"{show_path(path)} gets a carriage return within a line: some programs end the line there, a diff does not"


def _read_problems(raw: Mapping[str, Any]) -> list[str]:
    problems = raw.get("problems")
    if not isinstance(problems, list):
        raise BadArtifacts("the list of problems is missing")
    sentences = [problem for problem in problems if isinstance(problem, str)]
    # These are our program's sentences, but a machine can send anything.
    shown = [f"{SAYS}{show_invisible(' '.join(sentence[:MAX_NOTE].split()))}" for sentence in sentences[:MAX_NOTES]]
    return [*shown, *sentences[MAX_NOTES:]]  # The others are only counted.


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    more = len(sentences) - MAX_NOTES
    return (*sentences[:MAX_NOTES], *([f"... and {more} more like these"] if more > 0 else []))


def _read_changes(raw: Mapping[str, Any], limits: Limits) -> tuple[FileChange, ...]:
    rows = raw.get("changes")
    if not isinstance(rows, list) or len(rows) > limits.max_changes:
        raise BadArtifacts(f"the list of changes is missing, or longer than {limits.max_changes}")
    changes = tuple(_read_change(row) for row in rows)
    if sum(len(change.content or b"") for change in changes) > limits.max_change_bytes:
        raise BadArtifacts(f"the changed files are larger than {limits.max_change_bytes} bytes together")
    if sum(len(change.path) for change in changes) > MAX_PATHS:
        raise BadArtifacts(f"the paths of the changed files are longer than {MAX_PATHS} characters together")
    if len({change.path for change in changes}) != len(changes):
        raise BadArtifacts("a path is changed twice")
    return changes


def _read_change(row: Any) -> FileChange:
    if not isinstance(row, Mapping):
        raise BadArtifacts("a change has no fields")
    path, mode, old_mode, encoded = (row.get(name) for name in ("path", "mode", "old_mode", "content"))
    if not isinstance(path, str) or not _is_path(path):
        raise BadArtifacts("a change has no usable path")
    if mode not in (None, *MODES) or old_mode not in (None, *MODES) or mode is old_mode is None:
        raise BadArtifacts(f"a change has an unknown mode: {show_path(path)}")
    if (encoded is None) != (mode in (None, SUBMODULE)):
        raise BadArtifacts(f"a change has content and no file, or the reverse: {show_path(path)}")
    return FileChange(path, mode, _decode(encoded, path), old_mode)


def _is_path(path: str) -> bool:
    """Whether git could hold this path: Linux's length, no NUL, valid UTF-8."""
    return 0 < len(path) <= MAX_PATH and "\0" not in path and path == path.encode(errors="replace").decode()


def _decode(encoded: Any, path: str) -> bytes | None:
    try:
        return None if encoded is None else base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise BadArtifacts(f"a change has garbled content: {show_path(path)}") from error


# Which changes must not become a pull request


def find_refusals(job: Job, changes: Sequence[FileChange], protected: Sequence[str]) -> Iterable[str]:
    """Why these changes must not become a pull request, one sentence each; nothing if they may."""
    if changes and not job.may_change:
        names = ", ".join(show_path(change.path) for change in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        yield f"the preset {job.preset} must not change files, but the agent changed {names}{more}"
    folded = {change: fold_path(change.path) for change in changes if change.path.count("/") < MAX_DEPTH}
    for change in changes:
        reasons = _refuse(change, folded[change], protected) if change in folded else ["is nested too deep"]
        for reason in reasons:
            yield f"{show_path(change.path)} {reason}"
    yield from _find_collisions({change: names for change, names in folded.items() if change.mode})


def is_plain(change: FileChange) -> bool:
    """Whether a change can be written into a worktree: a file or a link, at a normal path."""
    parts = change.path.split("/")
    odd = any(part in ("", ".", "..") or looks_like_git(part) for part in parts)
    return not odd and len(parts) <= MAX_DEPTH and change.mode != SUBMODULE


def _refuse(change: FileChange, folded: Sequence[str], protected: Iterable[str]) -> Iterable[str]:
    parts = change.path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in change.path:
        yield "is not a path inside the repository"
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in change.path):
        yield "has control characters in its name"
    if any(map(_is_git, folded)):
        yield "looks like git's own folder"
    if pattern := find_protecting(folded, protected):
        yield f"is protected by `{pattern}`"
    if SUBMODULE in (change.mode, change.old_mode):
        yield "changes a submodule"
    if change.mode == LINK and not stays_inside(change):
        yield "is a link out of the tree"


def fold_name(part: str) -> str:
    """A file name as the most tolerant file systems compare it: two names with the same result may be one file.

    Case, Unicode forms, and characters that HFS+ ignores do not count. NTFS drops dots and spaces at the end, and the
    text after a colon names a stream of the same file (git's `path.c` refuses `.git` by the same rules).
    """
    plain = unify(drop_invisible(part)).casefold()
    return plain.split(":")[0].rstrip(" .")


def fold_path(path: str) -> tuple[str, ...]:
    """The names of a path, each as `fold_name` returns it."""
    return tuple(fold_name(part) for part in path.split("/"))


def looks_like_git(part: str) -> bool:
    """Whether a file system might treat this name as `.git`; `git~1` is its short name on NTFS."""
    return _is_git(fold_name(part))


def _is_git(folded: str) -> bool:
    return re.fullmatch(r"\.git|git~[0-9]+", folded) is not None


def find_protecting(folded: Sequence[str], patterns: Iterable[str]) -> str | None:
    """The first pattern that protects a path, given as its folded names; None if there is none."""
    return next((pattern for pattern in patterns if _matches(folded, _read_pattern(pattern))), None)


def _read_pattern(pattern: str) -> tuple[str, ...]:
    """A pattern's names, as in `.gitignore`: without a slash before its end, the pattern matches at any depth."""
    parts = tuple(unify(pattern).casefold().strip("/").split("/"))
    return parts if "/" in pattern.rstrip("/") else ("**", *parts)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the path, or a folder that contains it, matches the pattern."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def stays_inside(change: FileChange) -> bool:
    """Whether a link leads to a path inside the tree.

    A target may climb first and then only descend: a `..` after a name could climb out through another link in the
    tree.
    """
    target = (change.content or b"").decode(errors="replace")
    parts = target.split("/")
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    rest = parts[climbs:]
    if not 0 < len(target) <= MAX_PATH or re.match(r"/|[A-Za-z]:", target) or re.search(r"[\\\0]", target):
        return False
    return climbs <= change.path.count("/") and ".." not in rest and not any(looks_like_git(part) for part in rest)


def _find_collisions(folded: Mapping[FileChange, tuple[str, ...]]) -> Iterable[str]:
    """Paths that file systems without case or with other Unicode forms cannot distinguish, and files that are folders.

    Two files that both existed before are not the agent's doing, and are allowed.
    """
    seen: dict[tuple[str, ...], FileChange] = {}
    for change, key in folded.items():
        twin = seen.setdefault(key, change)
        if twin is not change and None in (twin.old_mode, change.old_mode):
            yield f"{show_path(change.path)} and {show_path(twin.path)} are the same file on some systems"
    for change, key in folded.items():
        if file := next((seen[key[:end]] for end in range(1, len(key)) if key[:end] in seen), None):
            yield f"{show_path(change.path)} is inside {show_path(file.path)}, which is not a folder"


def find_warnings(changes: Iterable[FileChange], unshown: Collection[str]) -> Iterable[str]:
    """What readers of these changes might overlook, one sentence each.

    `unshown` holds the paths whose lines the diff does not show. The first sentence of each kind comes before the
    second of any, so that many of one kind leave room for the others.
    """
    kinds: dict[str, list[str]] = {}
    for change in changes:
        for words in _describe_unseen(change, unshown):
            kinds.setdefault(_DETAILS.sub("", words), []).append(f"{show_path(change.path)} {words}")
    return [sentence for turn in zip_longest(*kinds.values()) for sentence in turn if sentence]


_DETAILS = re.compile("[0-9]+|[:`].*", re.DOTALL)
"""The part in which two sentences of one kind differ."""


def _describe_unseen(change: FileChange, unshown: Collection[str]) -> Iterable[str]:
    if configures_agents(change.path):
        yield "configures coding agents"
    if fold_path(change.path)[-1] == ".gitattributes":
        yield "can change how git shows, converts and merges files"
    for oddity in name_oddities(change.path):
        yield f"has in its name {oddity}"
    if change.mode == "100755" and change.old_mode != "100755":
        yield "is executable now"
    if change.mode == LINK:
        yield f"is a link to {show_path((change.content or b'').decode(errors='replace'))}"
    elif change.binary:
        hidden = "is shown as binary ({} bytes), so nobody sees its content"
        words = hidden if change.path in unshown else "is not UTF-8 text ({} bytes)"
        yield words.format(len(change.content or b""))
    elif change.content:
        for oddity in name_oddities(change.content.decode()):
            yield f"has {oddity}"
