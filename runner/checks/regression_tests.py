"""Finds the regression tests in a change: the test files, and the tests in them that it touches. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from runner.changes.patch import list_added_lines
from runner.changes.patch_text import PatchMismatch
from runner.checks.python_source import MAX_SOURCE, parse
from runner.model.job import FileChange

PATTERNS = ("test_*.py", "*_test.py")
"""The file names of tests in pytest (its `python_files`)."""

FOLDERS = frozenset({"test", "tests"})
MAX_TESTS = 30
"""Limit for one file. If a change touches more tests, they are not selected one by one."""


def is_for_tests(path: str) -> bool:
    """Whether a path belongs to the tests: a test file, or a file in a folder for tests."""
    *folders, name = path.split("/")
    named = any(fnmatchcase(name, pattern) for pattern in (*PATTERNS, "conftest.py"))
    return named or bool(FOLDERS.intersection(folders))


def find_tests(changes: Sequence[FileChange], patch: str) -> Iterator[tuple[str, list[str]]]:
    """Each test file that the change adds or edits, with the names of the tests that it touches.

    Files are left out once those before them have `MAX_SOURCE` characters together.
    """
    try:
        added = list_added_lines(patch, changes)
    except PatchMismatch:
        return
    room = MAX_SOURCE
    for change in changes:
        name, size = change.path.rpartition("/")[2], len(change.content or b"")
        if change.mode and size <= room and any(fnmatchcase(name, pattern) for pattern in PATTERNS):
            room -= size
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
    """Every test, with the class that contains it."""
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
    """The arguments of the operator's test command that run these tests of one file.

    pytest takes ids. If its classes are generated (`is_generated`), and for unittest, tests are selected by name.
    """
    plain = [name.rpartition("::")[2] for name in names]
    if "unittest" in command:
        return [f"./{path}", *(word for name in plain for word in ("-k", name))]
    if is_generated:
        return [f"./{path}", "-k", " or ".join(plain)]
    return [f"./{path}::{name}" for name in names]


def generates_tests(source: bytes) -> bool:
    """Whether a file generates its test classes under other names (PyTorch's device-generic and parametrized tests)."""
    return b"instantiate_device_type_tests" in source or b"instantiate_parametrized_tests" in source
