"""The verbs: reads one request, prints one answer.

Every answer has `ok`. One that is not ok has `error`, a name of the protocol, and `message`, a clause for people.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .agent import run_agent
from .collect import collect
from .files import Failure, Job, describe, is_utf8, open_up, read_json
from .git import GIT, find_clone, git_environment
from .prepare import prepare
from .processes import kill_processes
from .stage import Stage, poll_stage, read_state, run_stage, start_stage

STAGES: Mapping[str, Callable[[Stage], dict[str, Any]]] = {"prepare": prepare, "agent": run_agent, "collect": collect}

_JOB: Mapping[str, type] = {"workspace": str, "job_id": str}
_LIMITS: Mapping[str, type] = {"timeout_s": int, "max_log_bytes": int}

REQUESTS: Mapping[str, Mapping[str, type]] = {
    "version": {},
    "prepare": {"clone_url": str, "base_branch": str, "create_venv": list, "setup": list, **_LIMITS, **_JOB},
    "start": {
        **{"argv": list, "env": dict, "prompt": str, "prompt_on_stdin": bool, "drop_lines": list},
        **_LIMITS,
        **_JOB,
    },
    "collect": {
        **{"base_commit": str, "lint": list, "max_change_bytes": int, "max_changes": int, "max_text_bytes": int},
        **_LIMITS,
        **_JOB,
    },
    "poll": {"stage": str, "log_offset": int, "log_limit": int, **_JOB},
    "result": _JOB,
    "kill": _JOB,
    "clean": _JOB,
}
"""What the request of each verb holds. Numbers are seconds and bytes, lists hold strings, durations end in `_s`."""


def main() -> None:
    """Answer one request; or, started by `start_stage`, be a stage."""
    if len(sys.argv) == 4:
        _, _, stage, request_path = sys.argv
        run_stage(stage, STAGES[stage], request_path)
        return
    try:
        verb = sys.argv[1] if len(sys.argv) == 2 else ""
        request = read_request(verb, sys.stdin.buffer.read())
        answer = {"ok": True, **VERBS[verb](request)}
    except Exception as error:
        answer = {"ok": False, **describe(error)}
    print(json.dumps(answer))


def read_request(verb: str, body: bytes) -> Mapping[str, Any]:
    """A request that holds what its verb needs. Raises `Failure` for any other."""
    if verb not in REQUESTS:
        raise Failure("bad_request", f"there is no verb {verb!r}; there are {', '.join(REQUESTS)}")
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise Failure("bad_request", "the request is not JSON") from None
    if not isinstance(request, dict):
        raise Failure("bad_request", "the request is no JSON object")
    for name, kind in REQUESTS[verb].items():
        if not fits(request.get(name), kind):
            raise Failure("bad_request", f"{verb} needs {name!r}, {DESCRIPTIONS[kind]}")
    if "job_id" in REQUESTS[verb] and not re.fullmatch(r"[0-9a-f]{10}", request["job_id"]):
        raise Failure("bad_request", "a job id has ten hexadecimal digits")
    if "workspace" in REQUESTS[verb] and not Path(request["workspace"]).is_absolute():
        raise Failure("bad_request", "the workspace is no absolute path")
    return request


MAX_NUMBER = 2**53
"""Up to here numbers in JSON are whole everywhere (RFC 8259, section 6)."""

DESCRIPTIONS = {
    str: "a text",
    list: "a list of texts",
    dict: "an object of texts",
    int: "a number, 0 or more",
    bool: "true or false",
}


def fits(value: Any, kind: type) -> bool:
    """Whether a value of a request has this kind.

    Texts hold no NUL, for no command line and no path may, and no half of a character, for no file may; the names in
    an environment hold no `=`.
    """
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
    if kind is dict:
        return isinstance(value, dict) and fits([*value, *value.values()], list) and "=" not in "".join(value)
    if kind is list:
        return isinstance(value, list) and all(fits(item, str) for item in value)
    return isinstance(value, str) and "\0" not in value and is_utf8(value)


def version(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine runs us with."""
    git = shutil.which("git")
    said = subprocess.run([git, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode() if git else ""
    return {"python": ".".join(map(str, sys.version_info[:3])), "git": said.split()[2] if git else None}


def start_agent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the agent in an environment that is there."""
    if read_state(Job(request), "prepare")["state"] != "done":
        raise Failure("not_prepared", "the job's environment is not prepared")
    if not request["argv"]:
        raise Failure("bad_request", "the agent has no command")
    return {"started": start_stage("agent", request)}


def poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """How a stage stands."""
    if request["stage"] not in STAGES:
        raise Failure("bad_request", f"there is no stage {request['stage']!r}; there are {', '.join(STAGES)}")
    return poll_stage(request["stage"], request)


def result(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was collected."""
    found = read_json(Job(request).result)
    if not found:
        raise Failure("no_result", "nothing was collected")
    return {**found, "ok": True}


def kill(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill everything of the job."""
    killed, alive = kill_processes(Job(request).id)
    return {"killed": killed, "alive": alive}


def clean(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill everything of the job and remove its folder. Raises `Failure` while something is alive, or cannot go."""
    job = Job(request)
    if kill_processes(job.id)[1]:
        raise Failure("still_alive", "a process of the job cannot be killed")
    clone = find_clone(job, str(read_json(job.of_stage("prepare", "request")).get("clone_url")))
    if job.root.is_symlink():
        job.root.unlink()
    elif job.root.exists():
        open_up(job.root)
        removed = subprocess.run(["rm", "-rf", "--", job.root], stderr=subprocess.PIPE, check=False)
        if job.root.exists():
            lines = os.fsdecode(removed.stderr).splitlines()
            raise Failure("not_removed", f"the job's folder cannot be removed: {lines[-1] if lines else 'no reason'}")
    if clone.is_dir():
        prune = [*GIT, f"--git-dir={clone}", "worktree", "prune"]
        subprocess.run(prune, env=git_environment(), stderr=subprocess.DEVNULL, check=False)
    return {}


VERBS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "version": version,
    "prepare": lambda request: {"started": start_stage("prepare", request)},
    "start": start_agent,
    "collect": lambda request: {"started": start_stage("collect", request)},
    "poll": poll,
    "result": result,
    "kill": kill,
    "clean": clean,
}
