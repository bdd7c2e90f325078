"""The rules of the house, as pure functions from sources to complaints.

A complaint names the place and says what to do. This file refuses to know which files the project has.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gidgethub.routing import Router

FLOORS = ("bot", "handlers", "runner")
"""Top to bottom: each may import itself and what stands after it."""
STANDIN = "github_standin"
PRODUCT = (*FLOORS, STANDIN)
PACKAGES = {
    "runner": "model agents changes checks db rows transport steps scheduler",
    "runner.jobd": "sandbox stages proxy environment access verbs",
    "handlers": "text cases words notices effects inbox commands jobs pulls holds triggers recovery",
    "bot": "github gateway config observability operations web.auth web.dashboard web . doctor setup demo cli",
    STANDIN: "model api pages .",
}
"""The packages of each folder, bottom to top: each may import those before it. What lies in the folder itself is below
all of them, or where the dot is."""
OLDEST_PYTHON_ON_MACHINES = (3, 9)
MACHINE_SIDE = "runner.jobd"
_NEWER_MODULES = {"tomllib"}
_VAGUE_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "service", "services"}
_PARSING = "runner.checks.python_source"

_SHARED_THREADS = re.compile(r"asyncio\.to_thread\(|.*\.run_in_executor\(None\b")
_WAITING = ("runner.db.", "bot.demo.", "bot.setup.")

_NORMALISING = {
    "runner.characters",
    # It runs on machines, and reads paths alone, which git and the file system bound.
    "runner.jobd.environment.change",
}
_FOREIGN = {
    "handlers": {"aiohttp", "asyncssh", "gidgethub", "http.client", "socket", "urllib.request"},
    "runner": {"aiohttp", "gidgethub"},
}
_FOREIGN_ALLOWED = {"handlers": {"gidgethub.routing", "gidgethub.sansio"}}


@dataclass(frozen=True)
class Source:
    """One module: its dotted name and its text."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything in the tree: to walk it takes longer than most rules."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import in the module, with relative ones spelled out."""
        return tuple(_read_imports(self))

    @property
    def package(self) -> str:
        """The folder that it lies in; a package lies in its own."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def floor(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Import:
    """`module`, or `name` out of `module`, imported by `source` at `line`."""

    source: Source
    module: str
    name: str | None
    line: int
    only_for_types: bool

    @property
    def place(self) -> str:
        return f"{self.source.name}:{self.line}"

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    def reaches(self, module: str) -> bool:
        return f"{self.full_name}.".startswith(f"{module}.")


def read_sources(root: Path, folders: Iterable[str]) -> tuple[Source, ...]:
    """Every Python module below `root` in one of `folders`."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return tuple(_read_source(root, path) for path in paths)


def _read_source(root: Path, path: Path) -> Source:
    parts = path.relative_to(root).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Source(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)


def _read_imports(source: Source) -> Iterator[Import]:
    for_types = {id(node) for block in source.nodes if _is_for_types(block) for node in ast.walk(block)}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(source, alias.name, None, node.lineno, id(node) in for_types)
        elif isinstance(node, ast.ImportFrom):
            module = _spell_out(source, node)
            for alias in node.names:
                yield Import(source, module, alias.name, node.lineno, id(node) in for_types)


def _is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name | ast.Attribute)
        and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    )


def _spell_out(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.name.split(".")
    package = parts[: len(parts) - node.level + source.is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def _all_imports(sources: Iterable[Source]) -> Iterator[Import]:
    for source in sources:
        yield from source.imports


def find_upward_imports(sources: Iterable[Source]) -> list[str]:
    complaints = []
    for found in _all_imports(sources):
        target = found.module.partition(".")[0]
        if found.source.floor not in FLOORS:
            continue
        if target == "tests" or (target in FLOORS and FLOORS.index(target) < FLOORS.index(found.source.floor)):
            complaints.append(
                f"{found.place} imports {found.full_name}: arrows go down, {' -> '.join(FLOORS)}; "
                f"pass the thing in, or move it down"
            )
    return complaints


def find_imports_of_demo(sources: Iterable[Source]) -> list[str]:
    return [
        f"{found.place} imports {found.full_name}: only bot.cli starts the demo; move what you need out of bot.demo"
        for found in _all_imports(sources)
        if found.reaches("bot.demo")
        and found.source.name != "bot.cli.main"
        and not f"{found.source.name}.".startswith("bot.demo.")
    ]


def find_imports_of_the_standin(sources: Iterable[Source]) -> list[str]:
    """The stand-in knows nothing of ours, and nobody but the demo knows it."""
    complaints = []
    for found in _all_imports(sources):
        if found.source.floor == STANDIN and found.module.partition(".")[0] in (*FLOORS, "tests"):
            complaints.append(f"{found.place} imports {found.full_name}: the stand-in has to do without our code")
        elif found.reaches(STANDIN) and not f"{found.source.name}.".startswith(("bot.demo.", f"{STANDIN}.")):
            complaints.append(f"{found.place} imports {found.full_name}: only bot.demo may use the stand-in")
    return complaints


def find_imports_between_packages(sources: Iterable[Source]) -> list[str]:
    """Arrows between the packages of one folder that point to a package above."""
    ranks = {package: rank for folder in PACKAGES for rank, package in enumerate(list_packages(folder))}
    known = {source.name: source for source in sources}
    complaints = []
    for found in _all_imports(sources):
        target = known.get(found.full_name) or known.get(found.module)
        if target is None:
            continue
        folder, here, there = _place_in_one_folder(found.source, target)
        if folder and here != there and ranks[here] < ranks[there]:
            complaints.append(
                f"{found.place} imports {found.full_name}: {there} is above {here} in {folder}; "
                f"pass the thing in, or move it down"
            )
    return complaints


def list_packages(folder: str) -> list[str]:
    """The full names of a folder's packages, bottom to top, and the folder itself for what lies in it."""
    names = PACKAGES[folder].split()
    names = names if "." in names else [".", *names]
    return [folder if name == "." else f"{folder}.{name}" for name in names]


