"""Which mutants are planted: a choice by a seed, and a record of it that outlives a move of the code.

A recorded fault is known by its function, operator, line and ordinal; its path only decides between equal ones.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath

from tests.mutation.mutants import Mutant, find_python_mutants
from tests.mutation.templates import find_template_mutants

RECORD = Path(__file__).with_name("faults.toml")
SHARES = {"handlers": 12, "bot": 10, "runner": 8, "jobd": 6, "sql": 2, "templates": 2}
"""How many of 40 faults each part of the product gets."""
_NOT_THE_PRODUCT = ("tests/", "docs/", "packaging/", ".ci/", "prompts/skills/")

Found = Mapping[str, Sequence[Mutant]]
"""The mutants of each file, by its path in the tree."""


@dataclass(frozen=True)
class Fault:
    """A chosen mutant, as it is recorded."""

    id: str
    part: str
    path: str
    function: str
    operator: str
    line: str
    new: str
    ordinal: int

    @property
    def key(self) -> tuple[str, ...]:
        return self.function, self.operator, self.line, str(self.ordinal)


def read_tree(root: Path) -> dict[str, str]:
    """The text of every file of the product that can be mutated, by its path in the tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = [path for path in listed.split("\0") if path.endswith((".py", ".html", ".j2")) and (root / path).exists()]
    return {path: (root / path).read_text() for path in sorted(paths) if not path.startswith(_NOT_THE_PRODUCT)}


def find_mutants(path: str, source: str) -> list[Mutant]:
    """The mutants of one file, numbered where they look the same."""
    pure = PurePath(path)
    if pure.suffix == ".py":
        # Each step of the migrations has an `upgrade`.
        found = find_python_mutants(source, prefix=f"{pure.stem}." if "versions" in pure.parts else "")
    else:
        found = find_template_mutants(source, pure.name)
    seen: Counter[tuple[str, str, str]] = Counter()
    numbered = []
    for mutant in found:
        look = (mutant.function, mutant.operator, mutant.line)
        numbered.append(replace(mutant, ordinal=seen[look]))
        seen[look] += 1
    return numbered


def find_all(tree: Mapping[str, str]) -> dict[str, list[Mutant]]:
    """The mutants of every file of a tree."""
    return {path: find_mutants(path, source) for path, source in tree.items()}


def get_part(path: str) -> str:
    """The part of the product that a file belongs to."""
    pure = PurePath(path)
    if pure.suffix != ".py":
        return "templates"
    if pure.name == "schema.py" or "versions" in pure.parts:
        return "sql"
    known = [folder for folder in reversed(pure.parts[:-1]) if folder in SHARES]
    return known[0] if known else "bot"


def choose(found: Found, seed: int, count: int) -> list[Fault]:
    """As many faults, spread over the parts and their folders; at most one of each function.

    The order depends on the seed and on what the mutants are, not on where their files lie.
    """
    known = Counter(_key(mutant) for mutants in found.values() for mutant in mutants)
    parts: dict[str, dict[PurePath, list[Fault]]] = defaultdict(lambda: defaultdict(list))
    for path, mutants in found.items():
        for mutant in mutants:
            if known[_key(mutant)] == 1:
                parts[get_part(path)][PurePath(path).parent].append(_make_fault(path, mutant))
    return [
        replace(fault, id=f"{part}-{number:02}")
        for part, share in divide(count).items()
        for number, fault in enumerate(_choose_in(parts[part], seed, share), start=1)
    ]


def divide(count: int) -> dict[str, int]:
    """The share of each part; what does not divide goes to the largest remainders."""
    total = sum(SHARES.values())
    shares = {part: count * share // total for part, share in SHARES.items()}
    by_remainder = sorted(SHARES, key=lambda part: -(count * SHARES[part] % total))
    return {part: shares[part] + (part in by_remainder[: count - sum(shares.values())]) for part in SHARES}


def _choose_in(folders: Mapping[PurePath, Sequence[Fault]], seed: int, count: int) -> list[Fault]:
    """The first of each folder, then the second of each, until there are enough."""
    ranked = [
        (rank, _hash(seed, *fault.key), fault)
        for faults in folders.values()
        for rank, fault in enumerate(_shuffle_functions(faults, seed))
    ]
    chosen: dict[str, Fault] = {}
    for _, _, fault in sorted(ranked, key=lambda entry: entry[:2]):
        chosen.setdefault(fault.function, fault)
    return [*chosen.values()][:count]


def _shuffle_functions(faults: Iterable[Fault], seed: int) -> Iterator[Fault]:
    """One fault of each function: the operator is drawn first, or those that fit everywhere would crowd out others."""
    functions: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        functions[fault.function].append(fault)
    for function in sorted(functions, key=lambda name: _hash(seed, name)):
        yield min(
            functions[function], key=lambda fault: (_hash(seed, fault.operator, function), _hash(seed, *fault.key))
        )


def locate(fault: Fault, found: Found) -> tuple[str, Mutant] | None:
    """Where a recorded fault is now; None when it is gone, or when nobody can say which of several it is."""
    places = [(path, mutant) for path, mutants in found.items() for mutant in mutants if _key(mutant) == fault.key]
    for prefer in (lambda path: path == fault.path, lambda path: PurePath(path).name == PurePath(fault.path).name):
        if len(places) > 1:
            places = [place for place in places if prefer(place[0])] or places
    return places[0] if len(places) == 1 else None


def _key(mutant: Mutant) -> tuple[str, ...]:
    return mutant.function, mutant.operator, mutant.line, str(mutant.ordinal)


def _make_fault(path: str, mutant: Mutant) -> Fault:
    return Fault("", get_part(path), path, mutant.function, mutant.operator, mutant.line, mutant.new, mutant.ordinal)


def _hash(seed: int, *texts: str) -> str:
    return hashlib.sha256(json.dumps([seed, *texts]).encode()).hexdigest()


def write_record(seed: int, faults: Sequence[Fault], path: Path = RECORD) -> None:
    """Record a choice."""
    tables = (
        "[[fault]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in asdict(fault).items())
        for fault in faults
    )
    head = f"# Written by `python -m tests.mutation choose --seed {seed} --faults {len(faults)}`.\nseed = {seed}\n"
    path.write_text("\n".join([head, *tables]))


def read_record(path: Path = RECORD) -> list[Fault]:
    """The faults of a recorded choice."""
    return [Fault(**table) for table in tomllib.loads(path.read_text())["fault"]]
