"""Reads what a machine says came out of a job. All of it may have been written by the agent: nothing is believed.

Pure. Shapes, sizes and paths are checked again here, whatever the machine-side program checked; what may not become a
pull request is refused with a sentence that names the path.
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
from runner.changes.patch_text import Untrue
from runner.characters import decode_exactly, drop_invisible, make_storable, name_oddities, show_path, unify
from runner.model.environment import Limits, Profile
from runner.model.job import FileChange, Job, Report, digest_of

LINK, SUBMODULE = "120000", "160000"
MODES = ("100644", "100755", LINK, SUBMODULE)

MAX_PATH = 4096
"""Characters of a path, and of a link's target: Linux knows no longer ones."""

MAX_PATHS = 500_000
"""Characters of all paths together: each is quoted, compared and shown several times."""

MAX_DEPTH = 100
"""Names in a path. No honest repository comes near, and what compares paths may take its time for each name."""

MAX_PATCH_FACTOR = 4
"""A patch may be this many times as large as the changed files: it repeats what was there before."""

MAX_PATCH_LINES = 200_000
"""More lines nobody reads, and each takes its time wherever a patch is read, even where it is empty."""

MAX_ESCAPED = 6
"""Bytes that one byte may take in JSON."""

ESCAPED = 3
"""The most bytes that one byte takes in the JSON of UTF-8 without control characters. Nothing else runs while JSON is
read, so a patch may be this long, and longer only where it is below its own limit."""

MAX_NOTES = 50
MAX_NOTE = 300


class BadArtifacts(Exception):  # noqa: N818 - says what they are
    """What the machine sent has another shape than our own program gives it."""


def read_report(job: Job, raw: Mapping[str, Any], profile: Profile, secret: bytes) -> Report:
    """The report of a job, with a digest that only `secret` makes. Raises `BadArtifacts` when `raw` makes no sense."""
    limits = profile.limits
    changes = _read_changes(raw, limits)
    patch = _read_patch(raw)
    refusals = [*find_refusals(job, changes, profile.protected_paths), *_refuse_long(patch, limits)]
    refusals += [] if refusals else _refuse_untrue(patch, changes)
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
    return make_storable(text)  # Here already: what is checked, shown and stored must be one text.


