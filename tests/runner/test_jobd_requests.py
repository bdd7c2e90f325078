"""What the machine-side program makes of requests that make no sense: a named refusal, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.jobd.files import Failure
from runner.jobd.requests import read_request
from tests.support.jobd import COLLECT, LIMITS, PREPARE, START, Jobd

ANYBODY: dict[str, Any] = {"workspace": "/srv/ptq", "job_id": "0123456789"}
GOOD: dict[str, dict[str, Any]] = {
    "prepare": {**PREPARE, "clone_url": "file:///x", **LIMITS, **ANYBODY},
    "start": {"argv": ["true"], "env": {"A": "b"}, "prompt": "", **START, **LIMITS, **ANYBODY},
    "collect": {"base_commit": "0" * 40, **COLLECT, **ANYBODY},
    "poll": {"stage": "agent", "log_offset": 0, "log_limit": 0, **ANYBODY},
    "notify": {"text": "", **ANYBODY},
    "stop": ANYBODY,
    "kill": ANYBODY,
}


def refuse(verb: str, request: object) -> str:
    """The sentence with which a request is refused."""
    with pytest.raises(Failure) as caught:
        read_request(verb, request if isinstance(request, bytes) else json.dumps(request).encode())
    assert caught.value.name == "bad_request"
    assert len(caught.value.message.split()) > 3
    return caught.value.message


@pytest.mark.parametrize("verb", GOOD)
def test_a_request_that_makes_sense_is_taken_as_it_is(verb: str) -> None:
    assert read_request(verb, json.dumps(GOOD[verb]).encode()) == GOOD[verb]


@pytest.mark.parametrize(
    ("verb", "oddity"),
    [
        ("nonsense", {}),
        ("stage", {}),
        ("", {}),
        ("kill", {"job_id": "../../../etc"}),
        ("kill", {"job_id": "0123456789\n"}),
        ("kill", {"job_id": "ABCDEF0123"}),
        ("kill", {"job_id": None}),
        ("kill", {"workspace": "relative/path"}),
        ("kill", {"workspace": "/with/\0"}),
        ("kill", {"workspace": ["/tmp"]}),
        ("poll", {"stage": None}),
        ("poll", {"log_offset": -1}),
        ("poll", {"log_offset": 1.5}),
        ("poll", {"log_offset": True}),
        ("poll", {"log_offset": 10**30}),
        ("poll", {"log_limit": "10"}),
        ("start", {"argv": "true"}),
        ("start", {"argv": ["true", 7]}),
        ("start", {"argv": ["true", "\0"]}),
        ("start", {"argv": ["\ud800"]}),
        ("start", {"env": {"NAME": 7}}),
        ("start", {"env": {"NA=ME": "x"}}),
        ("start", {"env": [["NAME", "x"]]}),
        ("start", {"prompt": "\udc80"}),
        ("prepare", {"setup": "make"}),
        ("prepare", {"clone_url": None}),
        ("collect", {"lint": [["make"]]}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_sentence(verb: str, oddity: dict[str, Any]) -> None:
    refuse(verb, {**GOOD.get(verb, {}), **oddity})


@pytest.mark.parametrize("verb", GOOD)
def test_a_request_that_lacks_a_field_is_refused_and_the_field_is_named(verb: str) -> None:
    for field in GOOD[verb]:
        message = refuse(verb, {name: value for name, value in GOOD[verb].items() if name != field})
        assert repr(field) in message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[1]", b"null", b"7", b'"text"', b"[" * 100_000, b'{"job_id": %s}' % (b"9" * 5000)]
)
@pytest.mark.parametrize("verb", ["version", "kill"])
def test_a_request_that_is_no_object_is_refused(verb: str, body: bytes) -> None:
    refuse(verb, body)


def test_a_refusal_is_one_line_of_answer_like_any_other(jobd: Jobd) -> None:
    for verb in ("", "nonsense", "stage", "kill"):
        answer = jobd.send(verb, b"nonsense")
        assert (answer["ok"], answer["error"]) == (False, "bad_request")
    assert jobd.ask("poll", stage="a\nb", log_offset=0, log_limit=0)["error"] == "bad_request"
    assert not jobd.root.exists()


def test_an_agent_without_a_command_is_refused(jobd: Jobd) -> None:
    jobd.prepare()
    assert jobd.ask("start", argv=[], env={}, prompt="", **START, **LIMITS)["error"] == "bad_request"
    assert jobd.poll("agent")["state"] == "absent"
