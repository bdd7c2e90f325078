"""Finds names that a script uses and only the change defines: on base it fails without them, bug or no bug. Pure.

This catches only plain cases. It reads the source and runs nothing, and a script can detect a change in other ways.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from runner.changes.patch import list_added_lines, list_additions
from runner.changes.patch_text import PatchMismatch
from runner.checks.python_source import parse
from runner.model.job import FileChange

MAX_SCRIPT = 20_000
"""Characters of a script that is parsed, each time that a reader sees its check: that takes a twentieth of a second at
most. In a longer one every word counts."""

MIN_NAME = 3
"""Characters: shorter names are everywhere."""

_WORD = re.compile(r"\w+")
_REMOVED = re.compile(r"^-.*", re.MULTILINE)
_BROUGHT = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)"
    r"|^(?:\w+\.)*(\w+)[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|^[ \t]+(?:self|cls)\.(\w+)[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|(?<![.\w])(_\w+)",
    re.MULTILINE,
)
"""Names that added lines define for use from outside, and private names wherever they appear alone."""

_COMMON = frozenset(name for kind in (str, bytes, int, float, list, dict, set, BaseException) for name in dir(kind))
_COMMON |= frozenset(dir(builtins))


def find_new_names(script: str, changes: Sequence[FileChange], patch: str, known: str) -> list[str]:
    """The names that a script uses and a change defines, except those in the text `known`.

    Names in the old content of a changed file are not new. Returns nothing if the patch does not fit the changes.
    """
    words = _find_words(script)
    try:
        # More than the patch's own lines is read only if there is something to find: a diff may have megabytes.
        brought = {name for name in _list_brought(changes, patch) if name in words} - _find_words(known)
        found = brought.intersection(_list_asked(script)) if brought else set[str]()
        return sorted(found - _find_base_words(changes, patch)) if found else []
    except PatchMismatch:
        return []


def _list_brought(changes: Sequence[FileChange], patch: str) -> Iterator[str]:
    """Names that may be new in a change: added modules and files, and definitions."""
    names = [PurePosixPath(change.path).stem for change in changes if change.mode and not change.old_mode]
    names += [name for text in list_additions(patch) for found in _BROUGHT.findall(text) for name in found]
    for name in names:
        if len(name) >= MIN_NAME and name not in _COMMON and not (name.startswith("__") and name.endswith("__")):
            yield name


def _list_asked(script: str) -> Iterator[str]:
    """Names that a script needs from others: modules, attributes, keyword arguments, and strings as for `getattr`.

    All its words, if it cannot be parsed or is too long for that.
    """
    tree = parse(script) if len(script) <= MAX_SCRIPT else None
    if tree is None:
        yield from _WORD.findall(script)
        return
    nodes = [*ast.walk(tree)]
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=module, names=names):
                yield from _WORD.findall(" ".join([module or "", *(alias.name for alias in names)]))
            case ast.Import(names=names):
                yield from _WORD.findall(" ".join(alias.name for alias in names))
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Name(id=name) if name not in own:
                yield name
            case ast.Constant(value=str(text)) if not re.search(r"\s", text):  # Text with spaces is prose.
                yield from _WORD.findall(text)


def _find_base_words(changes: Sequence[FileChange], patch: str) -> set[str]:
    """The words in the old content of the changed files. Raises `PatchMismatch`."""
    added = list_added_lines(patch, changes)
    words = _find_words("\n".join(_REMOVED.findall(patch)))
    for change in changes:
        lines = (change.content or b"").decode(errors="replace").split("\n")
        new = added.get(change.path, set())
        words |= _find_words("\n".join(line for number, line in enumerate(lines, 1) if number not in new))
    return words


def _find_words(text: str) -> set[str]:
    return set(_WORD.findall(text))