def _read_patch(raw: Mapping[str, Any]) -> str:
    """The patch as git has given it, byte for byte: see `decode_exactly`."""
    patch = raw.get("patch")
    if not isinstance(patch, str):
        raise BadArtifacts("the text 'patch' is missing")
    try:
        return decode_exactly(patch.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # Our own program gives no such text, and what it is replaced with is no change.
        return make_storable(patch)


def _max_patch(limits: Limits) -> int:
    return MAX_PATCH_FACTOR * limits.max_change_bytes + limits.max_text_bytes


def _refuse_long(patch: str, limits: Limits) -> Iterable[str]:
    """Nobody can approve what nobody can see; deleting what is large makes a long patch of a small change."""
    if len(patch) > _max_patch(limits):
        yield f"the diff is longer than {_max_patch(limits)} characters, too long to be shown whole"
    elif patch.count("\n") > MAX_PATCH_LINES:
        yield f"the diff has more than {MAX_PATCH_LINES} lines, too many to be read"


def _cut_patch(patch: str, limits: Limits) -> str:
    """As much of it as is kept: all of what is not refused for its length."""
    kept = patch[: _max_patch(limits)]
    if kept.count("\n") <= MAX_PATCH_LINES:
        return kept
    return "".join(f"{line}\n" for line in kept.split("\n", MAX_PATCH_LINES)[:MAX_PATCH_LINES])


def find_max_answer(limits: Limits) -> int:
    """Bytes of the longest answer that an honest machine gives when it is asked for a result."""
    texts = 4 * limits.max_text_bytes + limits.max_changes * (MAX_PATH + MAX_NOTE)
    return ESCAPED * _max_patch(limits) + MAX_ESCAPED * texts + 2 * limits.max_change_bytes + 1_000_000


def _refuse_untrue(patch: str, changes: Sequence[FileChange]) -> list[str]:
    """What can be seen without the base commit; before a pull request opens, all of it is checked."""
    try:
        check_patch(patch, changes)
        return [describe_bare_return(name) for name in list_bare_returns(patch)]
    except Untrue as error:
        return [f"the diff is not the change: {error}"]


def _list_unshown(patch: str, changes: Sequence[FileChange]) -> frozenset[str]:
    try:
        return list_unshown(patch, changes)
    except Untrue:  # It is refused.
        return frozenset()


def describe_bare_return(path: str) -> str:
    """Why a change that adds a carriage return within a line cannot be proposed."""
    return f"{show_path(path)} gets a carriage return within a line: some programs end the line there, a diff does not"


def _read_problems(raw: Mapping[str, Any]) -> list[str]:
    problems = raw.get("problems")
    if not isinstance(problems, list):
        raise BadArtifacts("the list of problems is missing")
    sentences = (problem[:MAX_NOTE] for problem in problems if isinstance(problem, str))
    # Our program says these, but a machine can say anything: as code, no word of it looks like ours.
    return [f"the machine says: {show_path(' '.join(sentence.split()))}" for sentence in sentences]


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
    """Whether git could hold it: it has a length that Linux knows, no NUL, and can be said in UTF-8."""
    return 0 < len(path) <= MAX_PATH and "\0" not in path and path == path.encode(errors="replace").decode()


def _decode(encoded: Any, path: str) -> bytes | None:
    try:
        return None if encoded is None else base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise BadArtifacts(f"a change has garbled content: {show_path(path)}") from error


# What may not become a pull request


def find_refusals(job: Job, changes: Sequence[FileChange], protected: Sequence[str]) -> Iterable[str]:
    """Why these changes may not be proposed, a sentence each; nothing when they may."""
    if changes and not job.may_change:
        names = ", ".join(show_path(change.path) for change in changes[:5])
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        yield f"the preset {job.preset} changes no file, but the agent changed {names}{more}"
    folded = {change: fold_path(change.path) for change in changes if change.path.count("/") < MAX_DEPTH}
    for change in changes:
        reasons = _refuse(change, folded[change], protected) if change in folded else ["is nested too deep"]
        for reason in reasons:
            yield f"{show_path(change.path)} {reason}"
    yield from _find_collisions({change: names for change, names in folded.items() if change.mode})


def is_plain(change: FileChange) -> bool:
    """Whether a change can be written into a worktree: of a file or a link, at a path that means itself."""
    parts = change.path.split("/")
    odd = any(part in ("", ".", "..") or looks_like_git(part) for part in parts)
    return not odd and len(parts) <= MAX_DEPTH and change.mode != SUBMODULE


def _refuse(change: FileChange, folded: Sequence[str], protected: Iterable[str]) -> Iterable[str]:
    parts = change.path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in change.path:
        yield "is no path inside the repository"
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
    """A file's name as the most forgiving file systems compare it: two names that fold alike may be one file.

    Case and Unicode's forms do not count, nor what HFS+ ignores; NTFS drops dots and spaces from the end, and what
    stands behind a colon names a stream of the same file (git's `path.c` refuses `.git` by the same rules).
    """
    plain = unify(drop_invisible(part)).casefold()
    return plain.split(":")[0].rstrip(" .")


def fold_path(path: str) -> tuple[str, ...]:
    """A path's names, each folded."""
    return tuple(fold_name(part) for part in path.split("/"))


def looks_like_git(part: str) -> bool:
    """Whether some file system would take this name for `.git`; `git~1` is its short name on NTFS."""
    return _is_git(fold_name(part))


def _is_git(folded: str) -> bool:
    return re.fullmatch(r"\.git|git~[0-9]+", folded) is not None


def find_protecting(folded: Sequence[str], patterns: Iterable[str]) -> str | None:
    """The first of the patterns that protects a path, given by its folded names; None when it is free."""
    return next((pattern for pattern in patterns if _matches(folded, _read_pattern(pattern))), None)


def _read_pattern(pattern: str) -> tuple[str, ...]:
    """A pattern's names, as `.gitignore` reads it: without a slash before its end it counts at any depth."""
    parts = tuple(unify(pattern).casefold().strip("/").split("/"))
    return parts if "/" in pattern.rstrip("/") else ("**", *parts)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the path, or a folder that it lies in, has this pattern."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def stays_inside(change: FileChange) -> bool:
    """Whether a link leads to a path inside the tree.

    Allowed are targets that climb first and then only go down: a `..` after a name could climb out through another
    link of the tree, however harmless it looks.
    """
    target = (change.content or b"").decode(errors="replace")
    parts = target.split("/")
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    rest = parts[climbs:]
    if not 0 < len(target) <= MAX_PATH or re.match(r"/|[A-Za-z]:", target) or re.search(r"[\\\0]", target):
        return False
    return climbs <= change.path.count("/") and ".." not in rest and not any(looks_like_git(part) for part in rest)


def _find_collisions(folded: Mapping[FileChange, tuple[str, ...]]) -> Iterable[str]:
    """What a file system without case or with another Unicode form could not keep apart, and a file that is a folder.

    Two files that were both there before are none of the agent's doing.
    """
    seen: dict[tuple[str, ...], FileChange] = {}
    for change, key in folded.items():
        twin = seen.setdefault(key, change)
        if twin is not change and None in (twin.old_mode, change.old_mode):
            yield f"{show_path(change.path)} and {show_path(twin.path)} are the same file on some systems"
    for change, key in folded.items():
        if file := next((seen[key[:end]] for end in range(1, len(key)) if key[:end] in seen), None):
            yield f"{show_path(change.path)} lies in {show_path(file.path)}, which is no folder"


def find_warnings(changes: Iterable[FileChange], unshown: Collection[str]) -> Iterable[str]:
    """What the eye of a reader of these changes would miss, a sentence each.

    `unshown` holds the paths whose lines the diff does not show. The first sentence of each kind comes before the
    second of any, so that many of one kind leave room for the others.
    """
    kinds: dict[str, list[str]] = {}
    for change in changes:
        for words in _describe_unseen(change, unshown):
            kinds.setdefault(_DETAILS.sub("", words), []).append(f"{show_path(change.path)} {words}")
    return [sentence for turn in zip_longest(*kinds.values()) for sentence in turn if sentence]


_DETAILS = re.compile("[0-9]+|[:`].*", re.DOTALL)
"""The words by which two sentences of one kind differ."""


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
        words = hidden if change.path in unshown else "is no UTF-8 text ({} bytes)"
        yield words.format(len(change.content or b""))
    elif change.content:
        for oddity in name_oddities(change.content.decode()):
            yield f"has {oddity}"
