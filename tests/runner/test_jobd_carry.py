"""What a later attempt goes on from: the commit and the edits of an earlier one, and the edits that are held back."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.carry import HeldBack, find_held_back
from runner.jobd.files import Failure
from tests.support.jobd import Change, Jobd, Repository, make_repository
from tests.support.plain_worktree import PlainWorktree, check_out, find_change_of

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]


def edit(path: str, content: bytes | None, mode: str | None = "100644", old_mode: str | None = None) -> dict[str, Any]:
    """An edit as a request has it."""
    encoded = None if content is None else base64.b64encode(content).decode()
    return {"path": path, "mode": None if content is None else mode, "content": encoded, "old_mode": old_mode}


def finish(jobd: Jobd, agent: str = "true", **collect: Any) -> Change:
    """What is collected after an agent, in an environment that is prepared."""
    ended = jobd.agent(agent)
    assert ended["result"]["exit_status"] == 0, ended["log"].decode()
    collected = jobd.collect(**collect)
    assert collected["state"] == "done", collected["message"]
    return Change(jobd.result())


# The base commit


def test_an_attempt_starts_from_the_commit_of_an_earlier_one_and_from_the_newest_if_there_is_none(
    jobd: Jobd, repository: Repository
) -> None:
    """One that the branch has lost is in the clone, or can be fetched."""
    first = repository.git("rev-parse", "main")
    lost = repository.commit({"a.txt": "lost\n", "b.txt": "newer\n"})
    assert jobd.prepare(changes=[edit("a.txt", b"edited\n")])["result"]["base_commit"] == lost
    assert (jobd.find("a.txt").read_text(), jobd.find("b.txt").read_text()) == ("edited\n", "newer\n")
    repository.git("commit", "--quiet", "--amend", "--message=rewritten")
    unseen = repository.git("rev-parse", "main")
    repository.git("commit", "--quiet", "--amend", "--message=rewritten again")
    for base, text in ((first, "one\ntwo\nthree\n"), (lost, "lost\n"), (unseen, "lost\n")):
        later = jobd.beside()
        assert later.prepare(base_commit=base)["result"]["base_commit"] == base
        assert later.find("a.txt").read_text() == text


def test_a_commit_that_nobody_has_any_more_is_told_as_such(jobd: Jobd) -> None:
    poll = jobd.prepare(base_commit="1" * 40)
    assert (poll["error"], poll["message"]) == (
        "base_gone",
        "the commit that the earlier attempt started from is no longer in the repository",
    )
    assert not jobd.worktree.exists()


def test_a_branch_that_is_gone_is_told_before_the_commit(jobd: Jobd, repository: Repository) -> None:
    base = repository.git("rev-parse", "main")
    assert jobd.prepare(base_branch="no-such", base_commit=base)["error"] == "branch_missing"


# Edits


EVERY_KIND = [
    edit("a.txt", b"one\n"),
    edit("b.txt", None, old_mode="100644"),
    edit("dir/c.txt", None, old_mode="100644"),
    edit("dir", b"a file\n"),
    edit("new/deep/tool", b"#!/bin/sh\necho ran\n", "100755"),
    edit("new/link", b"/etc/passwd", "120000"),
    edit('odd "name"\n\tü', b"\0\xff"),
    edit("-rf", b""),
]
CONVERTED: dict[str, str | bytes] = {
    ".gitattributes": "*.bat text eol=crlf\n*.u16 text working-tree-encoding=UTF-16LE eol=lf\n",
    "run.bat": "a\r\n",
    "wide.u16": "wide\n".encode("utf-16-le"),
}
CONFIGURED: dict[str, str | bytes] = {
    **{"a.txt": "one\ntwo\nthree\n", "b.txt": "bee\n", "dir/c.txt": "sea\n", "gone.txt": "gone\n", "x.sh": "echo\n"},
    ".claude/settings.json": "old\n",
}
HELD = [edit(".claude/settings.json", b"new\n", old_mode="100644"), edit("AGENTS.md", b"do\n"), edit("gone.txt", None)]


def test_edits_of_every_kind_are_carried_over_and_those_that_are_held_back_are_live_for_no_run(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "origin", {**CONFIGURED, **CONVERTED})
    jobd = Jobd(tmp_path, repository)
    plant = b"mkdir -p ~/.claude; touch ~/.claude/settings.json; echo ran\n"
    edits = [*EVERY_KIND, edit("x.sh", plant), edit("run.bat", b"b\n"), edit("wide.u16", b"wider\n")]
    prepared = jobd.prepare(changes=edits, held_back=HELD, setup=["ls", "cat a.txt .claude/settings.json; sh x.sh"])
    assert prepared["state"] == "done"
    listed = b"\na.txt\nb.txt\ndir\ngone.txt\nrun.bat\nwide.u16\nx.sh\n"
    assert listed in prepared["log"], "the set-up sees the base commit"
    assert b"\none\ntwo\nthree\nold\n\n" in prepared["log"]
    assert b"ran\n" not in prepared["log"], "nothing that an attempt wrote runs before the next one's agent"
    assert not jobd.find("../home/.claude").exists()
    assert (jobd.find("x.sh").read_bytes(), jobd.find("a.txt").read_text()) == (plant, "one\n")
    assert (jobd.find("run.bat").read_bytes(), jobd.find("wide.u16").read_bytes()) == (
        b"b\r\n",
        "wider\n".encode("utf-16-le"),
    )
    assert jobd.find("new/link").readlink() == Path("/etc/passwd")

    # What is held back is put back where nobody may enter, too.
    agent = "cat .claude/settings.json; ls; new/deep/tool; git status --short | sort; echo two >> a.txt"
    change = finish(jobd, f"{agent}; chmod 000 .claude/settings.json .claude gone.txt", lint=["cat AGENTS.md"])
    said = jobd.poll("agent")["log"].decode()
    assert said.startswith("old\n-rf\na.txt\ndir\ngone.txt\nnew\nodd ")
    assert "\nran\n" in said
    assert {" M a.txt", " D b.txt", " D dir/c.txt", "?? new/"} < {*said.splitlines()}
    assert not any("gone.txt" in line or "claude" in line for line in said.splitlines() if line != "gone.txt")
    assert jobd.poll("collect")["log"].endswith(b"do\n")
    assert change.contents == {
        **{"a.txt": b"one\ntwo\n", "b.txt": None, "dir/c.txt": None, "dir": b"a file\n", "new/link": b"/etc/passwd"},
        **{"new/deep/tool": b"#!/bin/sh\necho ran\n", 'odd "name"\n\tü': b"\0\xff", "-rf": b"", "x.sh": plant},
        **{"run.bat": b"b\n", "wide.u16": b"wider\n"},
        **{".claude/settings.json": b"new\n", "AGENTS.md": b"do\n", "gone.txt": None},
    }
    assert (change.modes["new/deep/tool"], change.modes["new/link"]) == ("100755", "120000")
    assert change.problems == []


def test_what_an_attempt_changed_is_what_the_next_one_starts_with(repository: Repository) -> None:
    script = "mkdir x; mv a.txt x/a; chmod +x b.txt; rm -r dir; ln -s x dir; printf '\\377' > new"
    first, later = find_change_of(repository, script), check_out(repository)
    later.carry_over(first.result["changes"])
    assert later.collect().patch == first.patch


def test_edits_are_taken_back_like_any_others(repository: Repository) -> None:
    worktree = check_out(repository)
    assert worktree.carry_over(EVERY_KIND) == []
    worktree.run("rm -rf ./* ./-rf; git checkout -q -- .")
    assert worktree.collect().modes == {}


def test_nothing_is_written_through_a_link_of_the_repository(tmp_path: Path, repository: Repository) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("safe\n")
    (repository.folder / "link").symlink_to(outside)
    (repository.folder / "file").symlink_to(outside / "f")
    repository.commit()
    worktree = check_out(repository)
    assert (
        worktree.carry_over([edit("link/f", b"x"), edit("link/new", b"x"), edit("file", b"x"), edit("link", None)])
        == []
    )
    assert [path.name for path in outside.iterdir()] == ["f"]
    assert (outside / "f").read_text() == "safe\n"
    assert worktree.collect().contents == {"link": None, "link/f": b"x", "link/new": b"x", "file": b"x"}


def test_a_link_among_the_edits_is_not_followed_by_another(repository: Repository, tmp_path: Path) -> None:
    assert check_out(repository).carry_over([edit("x", str(tmp_path).encode(), "120000"), edit("x/evil", b"x")]) == []
    assert not (tmp_path / "evil").exists()


# Edits that are held back


@pytest.fixture
def configured(tmp_path: Path) -> PlainWorktree:
    """A worktree with an edit, and edits to what configures agents are held back (`HELD`)."""
    worktree = check_out(make_repository(tmp_path / "origin", CONFIGURED))
    assert worktree.carry_over([edit("a.txt", b"one\n")]) == []
    return worktree


EDITED_ANEW = "an earlier edit of `{}` was left out: the run edited it again"


@pytest.mark.parametrize(
    ("script", "path", "now"),
    [
        ("echo newer > .claude/settings.json", ".claude/settings.json", b"newer\n"),
        ("chmod +x .claude/settings.json", ".claude/settings.json", b"old\n"),
        ("rm .claude/settings.json", ".claude/settings.json", None),
        ("rm -r .claude", ".claude/settings.json", None),
        ("echo mine > AGENTS.md", "AGENTS.md", b"mine\n"),
        ("ln -s a.txt AGENTS.md", "AGENTS.md", b"a.txt"),
        ("echo more >> gone.txt", "gone.txt", b"gone\nmore\n"),
        ("truncate -s 90000 gone.txt", "gone.txt", b"gone\n" + b"\0" * 89995),
    ],
)
def test_a_newer_edit_wins_and_the_other_ones_are_put_back(
    configured: PlainWorktree, script: str, path: str, now: bytes | None
) -> None:
    configured.run(script)
    change = configured.collect(HELD)
    assert change.contents[path] == now
    assert {".claude/settings.json", "AGENTS.md", "gone.txt"} <= set(change.modes)
    assert change.problems == [EDITED_ANEW.format(path)]


def test_the_same_edit_made_anew_is_no_problem(configured: PlainWorktree) -> None:
    configured.run("echo new > .claude/settings.json; rm gone.txt; git add -A")
    change = configured.collect(HELD)
    assert change.contents[".claude/settings.json"] == b"new\n"
    assert EDITED_ANEW.format(".claude/settings.json") not in change.problems


@pytest.mark.parametrize(
    "script",
    [
        "rm -r .claude; mkdir ../out; ln -s ../out .claude",
        "mv .claude ../out; ln -s ../out .claude",
        "rm .claude/settings.json; ln -s ../../out/x .claude/settings.json; mkdir ../out",
        "mkdir ../out; rm -rf .git; ln -s ../out .git; echo y > .claude/settings.json",
    ],
)
def test_what_is_put_back_is_never_written_through_a_link(configured: PlainWorktree, script: str) -> None:
    configured.run(script)
    change = configured.collect(HELD)
    assert [path.read_text() for path in configured.path.with_name("out").iterdir()] in ([], ["old\n"])
    assert EDITED_ANEW.format(".claude/settings.json") in change.problems
    assert change.contents["AGENTS.md"] == b"do\n"


@pytest.mark.parametrize("script", ["mkfifo AGENTS.md", "mkdir AGENTS.md; echo x > AGENTS.md/x"])
def test_what_is_no_plain_file_is_not_replaced(configured: PlainWorktree, script: str) -> None:
    configured.run(script)
    change = configured.collect(HELD)
    assert change.contents.get("AGENTS.md") is None
    assert change.problems == [EDITED_ANEW.format("AGENTS.md")]


def test_what_is_held_back_does_not_make_anybody_read_a_terabyte(configured: PlainWorktree) -> None:
    configured.run("truncate -s 1T gone.txt || truncate -s 100G gone.txt")
    problems: list[str] = []
    began = time.monotonic()
    with pytest.raises(Failure) as failed:
        configured.collect(HELD, problems)
    assert time.monotonic() - began < 30
    assert failed.value.name == "change_too_large"
    assert EDITED_ANEW.format("gone.txt") in problems


SPOILED = ['"x"', "[7]", "[{}]", '[{"path": "../evil", "mode": "100644", "content": "eA==", "old_mode": null}]']


@pytest.mark.parametrize("held_back", SPOILED)
def test_an_agent_that_spoils_what_is_held_back_spoils_that_alone(tmp_path: Path, held_back: str) -> None:
    """It may have written to the request where it is not sealed."""
    jobd = Jobd(tmp_path, Repository(tmp_path))
    jobd.job.make_folders()
    jobd.job.of_stage("prepare", "request").write_text(f'{{"held_back": {held_back}}}')
    assert find_held_back(jobd.job, 50) == HeldBack([], "")
