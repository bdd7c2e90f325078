"""The regression tests in a change: which files hold tests, and which tests of them the change touches. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from runner.job import FileChange
from runner.patch import Untrue, list_added_lines

PATTERNS = ("test_*.py", "*_test.py")
"""How pytest tells files of tests from others (its `python_files`)."""

FOLDERS = frozenset({"test", "tests", "testing"})
MAX_TESTS = 30
"""Of one file; a change that touches more of them is not tried by them one by one."""


def is_for_tests(path: str) -> bool:
    """Whether a path belongs to the tests: it holds some, or lies where they have what they need."""
    *folders, name = path.split("/")
    named = any(fnmatchcase(name, pattern) for pattern in (*PATTERNS, "conftest.py"))
    return named or bool(FOLDERS.intersection(folders))


def find_tests(changes: Sequence[FileChange], patch: str) -> Iterator[tuple[str, list[str]]]:
    """Each file of tests that the change adds or edits, with the names of the tests that it touches there."""
    try:
        added = list_added_lines(patch, changes)
    except Untrue:
        return
    for change in changes:
        name = change.path.rpartition("/")[2]
        if change.mode and any(fnmatchcase(name, pattern) for pattern in PATTERNS):
            names = _list_touched((change.content or b"").decode(errors="replace"), added.get(change.path, set()))
            if 0 < len(names) <= MAX_TESTS:
                yield change.path, names


def _list_touched(source: str, lines: set[int]) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    tests = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]
    return list(dict.fromkeys(test.name for test in tests if lines.intersection(_span(test))))


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def choose_words(command: str, path: str, names: Sequence[str]) -> list[str]:
    """What stands behind the operator's command for tests, to run these of one file. unittest wants them one by one."""
    chosen = names if "unittest" in command else [" or ".join(names)]
    return [path, *(word for name in chosen for word in ("-k", name))]
