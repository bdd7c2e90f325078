"""Skills that a job's agent gets from its repository: copied from the base commit to the home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..files import Failure, JobPaths
from ..git import Git, find_git_folders, open_throwaway, show_path, split_paths
from ..stages.stage import Stage
from .home import write_home_file

MAX_SKILL_BYTES = 1_000_000
MAX_SKILL_FILES = 1_000
"""Limits for all skills that a job gets from its repository, in total."""

PLAIN_FILES = {"100644": False, "100755": True}
"""Git's modes of regular files, and whether they are executable."""

DESCRIPTION = "SKILL.md"
"""A folder in a folder of skills is a skill if it has this file."""


class SkillFile(NamedTuple):
    """A file of a skill, with its path relative to the skill's folder."""

    path: str
    executable: bool
    object: str
    size: int


class BaseSkill(NamedTuple):
    """A skill of the repository. If it has no files, the repository does not have the skill."""

    target: str
    """The folder in the home."""
    folder: str
    """The folder in the repository."""
    files: list[SkillFile]


def copy_skills(stage: Stage) -> None:
    """Copy skills from the base commit to the home. The log names those that are left out."""
    request = stage.request
    if not request["base_skills"] and not request["skill_folders"]:
        return
    # Git reads only the clone here, so it needs no sandbox.
    with open_throwaway(find_git_folders(stage.job), request["base_commit"], request["timeout_s"]) as git:
        for skill, reason in copy_fitting(stage.job, git, find_skills(git, request), request["files"]):
            # Not `say`: an agent's log is shown without marks.
            stage.log.write(f"[The skill {show_path(skill.folder)} was left out: {reason}.]\n".encode())


def copy_fitting(
    job: JobPaths, git: Git, skills: Iterable[BaseSkill], others: Iterable[str]
) -> Iterator[tuple[BaseSkill, str]]:
    """Copy skills to the home. Yields each skill that is left out, and the reason. Raises `Failure`.

    `others` are the paths of the operator's files in the home. A skill among them takes the place of one with its name.
    """
    taken = {path[: -len(DESCRIPTION) - 1] for path in others if path.endswith(f"/{DESCRIPTION}")}
    room, places = MAX_SKILL_BYTES, MAX_SKILL_FILES
    for skill in skills:
        size = sum(file.size for file in skill.files)
        if not skill.files:
            yield skill, "it is not in the repository"
        elif skill.target in taken:
            yield skill, "another skill has its name"
        elif size > room or len(skill.files) > places:
            yield skill, "the skills are too large together"
        else:
            taken.add(skill.target)
            room, places = room - size, places - len(skill.files)
            contents = git.read_objects(file.object for file in skill.files)
            for file in skill.files:
                mode = 0o700 if file.executable else 0o600
                write_home_file(job, f"{skill.target}/{file.path}", contents[file.object], mode)


def find_skills(git: Git, request: Mapping[str, Any]) -> Iterator[BaseSkill]:
    """The skills that a request names, and those in the folders that it names."""
    base = request["base_commit"]
    for target, folder in request["base_skills"].items():
        yield BaseSkill(target, folder, list_files(git, base, folder))
    for folder, target in request["skill_folders"].items():
        found: dict[str, list[SkillFile]] = {}
        for file in list_files(git, base, folder):
            name, slash, path = file.path.partition("/")
            if slash:
                found.setdefault(name, []).append(file._replace(path=path))
        skills = {name: files for name, files in found.items() if any(file.path == DESCRIPTION for file in files)}
        for name, files in skills.items():
            yield BaseSkill(f"{target}/{name}", f"{folder}/{name}", files)
        if not skills:
            yield BaseSkill(target, f"{folder}/*/{DESCRIPTION}", [])


def list_files(git: Git, base: str, folder: str) -> list[SkillFile]:
    """The regular files in a folder of a commit. Empty if the folder does not exist."""
    try:
        lines = split_paths(git.run("ls-tree", "-r", "-l", "-z", f"{base}:{folder}"))
    except Failure as failure:
        if failure.name != "git_failed":
            raise
        return []
    found = []
    for line in lines:
        about, _, path = line.partition("\t")
        mode, _, name, size = about.split()
        if mode in PLAIN_FILES:
            found.append(SkillFile(path, PLAIN_FILES[mode], name, int(size)))
    return found
