"""The regression tests in a change: which files hold tests, and which tests of them the change touches. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from runner.changes.patch import list_added_lines
from runner.changes.patch_text import Untrue
from runner.checks.python_source import MAX_SOURCE, parse
from runner.model.job import FileChange

PATTERNS = ("test_*.py", "*_test.py")
"""How pytest tells files of tests from others (its `python_files`)."""

FOLDERS = frozenset({"test", "tests"})
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
        is_short = len(change.content or b"") <= MAX_SOURCE
        if change.mode and is_short and any(fnmatchcase(name, pattern) for pattern in PATTERNS):
            names = _list_touched((change.content or b"").decode(errors="replace"), added.get(change.path, set()))
            if 0 < len(names) <= MAX_TESTS:
                yield change.path, names


def _list_touched(source: str, lines: set[int]) -> list[str]:
    tree = parse(source)
    tests = [
        (f"{owner}::{test.name}" if owner else test.name)
        for owner, test in (_list_tests(tree) if tree else ())
        if lines.intersection(_span(test))
    ]
    return list(dict.fromkeys(tests))


def _list_tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every test, with the class that it stands in."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        for test in inner:
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test"):
                yield owner, test


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def choose_words(command: str, path: str, names: Sequence[str], *, is_generated: bool) -> list[str]:
    """What stands behind the operator's command for tests, to run these of one file.

    pytest takes ids. Where its classes are generated (`is_generated`), and by unittest, they are chosen by name.
    """
    plain = [name.rpartition("::")[2] for name in names]
    if "unittest" in command:
        return [f"./{path}", *(word for name in plain for word in ("-k", name))]
    if is_generated:
        return [f"./{path}", "-k", " or ".join(plain)]
    return [f"./{path}::{name}" for name in names]


def generates_tests(source: bytes) -> bool:
    """Whether a file's test classes come to be under other names (PyTorch's device-generic and parametrized tests)."""
    return b"instantiate_device_type_tests" in source or b"instantiate_parametrized_tests" in source
