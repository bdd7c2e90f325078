"""Skills: folders with a `SKILL.md` that tell an agent how to work.

They come from ptq-bot, the operator or the base branch, never from an issue, a fork or an agent. Each entry in a job's
skills is a text. An entry without a slash is the name of a `[skills.NAME]`. An entry with a slash is the path of a
folder in the repository. In such a folder, each sub-folder with a `SKILL.md` is a skill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_SKILL_BYTES = 1_000_000
MAX_SKILL_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Skill:
    """One `[skills.NAME]` table of the configuration."""

    name: str
    labels: frozenset[str] = frozenset()
    """Issues with one of these labels get the skill. Labels ignore case."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path in the skill's folder -> content. Empty for a skill in the repository."""
    in_repository: str = ""
    """The skill's folder on the base branch. Empty for a skill that is not in the repository."""


@dataclass(frozen=True, slots=True)
class SkillPlaces:
    """Where a job's skills come from, and where they are put in its agent's home."""

    files: Mapping[str, bytes]
    """Path in the home -> content, for skills that are not in the repository."""
    base_skills: Mapping[str, str]
    """Folder in the home -> the skill's folder in the repository."""
    skill_folders: Mapping[str, str]
    """Folder with skills in the repository -> the folder in the home to which they are copied."""


def read_skill(folder: Path) -> Mapping[str, bytes]:
    """Read a skill's folder. Raises `OSError`, also if it has no `SKILL.md` or is too large."""
    (folder / "SKILL.md").stat()
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if len(paths) > MAX_SKILL_FILES:
        raise OSError(27, f"has more than {MAX_SKILL_FILES} files", str(folder))
    if sum(path.stat().st_size for path in paths) > MAX_SKILL_BYTES:
        raise OSError(27, f"is larger than {MAX_SKILL_BYTES} bytes", str(folder))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def is_skill_folder(skill: str) -> bool:
    """Whether this entry is a folder in the repository, and not the name of a skill."""
    return "/" in skill


def choose_skills(skills: Iterable[Skill], always: Iterable[str], labels: Collection[str]) -> tuple[str, ...]:
    """The skills of a job: those that its repository always has, and those for the labels of its issue."""
    present = {label.casefold() for label in labels}
    by_label = (skill.name for skill in skills if present & {label.casefold() for label in skill.labels})
    return tuple(dict.fromkeys((*always, *by_label)))


def leave_out_repository(skills: Iterable[str], known: Iterable[Skill]) -> tuple[str, ...]:
    """These skills, without those in the repository. Used for jobs whose commit may be a stranger's."""
    inside = {skill.name for skill in known if skill.in_repository}
    return tuple(skill for skill in skills if skill not in inside and not is_skill_folder(skill))


def place_skills(skills: Iterable[str], known: Mapping[str, Skill], folder: str) -> SkillPlaces:
    """Where to put a job's skills. `folder` is the folder in which its agent looks for skills. Empty if it has none."""
    wanted = tuple(skills) if folder else ()
    named = [known[name] for name in wanted if name in known]
    return SkillPlaces(
        {f"{folder}/{skill.name}/{path}": content for skill in named for path, content in skill.files.items()},
        {f"{folder}/{skill.name}": skill.in_repository for skill in named if skill.in_repository},
        {path.strip("/"): folder for path in wanted if is_skill_folder(path)},
    )
