"""The regular expressions of our modules, and texts that take a backtracking one as long as possible.

Each expression is taken apart by Python's own parser. Behind a beginning that it accepts, one of its repeated parts
goes on and on, in every spelling from a short list, and then comes something that no expression expects.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

SCANS = frozenset({"search", "finditer", "findall", "sub", "subn", "split"})
LETTERS = " \ta0-./_\"'<>()[]{}`*=:,\\\n\r@#&;|~+!?%$A\u00e9\u200b\x1b"
"""Characters that an attack is spelled with."""
ENDINGS = ("", "\0", "x\n", "|:\0")
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
MANY = 50
"""A part that repeats so often at most is bounded, and no attack."""


@dataclass(frozen=True)
class Expression:
    """One of ours, and how it is used."""

    place: str
    pattern: re.Pattern[str]
    scans: bool
    """Whether it looks for a match anywhere, and not only at one place."""
    is_full: bool = False
    """Whether it has to match a whole text. It may then try much more."""

    def measure(self, text: str) -> float:
        """Seconds of CPU that it takes to be done with a text."""
        start = time.thread_time()
        if self.scans:
            for _ in self.pattern.finditer(text):
                pass
        elif self.is_full:
            self.pattern.fullmatch(text)
        else:
            self.pattern.match(text)
        return time.thread_time() - start


def find_expressions(*packages: ModuleType) -> list[Expression]:
    """Those that modules hold in a name, or write where they use them."""
    modules = [module for package in packages for module in _import_all(package)]
    sources = {module.__name__: _read(module) for module in modules}
    used = {name: set(re.findall(r"\b(\w+)\.(\w+)\b", text)) for name, text in sources.items()}
    found: dict[tuple[str, str], Expression] = {}
    for module in modules:
        for name, pattern in _list_patterns(vars(module)):
            users = [used[module.__name__]] if name.startswith("_") else used.values()
            verbs = {verb for uses in users for owner, verb in uses if owner == name}
            scans = bool(verbs & SCANS) or not verbs & {"match", "fullmatch"}
            found.setdefault(
                (pattern.pattern, ""), Expression(f"{module.__name__}.{name}", pattern, scans, "fullmatch" in verbs)
            )
        for line, verb, pattern in _list_inline(sources[module.__name__]):
            place = f"{module.__name__}:{line}"
            found.setdefault((pattern.pattern, verb), Expression(place, pattern, verb in SCANS, verb == "fullmatch"))
    return list(found.values())


def _import_all(package: ModuleType) -> Iterator[ModuleType]:
    yield package
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith(("__main__", "bot.demo.agent")) and ".migrations" not in info.name:  # Programs.
            yield importlib.import_module(info.name)


def _read(module: ModuleType) -> str:
    with open(str(module.__file__), encoding="utf-8") as file:  # noqa: PTH123 - a path in a string
        return file.read()


def _list_patterns(names: Mapping[str, Any]) -> Iterator[tuple[str, re.Pattern[str]]]:
    for name, value in names.items():
        for item in _unpack(value, 3):
            if isinstance(item.pattern, str):
                yield name, item


def _unpack(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, list | tuple | frozenset | set):
        for item in value:
            yield from _unpack(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _unpack(item, depth - 1)
    elif depth and hasattr(value, "pattern") and not isinstance(value, type):
        yield from _unpack(value.pattern, depth - 1)


def _list_inline(source: str) -> Iterator[tuple[int, str, re.Pattern[str]]]:
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner, first = node.func.value, node.args[0]
        uses = isinstance(owner, ast.Name) and owner.id == "re" and node.func.attr in SCANS | {"match", "fullmatch"}
        if uses and isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield node.lineno, node.func.attr, re.compile(first.value)


# Attacks


def make_attacks(pattern: re.Pattern[str], size: int) -> Iterator[str]:
    """Texts of about so many characters."""
    for (beginning, piece), ending in product(_find_pumps(pattern), ENDINGS):
        if piece:
            yield beginning + piece * (size // len(piece)) + ending


@cache
def _find_pumps(pattern: re.Pattern[str]) -> Sequence[tuple[str, str]]:
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE & ~re.DEBUG)
    return [*dict.fromkeys((*_list_pumps(tree, ""), (_spell(tree, 0), ""), ("", _spell(tree, 0))))]


def _list_pumps(tree: Any, before: str) -> Iterator[tuple[str, str]]:
    """A beginning that the expression accepts, and a piece that may then come again and again."""
    for code, value in tree:
        if code in REPEATS:
            least, most, body = value
            if most is codes.MAXREPEAT or most > MANY:
                yield from ((before, piece) for piece in _spell_all(body))
                yield from ((before + _spell(body, 0) * least, piece) for piece in _spell_all(body))
            yield from _list_pumps(body, before)
        else:
            for part in _list_parts(code, value):
                yield from _list_pumps(part, before)
        before += _spell([(code, value)], 0)


def _list_parts(code: Any, value: Any) -> Iterator[Any]:
    if code is codes.SUBPATTERN:
        yield value[3]
    elif code is codes.ATOMIC_GROUP:
        yield value
    elif code is codes.BRANCH:
        yield from value[1]
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield value[1]


def _spell_all(body: Any) -> Iterator[str]:
    """The body in every spelling of one letter, or in some of more."""
    spellings = {_spell(body, turn) for turn in range(len(LETTERS))}
    for parts in (part for code, value in body for part in _list_parts(code, value)):
        spellings |= {_spell(parts, turn) for turn in range(3)}
    yield from sorted(filter(None, spellings))


def _spell(tree: Any, turn: int) -> str:
    """A text that the parts of an expression accept, as far as one is found; `turn` picks among the choices."""
    words = ""
    for code, value in tree:
        if code is codes.LITERAL:
            words += chr(value)
        elif code in (codes.NOT_LITERAL, codes.IN, codes.ANY):
            choices = _list_choices(code, tuple(value) if code is codes.IN else value)
            words += choices[turn % len(choices)] if choices else ""
        elif code in REPEATS:
            least, _, body = value
            words += _spell(body, turn) * min(least or 1, MANY)
        elif code is codes.BRANCH:
            words += _spell(value[1][turn % len(value[1])], turn)
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            words += "".join(_spell(part, turn) for part in _list_parts(code, value))
    return words


@cache
def _list_choices(code: Any, value: Any) -> Sequence[str]:
    return [letter for letter in LETTERS if _accepts(code, value, letter)] or _first_of(code, value)


def _accepts(code: Any, value: Any, letter: str) -> bool:
    if code is codes.ANY:
        return letter != "\n"
    if code is codes.NOT_LITERAL:
        return letter != chr(value)
    negated = bool(value) and value[0][0] is codes.NEGATE
    return any(_is_in(item, letter) for item in value) != negated


def _is_in(item: Any, letter: str) -> bool:
    code, value = item
    if code is codes.LITERAL:
        return letter == chr(value)
    if code is codes.RANGE:
        return bool(value[0] <= ord(letter) <= value[1])
    if code is codes.CATEGORY:
        return re.fullmatch(_CATEGORIES[value], letter) is not None
    return False


_CATEGORIES = {
    **{codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s"},
    **{codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W"},
}


def _first_of(code: Any, value: Any) -> list[str]:
    if code is not codes.IN:
        return []
    found = (
        chr(item[1] if item[0] is codes.LITERAL else item[1][0])
        for item in value
        if item[0] in (codes.LITERAL, codes.RANGE)
    )
    return list(found)[:1]
