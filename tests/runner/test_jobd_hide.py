"""What configures a coding agent is out of its sight while it runs, and no part of the change afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobd import Change, Jobd, Repository

pytestmark = pytest.mark.slow

FILES = {".pi/settings.json": "{}\n", "sub/.PI/x": "x\n", "sub/.pi": "a file\n", "pi/.pi.txt": "harmless\n"}


@pytest.fixture
def planted(jobd: Jobd, repository: Repository) -> Jobd:
    repository.commit(FILES)
    jobd.prepare()
    return jobd


def run(jobd: Jobd, agent: str) -> Change:
    ended = jobd.agent(agent, hidden=[".pi"])
    assert ended["result"]["exit_status"] == 0, ended["log"].decode()
    collected = jobd.collect(hidden=[".pi"])
    assert collected["state"] == "done", collected["message"]
    return Change(jobd.result())


def test_hidden_files_are_not_there_for_the_agent_and_no_change(planted: Jobd) -> None:
    found = run(planted, "find . -iname '.pi*' -not -path './.git*' > \"$PTQ_OUTPUT_DIR/report.md\"")
    assert found.result["report"] == "./pi/.pi.txt\n"
    assert found.modes == {}
    assert planted.find(".pi/settings.json").read_text() == "{}\n"


def test_what_the_agent_writes_there_is_its_change(planted: Jobd) -> None:
    found = run(planted, "mkdir .pi; echo new > .pi/settings.json; echo more > .pi/more")
    assert found.contents == {".pi/settings.json": b"new\n", ".pi/more": b"more\n"}


def test_nothing_is_brought_back_through_a_link(planted: Jobd, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    found = run(planted, f"rm -r sub; ln -s {outside} sub; ln -s {outside} .pi")
    assert list(outside.iterdir()) == []
    assert found.modes["sub"] == found.modes[".pi"] == "120000"
    assert found.modes[".pi/settings.json"] is None


def test_without_names_nothing_is_hidden(planted: Jobd) -> None:
    assert planted.agent("cat .pi/settings.json", hidden=[])["log"] == b"{}\n"