def find_strays(sources: Iterable[Source]) -> list[str]:
    """Modules of the product in packages that the map does not have."""
    return [
        f"{source.name}: {source.package} is not in PACKAGES; say where it belongs"
        for source in sources
        if not any(_find_package(source, folder) for folder in PACKAGES)
    ]


def _place_in_one_folder(one: Source, other: Source) -> tuple[str, str, str]:
    """The innermost folder that both are in, and their packages there; nothing where they share none."""
    for folder in sorted(PACKAGES, key=len, reverse=True):
        here, there = _find_package(one, folder), _find_package(other, folder)
        if here and there:
            return folder, here, there
    return "", "", ""


def _find_package(source: Source, folder: str) -> str:
    """The package of the folder that a module belongs to; empty where it is somewhere else."""
    if not f"{source.name}.".startswith(f"{folder}."):
        return ""
    packages = sorted(list_packages(folder), key=len, reverse=True)
    found = next(package for package in packages if f"{source.package}.".startswith(f"{package}."))
    return found if found != folder or source.package == folder else ""


def find_foreign_imports(sources: Iterable[Source]) -> list[str]:
    """Libraries that belong to another floor."""
    return [
        f"{found.place} imports {found.full_name}: that is not the business of {found.source.floor}; "
        f"put it behind a protocol that a floor above implements"
        for found in _all_imports(sources)
        if any(map(found.reaches, _FOREIGN.get(found.source.floor, ())))
        and not any(map(found.reaches, _FOREIGN_ALLOWED.get(found.source.floor, ())))
    ]


def find_cycles(sources: Iterable[Source]) -> list[str]:
    """The first import cycle, imports that only a type checker follows left aside."""
    known = {source.name: source for source in sources}
    graph = {source.name: {name for name in _targets_of(source, known) if name != source.name} for source in sources}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"{' <- '.join(error.args[1])}: move what they share into a module below them"]
    return []


def _targets_of(source: Source, known: dict[str, Source]) -> Iterator[str]:
    for found in source.imports:
        if not found.only_for_types:
            yield from [name for name in (found.full_name, found.module) if name in known][:1]


LATE = ("bot.cli.", "runner.db.database.")
"""Who may import inside a function: `--help` has to answer at once, and not every service needs alembic and asyncpg."""


