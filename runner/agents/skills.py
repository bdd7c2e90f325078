"""Skills: folders with a `SKILL.md` that tell an agent how to work on a kind of issue.

They come from ptq-bot, the operator or the base branch, never from an issue, a fork or an agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_SKILL_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Skill:
    """One `[skills.NAME]`."""

    name: str
    labels: frozenset[str]
    """Issues with one of these labels get the skill. Labels ignore case."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path in the skill's folder -> content; empty for a skill in the repository."""
    in_repository: str = ""
    """The skill's folder on the base branch."""


def read_skill(folder: Path) -> Mapping[str, bytes]:
    """Read a skill's folder. Raises `OSError`, also if it has no `SKILL.md` or is too large."""
    (folder / "SKILL.md").stat()
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if sum(path.stat().st_size for path in paths) > MAX_SKILL_BYTES:
        raise OSError(27, f"is larger than {MAX_SKILL_BYTES} bytes", str(folder))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def choose_skills(skills: Iterable[Skill], labels: Collection[str]) -> tuple[str, ...]:
    """The names of the skills for an issue's labels."""
    present = {label.casefold() for label in labels}
    return tuple(skill.name for skill in skills if present & {label.casefold() for label in skill.labels})


def lay_out(skills: Iterable[Skill], folder: str) -> dict[str, bytes]:
    """Path in `folder` -> content, for the skills that are not in the repository."""
    return {f"{folder}/{skill.name}/{path}": content for skill in skills for path, content in skill.files.items()}
