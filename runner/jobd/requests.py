"""The requests of all verbs, as a table, and the function that checks them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .files import Failure, is_text
from .gpus import is_gpu
from .safe_paths import is_safe

MODES = ("100644", "100755", "120000")
"""The modes of edits that can be carried over: files and links, not submodules."""

MAX_NUMBER = 2**53
"""The largest integer that JSON holds exactly everywhere (RFC 8259, section 6)."""


def is_object(value: Any, is_name: Callable[[str], bool], is_value: Callable[[Any], bool]) -> bool:
    """Whether this is an object whose names and values all pass the two checks."""
    return isinstance(value, dict) and all(is_text(name) and is_name(name) and is_value(value[name]) for name in value)


def is_path(value: object) -> bool:
    """Whether this is a relative path that stays inside its folder."""
    return isinstance(value, str) and is_text(value) and is_safe(value)


def is_change(value: object) -> bool:
    """Whether this is an edit that can be carried over."""
    if not isinstance(value, dict) or not {"path", "mode", "content", "old_mode"}.issubset(value):
        return False
    path, mode, content, old_mode = (value[name] for name in ("path", "mode", "content", "old_mode"))
    if not is_text(path) or not is_safe(path) or ".git" in path.casefold().split("/"):
        return False
    fits_mode = content is None if mode is None else mode in MODES and is_base64(content)
    return fits_mode and (old_mode is None or is_text(old_mode))


def is_companion(value: object) -> bool:
    """Whether this describes a repository whose files an agent can read."""
    if not isinstance(value, dict) or value.keys() != {"name", "url", "branch"}:
        return False
    return is_path(value["name"]) and is_text(value["url"]) and is_text(value["branch"])


def is_base64(value: object) -> bool:
    """Whether this is Base64 text (RFC 4648, section 4)."""
    try:
        return isinstance(value, str) and base64.b64decode(value, validate=True) is not None
    except ValueError:
        return False


def is_run(value: object) -> bool:
    """Whether this describes one run of the verb `check`."""
    if not isinstance(value, dict) or value.keys() != RUN.keys():
        return False
    return all(kind.fits(value[name]) for name, kind in RUN.items())


class FieldKind(NamedTuple):
    """A kind of request field: its description for error messages, and its check."""

    description: str
    fits: Callable[[Any], bool]


TEXT = FieldKind("a text", is_text)
TEXTS = FieldKind("a list of texts", lambda value: isinstance(value, list) and all(map(is_text, value)))
# A name has no `=`: a program could not tell where the name ends.
VARIABLES = FieldKind("an object of texts", lambda value: is_object(value, lambda name: "=" not in name, is_text))
NUMBER = FieldKind("a number, 0 or more", lambda value: type(value) is int and 0 <= value <= MAX_NUMBER)
SWITCH = FieldKind("true or false", lambda value: isinstance(value, bool))
COMMIT = FieldKind(
    "a commit by its full name, or an empty text",
    lambda value: is_text(value) and re.fullmatch(r"([0-9a-f]{40}|[0-9a-f]{64})?", value) is not None,
)
CONTENTS = FieldKind("an object of paths with contents in Base64", lambda value: is_object(value, is_path, is_base64))
SETTINGS = FieldKind("an object of paths with texts", lambda value: is_object(value, is_path, is_text))
FOLDERS = FieldKind("an object of paths with paths", lambda value: is_object(value, is_path, is_path))
COMPANIONS = FieldKind(
    "a list of repositories, each with name, url and branch",
    lambda value: isinstance(value, list) and all(map(is_companion, value)),
)
CHANGES = FieldKind(
    "a list of edits to files and links, with contents in Base64",
    lambda value: isinstance(value, list) and all(map(is_change, value)),
)
GPUS = FieldKind(
    "a list of GPUs with vendors, ids and device files",
    lambda value: isinstance(value, list) and all(map(is_gpu, value)),
)
RUN: Mapping[str, FieldKind] = {
    **{"name": TEXT, "title": TEXT},  # The name in the result, and the title in the log.
    **{"script": TEXT, "words": TEXTS},  # A script, or the arguments of the test command.
    **{"changed": SWITCH, "edits": CHANGES, "frozen": TEXTS},
}
RUNS = FieldKind(
    "a list of lists of runs",
    lambda value: (
        isinstance(value, list) and all(isinstance(turns, list) and all(map(is_run, turns)) for turns in value)
    ),
)

_JOB: Mapping[str, FieldKind] = {"workspace": TEXT, "job_id": TEXT}
_LIMITS: Mapping[str, FieldKind] = {"timeout_s": NUMBER, "max_log_bytes": NUMBER}
_WATCHED: Mapping[str, FieldKind] = {"max_disk_bytes": NUMBER, "max_files": NUMBER, "orphan_after_s": NUMBER}
_RECIPE: Mapping[str, FieldKind] = {
    **{"clone_url": TEXT, "trunk": TEXT, "base_branch": TEXT, "base_commit": COMMIT},
    **{"submodules": SWITCH, "network": TEXT},
    **{"create_venv": TEXTS, "setup": TEXTS, "update": TEXTS, "smoke_test": TEXTS, "imports": TEXTS},
    **{"ways": TEXTS, "must_seal": SWITCH, "slot": NUMBER, "base_timeout_s": NUMBER},
    **{"private": TEXTS, "writable": TEXTS},  # Paths that no job sees, and folders that all jobs may write to.
    **{"git": VARIABLES, "relay": SWITCH},  # More variables for git, and whether they name the relay.
    "gpus": GPUS,  # The GPUs of the job's slot. If empty, the job sees all GPUs.
}

REQUESTS: Mapping[str, Mapping[str, FieldKind]] = {
    "version": {},
    "capabilities": {"workspace": TEXT},
    "inventory": {"workspace": TEXT},
    "jobs": {"workspace": TEXT},
    "programs": {"programs": TEXTS, "versions": TEXTS},
    # `changes_from` is the commit that `changes` were made on. Empty means the environment's own base commit.
    "prepare": {
        **{"changes": CHANGES, "held_back": CHANGES, "changes_from": COMMIT, "companions": COMPANIONS},
        **_RECIPE,
        **_LIMITS,
        **_JOB,
    },
    "base": {"only_existing": SWITCH, **_RECIPE, **_LIMITS, **_JOB},
    "start": {
        **{"argv": TEXTS, "env": VARIABLES, "prompt": TEXT, "prompt_on_stdin": SWITCH, "drop_lines": TEXTS},
        **{"hidden": TEXTS, "files": CONTENTS, "settings": SETTINGS, "relay": SWITCH},
        # `base_skills`: a skill's folder in the home -> its folder in the repository.
        # `skill_folders`: a folder of skills in the repository -> the folder in the home for these skills.
        **{"base_skills": FOLDERS, "skill_folders": FOLDERS, "base_commit": COMMIT},
        "told": NUMBER,  # The number of the last message that is part of the prompt.
        **{"tail_glob": TEXT, "tail_word": TEXT, "stop_grace_s": NUMBER},
        **_WATCHED,
        **_LIMITS,
        **_JOB,
    },
    "collect": {
        **{"base_commit": COMMIT, "hidden": TEXTS, "lint": TEXTS},
        **{"max_change_bytes": NUMBER, "max_changes": NUMBER, "max_text_bytes": NUMBER},
        **_WATCHED,
        **_LIMITS,
        **_JOB,
    },
    "check": {
        **{"runs": RUNS, "times": NUMBER, "run_timeout_s": NUMBER, "script_argv": TEXTS, "test_argv": TEXTS},
        **{"base_commit": COMMIT, "changes": CHANGES, "rebuild": TEXTS},
        **_WATCHED,
        **_LIMITS,
        **_JOB,
    },
    "poll": {
        **{"stage": TEXT, "log_offset": NUMBER, "log_limit": NUMBER, "wait_ms": NUMBER},
        **{"worklog_mark": TEXT, "worklog_limit": NUMBER},  # The service's mark. A limit of 0 asks for no worklog.
        **_JOB,
    },
    "result": _JOB,
    "relay": _JOB,
    "stop": _JOB,
    "notify": {"text": TEXT, **_JOB},
    "tell": {"number": NUMBER, "process": NUMBER, "text": TEXT, "argv": TEXTS, **_JOB},
    "kill": _JOB,
    "admit": {"public_key": TEXT, "lasts_s": NUMBER, "context": TEXT, **_JOB},
    "dismiss": _JOB,
    "adopt": {"earlier": TEXT, **_JOB},
    "clean": _JOB,
}
"""The fields of each verb's request. Durations are in seconds (`_s`) or milliseconds (`_ms`), and sizes in bytes."""


def read_request(verb: str, body: bytes) -> Mapping[str, Any]:
    """Parse and check a request. Raises `Failure` if a field is missing or invalid."""
    if verb not in REQUESTS:
        raise Failure("bad_request", f"there is no verb {verb!r}; there are {', '.join(REQUESTS)}")
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise Failure("bad_request", "the request is not JSON") from None
    if not isinstance(request, dict):
        raise Failure("bad_request", "the request is not a JSON object")
    for name, kind in REQUESTS[verb].items():
        if name not in request or not kind.fits(request[name]):
            raise Failure("bad_request", f"{verb} needs {name!r}, {kind.description}")
    check_job(request)
    return request


def check_job(request: Mapping[str, Any]) -> None:
    """Raises `Failure` for an invalid job id or workspace."""
    for name in ("job_id", "earlier"):
        if name in request and not re.fullmatch(r"[0-9a-f]{10}", request[name]):
            raise Failure("bad_request", "a job id has ten hexadecimal digits")
    if "workspace" in request and not Path(request["workspace"]).is_absolute():
        raise Failure("bad_request", "the workspace is not an absolute path")
