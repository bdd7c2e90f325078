from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from runner.checks.python_source import MAX_BRACES, MAX_PARTS, MAX_SOURCE, parse
from tests.support.cpu_time import measure_cpu

LONG_NAMES = {
    "import": "import a" + ".a" * MAX_PARTS,
    "from": "from a" + ".a" * MAX_PARTS + " import b",
    "from here": "from ...a" + ".a" * MAX_PARTS + " import b",
    "after another": "import b, a" + ".a" * MAX_PARTS,
    "spaces": "import a" + " . a" * MAX_PARTS,
    "tabs and form feeds": "import a" + "\t.\fa" * MAX_PARTS,
    "lines": "import a" + "\\\n.\\\na" * MAX_PARTS,
    "lines of Windows": "import a" + "\\\r\n .\\\r\n a" * MAX_PARTS,
    "lines of an old Mac": "import a" + "\\\r.a" * MAX_PARTS,
    "other letters": "import \u2118" + ".\u00aa\u00b7\u0301" * MAX_PARTS,
    "behind a comment": "x = 'a.'  # a.\nimport a" + ".a" * MAX_PARTS,
}


@pytest.mark.parametrize("source", LONG_NAMES.values(), ids=LONG_NAMES)
def test_a_dotted_name_of_too_many_parts_is_not_parsed(source: str) -> None:
    assert isinstance(ast.parse(source), ast.Module)
    assert parse(source) is None


@pytest.mark.slow
def test_a_long_file_of_usual_python_is_parsed() -> None:
    source = "import a.b.c\nfrom ...d.e import f\n" + "print(f'{a.b} {c.d:>{e}}', 1.5, '.....')  # a. b. c.\n" * 600
    assert parse(source) is not None
    assert parse(source[: MAX_SOURCE - 20_000].rpartition("\n")[0]) is not None
    assert parse("x = {}\n" * 15_000) is not None
    assert parse("a;" * 90_000) is None, "a file of signs keeps the parser busy for a second"


def repeat(piece: str, head: str = "", tail: str = "") -> Callable[[int], str]:
    return lambda size: head + piece * ((size - len(head) - len(tail)) // len(piece)) + tail


SHAPES: dict[str, Callable[[int], str]] = {
    "import": repeat(".a", "import a"),
    "import, over lines": repeat(".\\\na", "import a"),
    "import from": repeat(".a", "from a", " import b"),
    "import from dots": repeat(". ", "from ", "import b"),
    "import of many": repeat("a.a.a,", "import ", "a"),
    "attributes": repeat(".a", "a"),
    "deleted attributes": repeat(".a", "del a"),
    "a pattern's attributes": repeat(".a", "match x:\n case a", ": pass"),
    "pattern of alternatives": repeat("1|", "match x:\n case ", "1: pass"),
    "calls": repeat("()", "a"),
    "names": repeat("a", "", " = 1"),
    "blanks": repeat(" ", "a = a", ".a"),
    "unary operators": repeat("-", "", "1"),
    "binary operators": repeat("a+", "", "a"),
    "comparisons": repeat("a<", "", "a"),
    "assignments": repeat("a=", "", "1"),
    "decorators": repeat("@a\n", "", "def f(): pass"),
    "globals": repeat("a,", "global ", "a"),
    "digits": repeat("1"),
    "digits of a hexadecimal number": repeat("f", "0x"),
    "digits after a point": repeat("3", "0."),
    "joined strings": repeat("'a' "),
    "joined strings of other letters": repeat("'a' '\u00e9' '\u6f22' "),
    "joined f-strings": repeat("f'{a}' "),
    "an f-string's fields": repeat("{a}", "f'", "'"),
    "an f-string's fields, over lines": repeat("\n{a}", 'rf"""', '"""'),
    "an f-string's nested fields": repeat("{b}", "f'{a:", "}'"),
    "an f-string's expression": repeat("a+", "f'{", "a}'"),
    "escapes": repeat("\\x41", "'", "'"),
    "unknown escapes": repeat("\\q", "'", "'"),
    "lines of a string": repeat("\n", "'''", "'''"),
    "comprehension": repeat(" for a in a", "[a for a in a", "]"),
    "nested comprehensions": repeat("[a for a in "),
    "brackets": repeat("("),
    "arguments": repeat("a=1,", "f(", ")"),
    "wrong arguments": repeat("a=1,", "f(", "a)"),
    "a wrong list": repeat("a,", "[", "b c]"),
    "a wrong target": repeat("a,", "(", "1) = 1"),
    "parameters": repeat("a=1,", "def f(", "b): pass"),
    "contexts": repeat("a as b,", "with (", "a as b): pass"),
    "comments for types": repeat("a = 1  # type: int\n"),
    "lambdas": repeat("lambda:", "", "1"),
    "lines that go on": repeat("\\\n", "", "a"),
    "empty lines": repeat("\n"),
    "conditions": repeat("elif a: pass\n", "if a: pass\n"),
    "statements": repeat("a;"),
}


def _measure(source: str) -> float:
    return measure_cpu(lambda: parse(source), 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_python_of_any_shape_is_parsed_in_linear_time(make: Callable[[int], str]) -> None:
    """For twice as much, 2.5 times at most; a tenth of a second is quick enough in any case."""
    assert any(_measure(make(160_000)) <= max(0.1, 2.5**3 * _measure(make(20_000))) for _ in range(5))


@pytest.mark.slow
def test_fields_of_an_f_string_cost_little_however_long_it_is() -> None:
    fields = "{a}" * (MAX_BRACES - 1)
    source = f"f'{' ' * (MAX_SOURCE - len(fields) - 3)}{fields}'"
    assert parse(source) is not None
    assert measure_cpu(lambda: parse(source)) < 1
