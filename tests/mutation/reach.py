"""Which tests can find a fault: those that reach its lines; by a rule of thumb those that reach other processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from coverage import CoverageData

from tests.mutation.faults import Fault
from tests.mutation.mutants import Mutant
from tests.mutation.recorder import MAP, hash_file

ELSEWHERE = {"jobd": re.compile("jobd"), "sql": re.compile("upgrade|schema|store|database|sql", re.IGNORECASE)}
"""The tests of parts that run in other processes, or when they are imported: what their names have in them."""


@dataclass(frozen=True)
class Reach:
    """The recorded map: the tests that pass, with their seconds, and what each file was when it was measured."""

    seconds: Mapping[str, float]
    hashes: Mapping[str, str]

    @classmethod
    def read(cls) -> Reach:
        """Read what `recorder` wrote; FileNotFoundError when there is no map."""
        known = json.loads((MAP / "tests.json").read_text())
        return cls(known["seconds"], known["hashes"])

    @cached_property
    def _data(self) -> list[CoverageData]:
        read = [CoverageData(str(path)) for path in sorted(MAP.glob("reached.*"))]
        for data in read:
            data.read()
        return read

    def choose_tests(self, fault: Fault, path: str, mutant: Mutant) -> list[str]:
        """The likeliest tests first: those of a file that is named like the mutated one, then by their seconds."""
        by_line = self._find_by_line(path)
        lines = range(mutant.number, mutant.last + 1)
        is_exact = fault.part != "templates" and self.hashes.get(path) == hash_file(Path(path))
        tests = {test for line in lines for test in by_line.get(line, ())} if is_exact else set()
        tests = tests or {test for reached in by_line.values() for test in reached}
        if rule := ELSEWHERE.get(fault.part):
            tests |= {test for test in self.seconds if rule.search(test)}
        tests = tests or {test for test in self.seconds if test.startswith(f"tests/{PurePath(path).parts[0]}/")}
        return self.order(tests, path if fault.part in ELSEWHERE else "")

    def order(self, tests: Iterable[str], path: str) -> list[str]:
        """Fastest first; before them those of the file that bears the name of `path`."""
        own = f"_{PurePath(path).stem}.py::"
        fit = (test for test in tests if test in self.seconds)
        return sorted(fit, key=lambda test: (not path or own not in test, self.seconds[test], test))

    def _find_by_line(self, path: str) -> dict[int, set[str]]:
        tests: dict[int, set[str]] = {}
        for data in self._data:
            for line, contexts in data.contexts_by_lineno(path).items():
                tests.setdefault(line, set()).update(context for context in contexts if context)
        return tests
