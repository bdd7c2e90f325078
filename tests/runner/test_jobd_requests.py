"""What the machine-side program makes of requests that make no sense: a named refusal, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.jobd.files import Failure
from runner.jobd.requests import read_request
from tests.support.jobd import COLLECT, LIMITS, POLL, PREPARE, START, Jobd

ANYBODY: dict[str, Any] = {"workspace": "/srv/ptq", "job_id": "0123456789"}
GOOD: dict[str, dict[str, Any]] = {
    "prepare": {**PREPARE, "clone_url": "file:///x", **LIMITS, **ANYBODY},
    "start": {"argv": ["true"], "env": {"A": "b"}, "prompt": "", **START, **LIMITS, **ANYBODY},
    "collect": {"base_commit": "0" * 40, **COLLECT, **ANYBODY},
    "poll": {"stage": "agent", **POLL, **ANYBODY},
    "notify": {"text": "", **ANYBODY},
    "admit": {"public_key": "", "lasts_s": 0, "context": "", **ANYBODY},
    "adopt": {"earlier": "a123456789", **ANYBODY},
    "stop": ANYBODY,
    "kill": ANYBODY,
}


EDIT: dict[str, Any] = {"path": "x", "mode": "100644", "content": "eA==", "old_mode": None}
BAD_EDITS: list[Any] = [
    "x",
    {"x": EDIT},
    ["x"],
    [EDIT, None],
    [{name: value for name, value in EDIT.items() if name != "old_mode"}],
    *([EDIT | {"path": path}] for path in ("../x", "/x", "", ".", "x/", "x//y", "x\0", "\ud800", 7, None)),
    *([EDIT | {"path": path}] for path in (".git", ".git/config", "x/.GIT/hooks/y")),
    *([EDIT | {"mode": mode}] for mode in ("160000", "040000", "100600", 100644, "", None)),
    *([EDIT | {"content": content}] for content in (None, "no base64", 7, ["eA=="])),
    [EDIT | {"old_mode": 7}],
    [EDIT | {"mode": None, "content": ""}],
]


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


def test_edits_and_files_that_make_sense_are_taken() -> None:
    edits = [EDIT, EDIT | {"mode": "120000"}, EDIT | {"mode": None, "content": None, "old_mode": "160000"}]
    edits += [EDIT | {"path": path} for path in ("a/b", "...", ".gitignore", "x y/ü\n", "-rf")]
    request = GOOD["prepare"] | {"changes": edits, "held_back": edits, "base_commit": "f" * 40}
    assert read_request("prepare", json.dumps(request).encode()) == request
    request = GOOD["start"] | {"files": {".x/{worktree}/y": "", "z": "eA=="}, "base_skills": {".x/s": "skills/s"}}
    assert read_request("start", json.dumps(request).encode()) == request


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
        ("adopt", {"earlier": "../../../etc"}),
        ("adopt", {"earlier": None}),
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
        ("start", {"files": {"../x": ""}}),
        ("start", {"files": {"/etc/x": ""}}),
        ("start", {"files": {"x/./y": ""}}),
        ("start", {"files": {"x//y": ""}}),
        ("start", {"files": {"x/": ""}}),
        ("start", {"files": {"": ""}}),
        ("start", {"files": {"..": ""}}),
        ("start", {"files": {"x\0": ""}}),
        ("start", {"files": {"\ud800": ""}}),
        ("start", {"files": {"x": "no base64"}}),
        ("start", {"files": {"x": "ünï"}}),
        ("start", {"files": {"x": "eA"}}),
        ("start", {"files": {"x": None}}),
        ("start", {"files": [["x", ""]]}),
        ("prepare", {"companions": [{"name": "../x", "url": "u", "branch": "b"}]}),
        ("prepare", {"companions": [{"name": "x", "url": "u"}]}),
        ("prepare", {"companions": ["x"]}),
        ("start", {"skill_folders": {"../x": "y"}}),
        ("start", {"base_skills": {"../x": "y"}}),
        ("start", {"base_skills": {"x": "../y"}}),
        ("start", {"base_skills": {"x": "/y"}}),
        ("start", {"base_skills": {"x": ""}}),
        ("start", {"base_skills": {"x": 7}}),
        ("start", {"base_skills": ["x"]}),
        ("start", {"base_commit": "main"}),
        ("start", {"base_commit": "0" * 39}),
        ("start", {"base_commit": "0" * 40 + "\n"}),
        ("start", {"base_commit": ["0" * 40]}),
        ("start", {"tail_glob": None}),
        ("start", {"tail_word": ["x"]}),
        ("start", {"stop_grace_s": -1}),
        ("start", {"stop_grace_s": 0.5}),
        ("prepare", {"base_commit": "--upload-pack=x"}),
        *(("prepare", {name: value}) for name in ("changes", "held_back") for value in BAD_EDITS),
        ("collect", {"base_commit": "HEAD"}),
        ("notify", {"text": "\0"}),
        ("notify", {"text": ["x"]}),
        ("stop", {"job_id": "../../../etc"}),
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
    assert jobd.ask("poll", stage="a\nb", **POLL)["error"] == "bad_request"
    assert not jobd.root.exists()


@pytest.mark.slow
def test_an_agent_without_a_command_is_refused(jobd: Jobd) -> None:
    jobd.prepare()
    assert jobd.ask("start", argv=[], env={}, prompt="", **START, **LIMITS)["error"] == "bad_request"
    assert jobd.poll("agent")["state"] == "absent"
