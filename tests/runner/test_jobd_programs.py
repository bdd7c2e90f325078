"""Which programs a machine has, as the program there says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.jobd import Jobd


def place(folder: Path, name: str, script: str) -> str:
    """A program of ours, and its path."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_programs_say_their_version_and_what_is_not_there_is_named(jobd: Jobd, tmp_path: Path) -> None:
    agent = place(tmp_path, "agent", "echo '2.1.0 (Agent)'; echo more")
    answer = jobd.call("programs", programs=["sh", "/opt/none"], versions=["git", agent, "ptq-no-such-program"])
    assert abs(answer["now"] - time.time()) < 60
    found = answer["programs"]
    assert found["git"].startswith("git version ")
    assert found[agent] == "2.1.0 (Agent)"
    assert (found["sh"], found["/opt/none"], found["ptq-no-such-program"]) == ("", None, None)


@pytest.mark.parametrize("script", ["exit 3", "echo out of order >&2; exit 1", "kill -9 $$"])
def test_a_program_that_cannot_say_its_version_is_there_nevertheless(jobd: Jobd, tmp_path: Path, script: str) -> None:
    agent = place(tmp_path, "agent", script)
    assert jobd.call("programs", programs=[], versions=[agent])["programs"] == {agent: ""}


def test_a_program_that_is_not_asked_is_not_started(jobd: Jobd, tmp_path: Path) -> None:
    agent = place(tmp_path, "agent", f"touch {tmp_path}/started")
    assert jobd.call("programs", programs=[agent], versions=[])["programs"] == {agent: ""}
    assert not (tmp_path / "started").exists()
