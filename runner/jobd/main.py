"""The verbs: reads one request, prints one answer. Only `enter` is for a person at a terminal, and `converse` goes on.

Every answer has `ok`. One that is not ok has `error`, a name of the protocol, and `message`, a clause for people. Only
those of our modules are imported that a verb needs: to import all of them took most of the time of an answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .files import respond
from .requests import read_request

Place = tuple[str, str]
"""A module of ours, and a function there."""

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
    "relay": ("proxy.sockets", "open_way"),
    "stop": ("stages.states", "stop_agent"),
    "notify": ("environment.home", "notify"),
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
    """The function, once its module is imported."""
    module, name = place
    found: Callable[..., Any] = getattr(import_module(f".{module}", __package__), name)
    return found


def main() -> None:
    """Answer one request, or many; or, started by `starting`, be a stage; or a person's session, started by sshd."""
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
    """What the one verb of this process has to say to the request on its standard input."""
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    request = read_request(verb, sys.stdin.buffer.read())
    answered: Mapping[str, Any] = find(VERBS[verb])(request)
    return answered