def find_imports_in_functions(sources: Iterable[Source]) -> list[str]:
    return [
        f"{source.name}:{node.lineno} imports inside {function.name}(): move the import to the top of the file"
        for source in sources
        for function in _functions_of(source)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and not f"{source.name}.".startswith(LATE)
    ]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions_of(source: Source) -> Iterator[Function]:
    return (node for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def find_missing_docstrings(sources: Iterable[Source]) -> list[str]:
    return [
        f"{source.name}: say at its top what the file is for, and what it refuses to know"
        for source in sources
        if not ast.get_docstring(source.tree)
    ]


def find_vague_names(sources: Iterable[Source]) -> list[str]:
    return [
        f"{source.name}: name it after what it knows, not {word!r}"
        for source in sources
        for word in sorted(_VAGUE_NAMES.intersection(source.name.replace("_", ".").split(".")))
    ]


def find_shared_class_names(sources: Iterable[Source]) -> list[str]:
    """Class names that mean more than one class. The stand-in is left out: it calls things as GitHub does."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and source.floor in FLOORS:
                places[node.name].append(f"{source.name}:{node.lineno}")
    return [
        f"{name} is the name of {len(found)} classes: {', '.join(found)}; name each after what it alone is"
        for name, found in places.items()
        if len(found) > 1
    ]


def find_normalisations(sources: Iterable[Source]) -> list[str]:
    """Calls of `unicodedata.normalize` outside of the one function that gives it short pieces of a text."""
    return [
        f"{source.name}:{node.lineno} normalises a text of any length, in quadratic time: use runner.characters.unify"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Attribute | ast.alias)
        and (node.attr if isinstance(node, ast.Attribute) else node.name) == "normalize"
        and source.name not in _NORMALISING
    ]


def find_parsers(sources: Iterable[Source]) -> list[str]:
    """Uses of Python's own parser outside of the one function that refuses texts on which it takes too long."""
    places = [
        f"{source.name}:{node.lineno}"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr in ("parse", "literal_eval")
        if ast.unparse(node.value) == "ast" and source.name != _PARSING
    ]
    modules = ("ast.parse", "ast.literal_eval", "symtable", "tokenize")
    imports = [one for one in _all_imports(sources) if any(map(one.reaches, modules)) and one.source.name != _PARSING]
    return [
        f"{place} parses a stranger's Python: use runner.checks.python_source.parse"
        for place in [*places, *(one.place for one in imports)]
    ]


def find_shared_threads(sources: Iterable[Source]) -> list[str]:
    """Uses of asyncio's default threads outside of packages whose work there waits only for the disk or a process.

    DNS lookups need these threads, so whatever takes CPU time has others.
    """
    return [
        f"{source.name}:{node.lineno} takes a thread from DNS lookups: use runner.aside.run_in_thread"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("to_thread", "run_in_executor") and _SHARED_THREADS.match(ast.unparse(node))
        if not source.name.startswith(_WAITING)
    ]


def find_mocks(sources: Iterable[Source]) -> list[str]:
    """Mock libraries, and our own code patched from outside."""
    mocks = [found for found in _all_imports(sources) if found.reaches("unittest.mock") or found.reaches("mock")]
    patches = [
        f"{source.name}:{node.lineno}"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr == "setattr" and ast.unparse(node) == "monkeypatch.setattr"
    ]
    places = [found.place for found in mocks] + patches
    return [f"{place} replaces a part: give the code a real one, such as those in tests/support" for place in places]


def find_what_a_machine_lacks(source: Source) -> list[str]:
    """What an old Python without packages, as machines have it, could not run."""
    old = OLDEST_PYTHON_ON_MACHINES
    have = sys.stdlib_module_names - _NEWER_MODULES
    complaints = [
        f"{found.place} imports {found.full_name}: a machine has nothing but Python {old[0]}.{old[1]}'s own library"
        for found in source.imports
        if found.module.partition(".")[0] not in have and not found.reaches(MACHINE_SIDE)
    ]
    try:
        ast.parse(source.text, source.name, feature_version=old)
    except SyntaxError as error:
        complaints.append(f"{source.name}:{error.lineno}: {error.msg}: write it so that Python {old[0]}.{old[1]} can")
    return complaints


def find_shared_events(router: Router) -> list[str]:
    """Events that more than one callback would get: gidgethub runs those in no order, and one failure starves the rest.

    Looks at the router's own tables, because its public `fetch` only answers for one event at a time.
    """
    complaints = []
    for event in sorted(router._shallow_routes.keys() | router._deep_routes.keys()):
        for action, callbacks in _callbacks_of(router, event):
            if len(callbacks) > 1:
                names = ", ".join(sorted(callbacks))
                complaints.append(f"{event} {action} goes to {names}: leave one, and let it call the others")
    return complaints


def _callbacks_of(router: Router, event: str) -> Iterator[tuple[str, Sequence[str]]]:
    for_all = [callback.__qualname__ for callback in router._shallow_routes.get(event, ())]
    keys = router._deep_routes.get(event, {})
    yield "(any)", for_all
    for key, values in keys.items():
        others = [f"the callbacks that look at {other!r}" for other in keys if other != key]
        for value, callbacks in values.items():
            yield f"{key}={value}", [callback.__qualname__ for callback in callbacks] + for_all + others
