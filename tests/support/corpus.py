"""The hostile corpus, `tests/payloads/hostile`: a file a channel, in it a table a case."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "payloads" / "hostile"


@dataclass(frozen=True)
class Case:
    """What somebody sends by a channel, and what is to come out at its end."""

    channel: str
    name: str
    text: str
    """What the file has as `text`, as many `times` as it says, and `then` what else."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What else goes in; and `shown`, all that comes out, or some of `holds`, `lacks` and `most` (characters)."""

    def complain(self, out: str) -> Iterator[str]:
        """What is not as it should be."""
        if out != self.fields.get("shown", out):
            yield f"{out!r} is not {self.fields['shown']!r}"
        yield from (f"{part!r} is missing" for part in self.fields.get("holds", ()) if part not in out)
        yield from (f"{part!r} is there" for part in self.fields.get("lacks", ()) if part in out)
        if len(out) > self.fields.get("most", len(out)):
            yield f"{len(out)} characters are too many"


@cache
def load_corpus() -> tuple[Case, ...]:
    """Every case of every channel."""
    return tuple(
        Case(path.stem, name, fields["text"] * fields.get("times", 1) + fields.get("then", ""), fields)
        for path in sorted(FOLDER.glob("*.toml"))
        for name, fields in tomllib.loads(path.read_text()).items()
    )


def cases_of(*channels: str) -> list[Case]:
    """Those of some channels."""
    return [case for case in load_corpus() if case.channel in channels]
