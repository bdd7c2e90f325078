"""Git, so called that nothing of the host's, of the repository's or of an agent's making changes what it does."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from .files import Job

GIT = (
    *("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"),
    # Without these two, git reads `ignore` and `attributes` from the user's own folder for settings.
    *("-c", "core.excludesFile=/dev/null", "-c", "core.attributesFile=/dev/null"),
    # A file that looks like `.git` on other systems is for the service to refuse, with a reason.
    *("-c", "core.protectNTFS=false", "-c", "core.protectHFS=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"),
)

SETTINGS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "LC_ALL": "C",
}

CLONE_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"


def git_environment(**more: str) -> dict[str, str]:
    """The host's environment without whatever would change what git does."""
    host = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**host, **SETTINGS, **more}


def find_clone(job: Job, clone_url: str) -> Path:
    """Where the machine's clone of a repository lies; its jobs share it."""
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(clone_url.lower().split("/")[-2:])).strip("-")
    return job.workspace / "repos" / f"{name[:60]}-{hashlib.sha256(clone_url.encode()).hexdigest()[:12]}"
