"""Every small change of one Python source that a test should notice. Pure: text in, mutants out, in the text's order.

Left out is what no test could notice: log lines, docstrings, annotations, assertions, and texts that only people read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

LARGEST_NUMBER = 1000
"""A larger number is a measure (bytes, seconds): nobody promises that it is exact to one."""

_OPPOSITES = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"is": "is not", "is not": "is", "in": "not in", "not in": "in", "and": "or", "or": "and"},
}
_SYMBOLS: Mapping[type[ast.AST], str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.And: "and", ast.Or: "or"},
}
_KEY = re.compile(r"[A-Za-z_][\w.-]+")
_TYPE_FORMS = {"Literal", "Annotated", "TypeVar", "cast", "NewType"}
_CONSTRAINTS = {"Index", "UniqueConstraint", "CheckConstraint", "ForeignKeyConstraint"}
_COLUMN_RULES = {("nullable", False), ("unique", True), ("index", True)}


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from `start` to `end` become `new`. `number` and `last` are its lines, from 1."""

    function: str
    """The qualified name of the function, or of the constant, table or template."""
    operator: str
    start: int
    end: int
    new: str
    line: str
    """The first changed line, stripped."""
    number: int
    last: int
    ordinal: int = 0
    """How many mutants before this one have the same function, operator and line."""

    def apply(self, source: str) -> str:
        """The whole source with the change in it."""
        text = source.encode()
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()


class Text:
    """A source, addressed in bytes: `ast` counts columns so."""

    def __init__(self, source: str) -> None:
        self.lines = source.encode().splitlines(keepends=True)
        self.data = b"".join(self.lines)
        self._starts = [0, *accumulate(map(len, self.lines))]

    def find(self, node: Any) -> tuple[int, int]:
        """Where the node starts and ends."""
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def get(self, node: Any) -> str:
        start, end = self.find(node)
        return self.data[start:end].decode()

    def make(self, function: str, operator: str, span: tuple[int, int], new: str) -> Mutant:
        number, last = (self.data.count(b"\n", 0, at) + 1 for at in span)
        return Mutant(function, operator, *span, new, self.lines[number - 1].decode().strip(), number, last)


Edit = tuple[str, tuple[int, int], str]
"""The operator, the span in bytes, and what stands there afterwards."""
Place = tuple[ast.AST, ...]
"""The nodes around a node, the innermost last."""


def find_python_mutants(source: str, prefix: str = "") -> list[Mutant]:
    """All mutants of a source; `prefix` tells apart functions that have the same name in many files."""
    text = Text(source)
    found: list[Mutant] = []
    for node, name, around in _walk(ast.parse(source), "", ()):
        for kind, operators in OPERATORS.items():
            if isinstance(node, kind):
                edits = (edit for operator in operators for edit in operator(node, text, around))
                found += [text.make(f"{prefix}{name}", *edit) for edit in edits]
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.operator))


def _walk(node: ast.AST, name: str, around: Place) -> Iterator[tuple[ast.AST, str, Place]]:
    """Every node that runs inside a function or makes a constant, with the name of that."""
    for child in ast.iter_child_nodes(node):
        if _is_out_of_reach(child, node):
            continue
        inside = _find_function((*around, node)) is not None
        own = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = f"{name}.{child.name}".lstrip(".")
        elif not inside and isinstance(child, ast.Assign | ast.AnnAssign):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            own = f"{name}.{ast.unparse(target)}".lstrip(".")
        elif not inside and isinstance(child, ast.stmt) and (constraint := _get_name_of_constraint(child)):
            own = constraint
        elif not inside and isinstance(node, ast.Module | ast.ClassDef):
            continue
        yield child, own, (*around, node)
        yield from _walk(child, own, (*around, node))


def _is_out_of_reach(node: ast.AST, parent: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Assert):  # Places inside of an f-string are not exact.
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_log(node.value)
    if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
        return True
    if isinstance(node, ast.Subscript | ast.Call) and _get_last_name(node) in _TYPE_FORMS:
        return True
    annotations = (getattr(parent, "annotation", None), getattr(parent, "returns", None))
    return node in annotations or node in getattr(parent, "decorator_list", ())


def _is_log(node: ast.AST) -> bool:
    while isinstance(node, ast.Await | ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in {"log", "logger", "logging"}


def _find_function(around: Place) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((node for node in reversed(around) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)), None)


def _get_last_name(node: ast.Subscript | ast.Call) -> str:
    named = node.value if isinstance(node, ast.Subscript) else node.func
    return named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")


def _get_name_of_constraint(node: ast.stmt) -> str:
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and _get_last_name(call) in _CONSTRAINTS and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value)
    return ""


def negate(node: Any, text: Text, around: Place) -> Iterator[Edit]:
    """`if x` becomes `if not (x)`."""
    for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:
        if not isinstance(test, ast.Constant):
            yield "negate condition", text.find(test), f"not ({text.get(test)})"


