"""The job's home: files for its agent, and messages to a running agent."""

from __future__ import annotations

import base64
import errno
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..files import Failure, JobPaths, is_folder, require_folders, write_file
from ..git import show_path
from ..safe_paths import write_safely

SHOW_NOTICE = """\
{
    if [ -f "${PTQ_NOTICE_FILE-}" ] && mv -f -- "$PTQ_NOTICE_FILE" "$PTQ_NOTICE_FILE.read"; then
        cat -- "$PTQ_NOTICE_FILE.read" >&3
    fi
} 3>&2 2> /dev/null || :
"""
"""Shows a message to the agent, once. Works under `set -eux`, and prints nothing if there is no message.

If two shells run at the same time, only one of them can move the file, and that one shows it.
"""

PROFILE = f"""\
export PATH="${{VIRTUAL_ENV:+$VIRTUAL_ENV/bin:}}${{PTQ_PATH-$PATH}}"
{SHOW_NOTICE}"""
"""For agents that run their tools in login shells, as codex does. In these, the host's profile has replaced PATH.

`PTQ_PATH` is the PATH in the operator's `env`, if there is one.
"""


def make_home(job: JobPaths) -> None:
    """Create the home with the shells' startup files (bash(1), "INVOCATION")."""
    job.home.mkdir(mode=0o700, exist_ok=True)
    require_folders(job.home)
    for path, text in ((job.home / ".profile", PROFILE), (find_bash_env(job), SHOW_NOTICE)):
        write_safely(job.place, str(path.relative_to(job.place)), text.encode())


def find_bash_env(job: JobPaths) -> Path:
    """The file for `BASH_ENV`, which non-interactive shells read (pi runs such shells)."""
    return job.home / ".bash_env"


def notify(request: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a message for the agent, in place of an earlier one. `written` is false if the job has no folder."""
    job, text = JobPaths(request), request["text"]
    with suppress(OSError):
        if is_folder(job.root):
            write_file(job.notice, text if text.endswith("\n") else f"{text}\n")
            return {"written": True}
    return {"written": False}


def expand_home(job: JobPaths, word: str) -> str:
    """Replace a leading `{home}/` in a word of a command line, or in a variable's value."""
    return f"{job.home}/{word[len('{home}/') :]}" if word.startswith("{home}/") else word


def write_home_files(job: JobPaths, files: Mapping[str, str]) -> None:
    """Write files, given in Base64, to the home. In their paths, `{worktree}` becomes the worktree's path with dashes.

    Agents name the folder of a project's sessions in this way. Raises `Failure`.
    """
    dashes = re.sub(r"[^A-Za-z0-9]", "-", str(job.worktree))
    for path, content in files.items():
        write_home_file(job, path.replace("{worktree}", dashes), base64.b64decode(content))


def write_home_file(job: JobPaths, path: str, content: bytes, mode: int = 0o600) -> None:
    """Write one file to the home. Raises `Failure` if something is in its way."""
    try:
        write_safely(job.home, path, content, mode)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Failure(
            "home_unusable", f"{show_path(path)} cannot be written to the agent's home: {error.strerror}"
        ) from None
