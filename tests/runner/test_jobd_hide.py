"""What configures a coding agent is out of its sight while it runs, and no part of the change afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.jobd.environment.hide import bring_back, hide
from runner.jobd.files import JobPaths
from tests.support.jobd import Change, Jobd, Repository
from tests.support.plain_worktree import check_out_files

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

FILES = {".pi/settings.json": "{}\n", "sub/.PI/x": "x\n", "sub/.pi": "a file\n", "pi/.pi.txt": "harmless\n"}


def test_hidden_files_are_not_there_for_the_agent_and_what_it_writes_there_is_its_change(
    jobd: Jobd, repository: Repository
) -> None:
    repository.commit(FILES)
    jobd.prepare()
    look = "find . -iname '.pi*' -not -path './.git*' > \"$PTQ_OUTPUT_DIR/report.md\""
    write = "mkdir .pi; echo new > .pi/settings.json; echo more > .pi/more"
    ended = jobd.agent(f"{look}; {write}", hidden=[".pi"])
    assert ended["result"]["exit_status"] == 0, ended["log"].decode()
    collected = jobd.collect(hidden=[".pi"])
    assert collected["state"] == "done", collected["message"]
    found = Change(jobd.result())
    assert found.result["report"] == "./pi/.pi.txt\n"
    assert found.contents == {".pi/settings.json": b"new\n", ".pi/more": b"more\n"}
    assert jobd.find("sub/.PI/x").read_text() == "x\n", "what the agent has left alone is there again"


def test_nothing_is_brought_back_through_a_link(tmp_path: Path) -> None:
    worktree = check_out_files(tmp_path, FILES)
    outside = tmp_path / "outside"
    outside.mkdir()
    worktree.run(f"rm -r .pi sub; ln -s {outside} sub; ln -s {outside} .pi")
    request = {"hidden": [".pi"], "base_commit": worktree.base_commit, "timeout_s": 20}
    bring_back(worktree.folders, request)
    assert list(outside.iterdir()) == []
    found = worktree.collect()
    assert found.modes["sub"] == found.modes[".pi"] == "120000"
    assert found.modes[".pi/settings.json"] is None


def test_without_names_nothing_is_hidden(tmp_path: Path) -> None:
    job = JobPaths({"workspace": str(tmp_path), "job_id": "0123456789"})
    (job.worktree / ".pi").mkdir(parents=True)
    (job.worktree / "sub" / ".Pi").mkdir(parents=True)
    hide(job, [], float("inf"))
    assert {path.name for path in job.worktree.iterdir()} == {".pi", "sub"}
    hide(job, [".pi"], float("inf"))
    assert [path.name for path in job.worktree.rglob("*")] == ["sub"]
