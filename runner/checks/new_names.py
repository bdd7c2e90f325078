"""The names that a script asks for and that only a change has: on base it fails for want of them, bug or no bug. Pure.

A net for what is plain. It knows names by how Python is written and not by what runs, and a script has other ways to
find out that a change is there.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from runner.changes.patch import list_added_lines, list_additions
from runner.changes.patch_text import Untrue
from runner.checks.python_source import parse
from runner.model.job import FileChange

MIN_NAME = 3
"""Characters: shorter names stand everywhere."""

_WORD = re.compile(r"\w+")
_REMOVED = re.compile(r"^-.*", re.MULTILINE)
_BROUGHT = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)"
    r"|^(?:\w+\.)*(\w+)[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|^[ \t]+(?:self|cls)\.(\w+)[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|(?<![.\w])(_\w+)",
    re.MULTILINE,
)
"""Names that added lines give to what is reached from outside; and private ones wherever they stand by themselves."""

_COMMON = frozenset(name for kind in (str, bytes, int, float, list, dict, set, BaseException) for name in dir(kind))
_COMMON |= frozenset(dir(builtins))


def find_new_names(script: str, changes: Sequence[FileChange], patch: str, known: str) -> list[str]:
    """The names that a script asks for and a change brings, but for those that are in the `known` text.

    Names that stand in what a changed file had before are no new ones. None where the patch is none of these changes.
    """
    words = _find_words(script)
    try:
        # Only where there is something to find is more than the patch's own lines read: a diff may have megabytes.
        brought = {name for name in _list_brought(changes, patch) if name in words} - _find_words(known)
        found = brought.intersection(_list_asked(script)) if brought else set[str]()
        return sorted(found - _find_base_words(changes, patch)) if found else []
    except Untrue:
        return []


def _list_brought(changes: Sequence[FileChange], patch: str) -> Iterator[str]:
    """What may be new in a change: the modules and files that it adds, and what it defines."""
    names = [PurePosixPath(change.path).stem for change in changes if change.mode and not change.old_mode]
    names += [name for text in list_additions(patch) for found in _BROUGHT.findall(text) for name in found]
    for name in names:
        if len(name) >= MIN_NAME and name not in _COMMON and not (name.startswith("__") and name.endswith("__")):
            yield name


def _list_asked(script: str) -> Iterator[str]:
    """What a script needs others to have: modules, attributes, arguments by name, and words such as `getattr` takes."""
    nodes = [*ast.walk(tree)] if (tree := parse(script)) else []
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
            case ast.Constant(value=str(text)) if not re.search(r"\s", text):  # Others are prose.
                yield from _WORD.findall(text)


def _find_base_words(changes: Sequence[FileChange], patch: str) -> set[str]:
    """The words of the changed files as they were. Raises `Untrue`."""
    added = list_added_lines(patch, changes)
    words = _find_words("\n".join(_REMOVED.findall(patch)))
    for change in changes:
        lines = (change.content or b"").decode(errors="replace").split("\n")
        new = added.get(change.path, set())
        words |= _find_words("\n".join(line for number, line in enumerate(lines, 1) if number not in new))
    return words


def _find_words(text: str) -> set[str]:
    return set(_WORD.findall(text))