def swap_comparison(node: ast.Compare, text: Text, around: Place) -> Iterator[Edit]:
    """`<` becomes `<=`, `==` becomes `!=`, `in` becomes `not in`."""
    sides = [node.left, *node.comparators]
    for left, right, operator in zip(sides, sides[1:], node.ops, strict=False):
        yield from _swap_between(left, right, _SYMBOLS[type(operator)], "swap comparison", text)


def swap_and_or(node: ast.BoolOp, text: Text, around: Place) -> Iterator[Edit]:
    """`and` becomes `or`: only the first of a row, because the rest of the row would be parsed differently."""
    yield from _swap_between(node.values[0], node.values[1], _SYMBOLS[type(node.op)], "swap and/or", text)


def _swap_between(left: ast.expr, right: ast.expr, symbol: str, name: str, text: Text) -> Iterator[Edit]:
    start, end = text.find(left)[1], text.find(right)[0]
    pattern = r"\s+".join(map(re.escape, symbol.split()))
    gap = text.data[start:end].decode()
    if "#" not in gap and (found := re.search(pattern, gap)):
        yield name, (start + found.start(), start + found.end()), _OPPOSITES[symbol]


def add_one(node: ast.Constant, text: Text, around: Place) -> Iterator[Edit]:
    """`3` becomes `4`; not outside of functions, where a number is a setting that tests read by its name."""
    number = text.get(node)
    if number.isdecimal() and int(number) <= LARGEST_NUMBER and _find_function(around):
        yield "add one", text.find(node), str(int(number) + 1)


def change_return(node: ast.Return, text: Text, around: Place) -> Iterator[Edit]:
    """The value becomes None, or, where a function answers yes or no, the fixed answer."""
    if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
        return
    function = _find_function(around)
    answers = function is not None and isinstance(function.returns, ast.Name) and function.returns.id == "bool"
    for new in ("True", "False") if answers else ("None",):
        if text.get(node.value) != new:
            yield f"return {new}", text.find(node.value), new


def delete_statement(node: Any, text: Text, around: Place) -> Iterator[Edit]:
    """A call for its effect, a change of a number and a change of an item become `pass`."""
    if isinstance(node, ast.AugAssign):
        yield "delete assignment", text.find(node), "pass"
    elif isinstance(node, ast.Assign):
        if isinstance(node.targets[0], ast.Subscript):
            yield "delete assignment", text.find(node), "pass"
    elif isinstance(node.value, ast.Await | ast.Call):
        yield "delete await" if isinstance(node.value, ast.Await) else "delete call", text.find(node), "pass"


def never_catch(node: ast.ExceptHandler, text: Text, around: Place) -> Iterator[Edit]:
    """`except OSError` becomes `except ()`."""
    raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
    if node.type is not None and not raises_again:
        yield "never catch", text.find(node.type), "()"


def rename_key(node: Any, text: Text, around: Place) -> Iterator[Edit]:
    """A string that a program reads, a key or a state, gets another letter."""
    keys: list[ast.AST | None]
    if isinstance(node, ast.Subscript | ast.MatchValue):
        keys = [node.slice if isinstance(node, ast.Subscript) else node.value]
    elif isinstance(node, ast.Compare):
        keys = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        keys = [*node.keys]
    else:
        reads = isinstance(node.func, ast.Attribute) and node.func.attr in {"get", "pop", "setdefault"}
        keys = [*node.args[:1]] if reads else []
    for key in keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and _KEY.fullmatch(key.value):
            yield "rename key", text.find(key), f'"{key.value}_"'


def drop_rule(node: ast.Call, text: Text, around: Place) -> Iterator[Edit]:
    """A column, an index or a table of the database loses a rule."""
    for given in node.keywords:
        constant = given.value.value if isinstance(given.value, ast.Constant) else None
        if any(given.arg == rule and constant is value for rule, value in _COLUMN_RULES):
            yield f"drop {given.arg}", text.find(given.value), str(not constant)
        elif given.arg in ("sqlite_where", "postgresql_where"):
            yield "drop condition of index", text.find(given.value), "None"
    for argument in node.args:
        if isinstance(argument, ast.Call) and _get_last_name(argument) in _CONSTRAINTS:
            yield "drop constraint", text.find(argument), "*()"


OPERATORS: Mapping[Any, tuple[Callable[[Any, Text, Place], Iterator[Edit]], ...]] = {
    ast.If | ast.While | ast.IfExp | ast.comprehension: (negate,),
    ast.Compare: (swap_comparison, rename_key),
    ast.BoolOp: (swap_and_or,),
    ast.Constant: (add_one,),
    ast.Return: (change_return,),
    ast.Expr | ast.AugAssign | ast.Assign: (delete_statement,),
    ast.ExceptHandler: (never_catch,),
    ast.Subscript | ast.MatchValue | ast.Dict: (rename_key,),
    ast.Call: (rename_key, drop_rule),
}
