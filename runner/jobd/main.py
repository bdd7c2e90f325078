"""The verbs: reads one request, prints one answer. Only `enter` is for a person at a terminal.

Every answer has `ok`. One that is not ok has `error`, a name of the protocol, and `message`, a clause for people.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .admission import admit, dismiss, forget_keys
from .adopt import adopt
from .agent import run_agent
from .check import check
from .collect import collect
from .ended import ended
from .enter import run_enter
from .environment import clear, list_ways
from .exposure import find_exposures
from .files import Failure, Job, describe, read_json
from .home import notify
from .inventory import list_jobs, take_inventory
from .namespaces import CLONE, OVERLAY, describe_cell, find_missing, is_sealable
from .prepare import make_base, prepare
from .processes import kill_processes
from .programs import find_programs
from .relay import close_way, open_way
from .requests import read_request
from .stage import Stage, poll_stage, read_state, run_stage, start_stage, stop_stage
from .trees import discard

STAGES: Mapping[str, Callable[[Stage], dict[str, Any]]] = {
    "prepare": prepare,
    "base": make_base,
    "agent": run_agent,
    "collect": collect,
    "check": check,
}


def main() -> None:
    """Answer one request; or, started by `start_stage`, be a stage; or a person's session, started by sshd."""
    if len(sys.argv) == 4:
        _, verb, first, second = sys.argv
        if verb == "enter":
            sys.exit(run_enter(workspace=first, job_id=second))
        run_stage(first, STAGES[first], request_path=second)
        return
    try:
        verb = sys.argv[1] if len(sys.argv) == 2 else ""
        request = read_request(verb, sys.stdin.buffer.read())
        answer = {"ok": True, **VERBS[verb](request)}
    except Exception as error:
        answer = {"ok": False, **describe(error)}
    print(json.dumps(answer))


def version(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine runs us with."""
    git = shutil.which("git")
    said = subprocess.run([git, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode() if git else ""
    return {"python": ".".join(map(str, sys.version_info[:3])), "git": said.split()[2] if git else None}


def capabilities(request: Mapping[str, Any]) -> dict[str, Any]:
    """What of that which seals jobs from each other works here, for the rest the reasons, and what is open."""
    workspace = Path(request["workspace"])
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = find_missing(workspace)
    works = [name for name in (*CLONE, "proc", OVERLAY) if name not in missing]
    way = next(name for name, works in list_ways(missing).items() if works)
    return {
        "sealed": is_sealable(missing),
        "works": works,
        "missing": missing,
        "words": describe_cell(missing),
        "way": way,
        "open": find_exposures(),
    }


def start_agent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the agent in an environment that is there."""
    if read_state(Job(request), "prepare")["state"] != "done":
        raise Failure("not_prepared", "the job's environment is not prepared")
    if not request["argv"]:
        raise Failure("bad_request", "the agent has no command")
    return {"started": start_stage("agent", request)}


def start_check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the checks in an environment that is there, and in which nothing has run yet."""
    if read_state(Job(request), "prepare")["state"] != "done":
        raise Failure("not_prepared", "the environment for the checks is not prepared")
    return {"started": start_stage("check", request)}


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


def stop(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tell the agent to end."""
    stop_stage("agent", request)
    return {}


def kill(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill everything of the job."""
    killed, alive = kill_processes(Job(request).id)
    return {"killed": killed, "alive": alive}


def clean(request: Mapping[str, Any]) -> dict[str, Any]:
    """Kill everything of the job and remove its folder. Raises `Failure` while something is alive, or cannot go."""
    job = Job(request)
    with ended(job):
        return _clean(job)


def _clean(job: Job) -> dict[str, Any]:
    forget_keys(job)
    if kill_processes(job.id)[1]:
        raise Failure("still_alive", "a process of the job cannot be killed")
    if not job.root.is_symlink():
        clear(job)
    close_way(job)
    discard(job.root)
    return {}


VERBS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "version": version,
    "capabilities": capabilities,
    "inventory": take_inventory,
    "jobs": list_jobs,
    "programs": find_programs,
    "prepare": lambda request: {"started": start_stage("prepare", request)},
    "base": lambda request: {"started": start_stage("base", request)},
    "start": start_agent,
    "collect": lambda request: {"started": start_stage("collect", request)},
    "check": start_check,
    "poll": poll,
    "result": result,
    "relay": open_way,
    "stop": stop,
    "notify": lambda request: {"written": notify(Job(request), request["text"])},
    "kill": kill,
    "admit": admit,
    "dismiss": dismiss,
    "adopt": adopt,
    "clean": clean,
}
