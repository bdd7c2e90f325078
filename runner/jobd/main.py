"""The entry point: reads one request and prints one answer. Two verbs differ: `converse` answers many requests, and
`enter` is a person's session at a terminal.

Every answer has `ok`. An answer that is not ok has `error`, a name of the protocol, and `message`, a clause for
people. Each verb imports only the modules that it needs, because importing all of them takes most of an answer's time.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .files import JobPaths, respond
from .requests import read_request
from .safe_paths import reopen

Place = tuple[str, str]
"""A module of this program, and a function in it."""

VERBS: Mapping[str, Place] = {
    "version": ("verbs.programs", "describe_python"),
    "capabilities": ("verbs.capabilities", "describe_capabilities"),
    "inventory": ("verbs.inventory", "take_inventory"),
    "jobs": ("verbs.inventory", "list_jobs"),
    "programs": ("verbs.programs", "find_programs"),
    "prepare": ("stages.starting", "prepare"),
    "base": ("stages.starting", "base"),
    "start": ("stages.starting", "start_agent"),
    "collect": ("stages.starting", "collect"),
    "check": ("stages.starting", "start_check"),
    "poll": ("stages.states", "poll"),
    "result": ("stages.states", "find_result"),
    "relay": ("proxy.sockets", "make_socket_path"),
    "stop": ("stages.states", "stop_agent"),
    "notify": ("environment.home", "notify"),
    "tell": ("stages.told", "tell"),
    "kill": ("verbs.cleaning", "kill"),
    "admit": ("access.admission", "admit"),
    "dismiss": ("access.admission", "dismiss"),
    "adopt": ("access.adopt", "adopt"),
    "clean": ("verbs.cleaning", "clean"),
}

STAGES: Mapping[str, Place] = {
    "prepare": ("verbs.prepare", "prepare"),
    "base": ("verbs.prepare", "make_base"),
    "agent": ("verbs.agent", "run_agent"),
    "collect": ("verbs.collect", "collect"),
    "check": ("verbs.check", "check"),
}


def find(place: Place) -> Callable[..., Any]:
    """Import the module and return the function."""
    module, name = place
    found: Callable[..., Any] = getattr(import_module(f".{module}", __package__), name)
    return found


def forbid_core_dumps() -> None:
    """Keep this process and its children from leaving their memory on the machine when they crash.

    `kernel.core_pattern` can name a program that gets the memory. The kernel starts the program if the limit is 0
    bytes, but not if it is 1 byte (Linux's fs/coredump.c). If the limit is 0 already, only root can raise it. The
    program then has to respect the limit itself.
    """
    limit = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def main() -> None:
    """Answer one request or many, run a stage (started by `starting`), or run a person's session (started by sshd)."""
    forbid_core_dumps()
    if len(sys.argv) == 4:
        _, verb, first, second = sys.argv
        if verb == "enter":
            sys.exit(find(("access.enter", "run_enter"))(workspace=first, job_id=second))
        find(("stages.stage", "run_stage"))(first, find(STAGES[first]), request_path=second)
        return
    if sys.argv[1:] == ["converse"]:
        find(("verbs.conversation", "converse"))()
        return
    print(json.dumps(respond(answer)))


def answer() -> Mapping[str, Any]:
    """Answer the request on standard input with the verb on the command line."""
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    request = read_request(verb, sys.stdin.buffer.read())
    if "job_id" in request:
        reopen(JobPaths(request).root)
    answered: Mapping[str, Any] = find(VERBS[verb])(request)
    return answered
