"""The job's own home: what is laid out there for its agent, and how a text reaches an agent that runs."""

from __future__ import annotations

import base64
import errno
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..files import Failure, JobPaths, is_folder, write_file
from ..git import Git, find_own_clone, open_throwaway, show, split
from ..safe_paths import write_below
from ..stages.stage import Stage

SHOW_NOTICE = """\
{
    if [ -f "${PTQ_NOTICE_FILE-}" ] && mv -f -- "$PTQ_NOTICE_FILE" "$PTQ_NOTICE_FILE.read"; then
        cat -- "$PTQ_NOTICE_FILE.read" >&3
    fi
} 3>&2 2> /dev/null || :
"""
"""Tells what there is to tell, once; for whoever runs under `set -eux` as for anybody else, it is not there otherwise.

Of two shells at a time one moves the file, and that one tells.
"""

PROFILE = f"""\
export PATH="${{VIRTUAL_ENV:+$VIRTUAL_ENV/bin:}}${{PTQ_PATH-$PATH}}"
{SHOW_NOTICE}"""
"""For agents that run their tools in login shells (codex does): the host's own profile has just set another PATH.

`PTQ_PATH` is the PATH of the operator's `env`, where that has one.
"""

MAX_SKILL_BYTES = 1_000_000
MAX_SKILL_FILES = 1_000
"""All skills of a repository that a job gets, together."""

PLAIN_FILES = {"100644": False, "100755": True}
"""Git's modes of what is no link and no submodule; and whether it is executable."""


def make_home(job: JobPaths) -> None:
    """Make the home, with what shells read when they begin (bash(1), "INVOCATION")."""
    job.home.mkdir(mode=0o700, exist_ok=True)
    write_file(job.home / ".profile", PROFILE)
    write_file(find_bash_env(job), SHOW_NOTICE)


def find_bash_env(job: JobPaths) -> Path:
    """What a bash reads that is neither interactive nor a login shell, when `BASH_ENV` names it (pi runs such)."""
    return job.home / ".bash_env"


def notify(request: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a text for the agent, in place of an earlier one; not `written` when there is no place for it."""
    job, text = JobPaths(request), request["text"]
    with suppress(OSError):
        if is_folder(job.root):
            write_file(job.notice, text if text.endswith("\n") else f"{text}\n")
            return {"written": True}
    return {"written": False}


def expand_home(job: JobPaths, word: str) -> str:
    """A word of a command line, or a variable's value, in which a leading `{home}/` stands for the home."""
    return f"{job.home}/{word[len('{home}/') :]}" if word.startswith("{home}/") else word


def lay_out(job: JobPaths, files: Mapping[str, str]) -> None:
    """Write files, in Base64, below the home; in their paths, `{worktree}` stands for the worktree's path in dashes.

    So agents name the folder of a project's sessions. Raises `Failure`.
    """
    dashes = re.sub(r"[^A-Za-z0-9]", "-", str(job.worktree))
    for path, content in files.items():
        put(job, path.replace("{worktree}", dashes), base64.b64decode(content))


def put(job: JobPaths, path: str, content: bytes, mode: int = 0o600) -> None:
    """Write one file below the home. Raises `Failure` where something is in its way."""
    try:
        write_below(job.home, path, content, mode)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Failure(
            "home_unusable", f"{show(path)} cannot be written to the agent's home: {error.strerror}"
        ) from None


def copy_skills(stage: Stage) -> None:
    """Copy folders of the repository, as the base commit has them, below the home. The log names what is left out."""
    request, room, places = stage.request, MAX_SKILL_BYTES, MAX_SKILL_FILES
    if not request["base_skills"]:
        return
    clone, base = find_own_clone(stage.job), request["base_commit"]
    with open_throwaway(stage.job, clone, base, request["timeout_s"]) as git:
        for target, folder in request["base_skills"].items():
            files = list_files(git, base, folder)
            room, places = room - sum(file.size for file in files), places - len(files)
            if not files or room < 0 or places < 0:
                reason = "it is not in the repository" if not files else "the skills are too large together"
                stage.log.write(f"[the skill {show(folder)} was left out: {reason}]\n".encode())
                continue
            contents = git.read_objects(file.object for file in files)
            for file in files:
                put(stage.job, f"{target}/{file.path}", contents[file.object], 0o700 if file.executable else 0o600)


class SkillFile(NamedTuple):
    """A file of a skill, by its path below the skill's folder."""

    path: str
    executable: bool
    object: str
    size: int


def list_files(git: Git, base: str, folder: str) -> list[SkillFile]:
    """The plain files below a folder of a commit; none when there is no such folder."""
    try:
        lines = split(git.run("ls-tree", "-r", "-l", "-z", f"{base}:{folder}"))
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
