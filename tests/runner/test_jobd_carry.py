"""What a later attempt goes on from: the commit and the edits of an earlier one, and the edits that are held back."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobd import Change, Jobd, Repository, make_repository

pytestmark = pytest.mark.slow


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


def test_an_attempt_starts_from_the_commit_of_an_earlier_one(jobd: Jobd, repository: Repository) -> None:
    base = repository.git("rev-parse", "main")
    repository.commit({"a.txt": "newer\n"})
    prepared = jobd.prepare(base_commit=base)
    assert (prepared["state"], prepared["result"]["base_commit"]) == ("done", base)
    assert jobd.find("a.txt").read_text() == "one\ntwo\nthree\n"
    assert finish(jobd, "echo x > x", base_commit=base).contents == {"x": b"x\n"}


def test_a_commit_that_the_branch_has_lost_is_found_in_the_clone_or_fetched(jobd: Jobd, repository: Repository) -> None:
    lost = repository.commit({"a.txt": "lost\n"})
    jobd.prepare()
    repository.git("commit", "--quiet", "--amend", "--message=rewritten")
    unseen = repository.git("rev-parse", "main")
    repository.git("commit", "--quiet", "--amend", "--message=rewritten again")
    for base in (lost, unseen):
        later = jobd.beside()
        assert later.prepare(base_commit=base)["result"]["base_commit"] == base
        assert later.find("a.txt").read_text() == "lost\n"


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


def test_every_kind_of_edit_is_carried_over(jobd: Jobd) -> None:
    assert jobd.prepare(changes=EVERY_KIND)["state"] == "done"
    assert jobd.find("new/link").readlink() == Path("/etc/passwd")
    assert jobd.find("a.txt").read_text() == "one\n"
    change = finish(jobd, "new/deep/tool; git status --short | sort; echo two >> a.txt")
    assert change.contents == {
        **{"a.txt": b"one\ntwo\n", "b.txt": None, "dir/c.txt": None, "dir": b"a file\n", "new/link": b"/etc/passwd"},
        **{"new/deep/tool": b"#!/bin/sh\necho ran\n", 'odd "name"\n\tü': b"\0\xff", "-rf": b""},
    }
    assert (change.modes["new/deep/tool"], change.modes["new/link"]) == ("100755", "120000")
    assert change.problems == []
    status = jobd.poll("agent")["log"].decode().splitlines()
    assert {" M a.txt", " D b.txt", " D dir/c.txt", "?? new/"} < set(status)


def test_nothing_that_an_attempt_wrote_runs_before_the_next_ones_agent(jobd: Jobd) -> None:
    plant = b"mkdir -p ~/.claude; touch ~/.claude/settings.json; echo ran\n"
    prepared = jobd.prepare(changes=[edit("a.txt", plant)], setup=["cat a.txt; sh a.txt || true"])
    assert b"two\n" in prepared["log"], "the set-up sees the base commit"
    assert b"ran\n" not in prepared["log"]
    assert not jobd.find("../home/.claude").exists()
    assert jobd.find("a.txt").read_bytes() == plant


def test_what_an_attempt_changed_is_what_the_next_one_starts_with(jobd: Jobd) -> None:
    first = jobd.run("mkdir x; mv a.txt x/a; chmod +x b.txt; rm -r dir; ln -s x dir; printf '\\377' > new")
    later = jobd.beside()
    assert later.prepare(changes=first.result["changes"])["state"] == "done"
    assert finish(later).result["patch"] == first.patch


def test_edits_are_taken_back_like_any_others(jobd: Jobd) -> None:
    jobd.prepare(changes=EVERY_KIND)
    assert finish(jobd, "rm -rf ./* ./-rf; git checkout -q -- .").modes == {}


def test_edits_of_files_that_git_converts_arrive_as_they_were(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        ".gitattributes": "*.bat text eol=crlf\n*.u16 text working-tree-encoding=UTF-16LE eol=lf\n",
        "run.bat": "a\r\n",
        "wide.u16": "wide\n".encode("utf-16-le"),
    }
    jobd = Jobd(tmp_path, make_repository(tmp_path / "origin", files))
    jobd.prepare(changes=[edit("run.bat", b"b\n"), edit("wide.u16", b"wider\n")])
    assert jobd.find("run.bat").read_bytes() == b"b\r\n"
    assert jobd.find("wide.u16").read_bytes() == "wider\n".encode("utf-16-le")
    assert finish(jobd).contents == {"run.bat": b"b\n", "wide.u16": b"wider\n"}


def test_edits_lie_over_a_newer_commit_when_no_other_is_asked_for(jobd: Jobd, repository: Repository) -> None:
    repository.commit({"a.txt": "newer\n", "b.txt": "newer\n"})
    jobd.prepare(changes=[edit("a.txt", b"edited\n")])
    assert jobd.find("b.txt").read_text() == "newer\n"
    assert finish(jobd).contents == {"a.txt": b"edited\n"}


def test_nothing_is_written_through_a_link_of_the_repository(tmp_path: Path, repository: Repository) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("safe\n")
    (repository.folder / "link").symlink_to(outside)
    (repository.folder / "file").symlink_to(outside / "f")
    repository.commit()
    jobd = Jobd(tmp_path, repository)
    changes = [edit("link/f", b"x"), edit("link/new", b"x"), edit("file", b"x"), edit("link", None)]
    assert jobd.prepare(changes=changes)["state"] == "done"
    assert [path.name for path in outside.iterdir()] == ["f"]
    assert (outside / "f").read_text() == "safe\n"
    assert finish(jobd).contents == {"link": None, "link/f": b"x", "link/new": b"x", "file": b"x"}


def test_a_link_among_the_edits_is_not_followed_by_another(jobd: Jobd, tmp_path: Path) -> None:
    changes = [edit("x", str(tmp_path).encode(), "120000"), edit("x/evil", b"x")]
    jobd.prepare(changes=changes)
    assert not (tmp_path / "evil").exists()


# Edits that are held back


HELD = [edit(".claude/settings.json", b"new\n", old_mode="100644"), edit("AGENTS.md", b"do\n"), edit("b.txt", None)]


@pytest.fixture
def configured(tmp_path: Path, repository: Repository) -> Jobd:
    """A job with edits to what configures agents, that are held back, and another one that is not."""
    return configure(Jobd(tmp_path, repository), repository)


def configure(jobd: Jobd, repository: Repository) -> Jobd:
    """Prepare such a job."""
    repository.commit({".claude/settings.json": "old\n"})
    jobd.prepare(held_back=HELD, changes=[edit("a.txt", b"one\n")], setup=["cat .claude/settings.json b.txt; ls"])
    return jobd


def test_what_is_held_back_is_live_for_no_run_and_in_the_change(configured: Jobd) -> None:
    assert b"\nold\nbee\na.txt\nb.txt\ndir\n" in configured.poll("prepare")["log"]
    change = finish(configured, "cat .claude/settings.json; ls; echo x > x", lint=["cat AGENTS.md"])
    assert configured.poll("agent")["log"] == b"old\na.txt\nb.txt\ndir\n"
    assert configured.poll("collect")["log"].endswith(b"do\n")
    assert change.contents == {
        **{"a.txt": b"one\n", "x": b"x\n"},
        **{".claude/settings.json": b"new\n", "AGENTS.md": b"do\n", "b.txt": None},
    }
    assert change.problems == []


EDITED_ANEW = "an earlier edit of `{}` was left out: the run edited it again"


@pytest.mark.parametrize(
    ("deed", "path", "now"),
    [
        ("echo newer > .claude/settings.json", ".claude/settings.json", b"newer\n"),
        ("chmod +x .claude/settings.json", ".claude/settings.json", b"old\n"),
        ("rm .claude/settings.json", ".claude/settings.json", None),
        ("rm -r .claude", ".claude/settings.json", None),
        ("echo mine > AGENTS.md", "AGENTS.md", b"mine\n"),
        ("ln -s a.txt AGENTS.md", "AGENTS.md", b"a.txt"),
        ("echo more >> b.txt", "b.txt", b"bee\nmore\n"),
        ("truncate -s 90000 b.txt", "b.txt", b"bee\n" + b"\0" * 89996),
    ],
)
def test_a_newer_edit_wins_and_the_other_ones_are_put_back(
    configured: Jobd, deed: str, path: str, now: bytes | None
) -> None:
    change = finish(configured, deed)
    assert change.contents[path] == now
    assert {".claude/settings.json", "AGENTS.md", "b.txt"} <= set(change.modes)
    assert change.problems == [EDITED_ANEW.format(path)]


def test_what_is_held_back_is_put_back_where_nobody_may_enter(configured: Jobd) -> None:
    change = finish(configured, "chmod 000 .claude/settings.json .claude b.txt")
    assert (change.contents[".claude/settings.json"], change.contents["b.txt"]) == (b"new\n", None)
    assert change.problems == []


def test_the_same_edit_made_anew_is_no_problem(configured: Jobd) -> None:
    change = finish(configured, "echo new > .claude/settings.json; rm b.txt; git add -A")
    assert change.contents[".claude/settings.json"] == b"new\n"
    assert EDITED_ANEW.format(".claude/settings.json") not in change.problems


@pytest.mark.parametrize(
    "deed",
    [
        'rm -r .claude; mkdir "$TMPDIR/out"; ln -s "$TMPDIR/out" .claude',
        'mv .claude "$TMPDIR/out"; ln -s "$TMPDIR/out" .claude',
        'rm .claude/settings.json; ln -s "$TMPDIR/out/x" .claude/settings.json; mkdir "$TMPDIR/out"',
        'mkdir "$TMPDIR/out"; rm -rf .git; ln -s "$TMPDIR/out" .git; echo y > .claude/settings.json',
    ],
)
def test_what_is_put_back_is_never_written_through_a_link(configured: Jobd, deed: str) -> None:
    (configured.root / "tmp").mkdir(exist_ok=True)
    change = finish(configured, deed)
    out = configured.root / "tmp" / "out"
    assert [path.read_text() for path in out.iterdir()] in ([], ["old\n"])
    assert EDITED_ANEW.format(".claude/settings.json") in change.problems
    assert change.contents["AGENTS.md"] == b"do\n"


@pytest.mark.parametrize("deed", ["mkfifo AGENTS.md", "mkdir AGENTS.md; echo x > AGENTS.md/x"])
def test_what_is_no_plain_file_is_not_replaced(configured: Jobd, deed: str) -> None:
    change = finish(configured, deed)
    assert change.contents.get("AGENTS.md") is None
    assert change.problems == [EDITED_ANEW.format("AGENTS.md")]


@pytest.mark.parametrize(
    "held_back",
    ['"x"', "[7]", "[{}]", '[{"path": "../evil", "mode": "100644", "content": "eA==", "old_mode": null}]'],
)
def test_an_agent_that_spoils_what_is_held_back_spoils_that_alone(
    unsealed: Jobd, repository: Repository, held_back: str
) -> None:
    configured = configure(unsealed, repository)
    spoil = f"""cd "$PTQ_OUTPUT_DIR/../../control"; python3 - <<'END'
import json
request = json.load(open("prepare.request"))
request["held_back"] = {held_back.replace("null", "None")}
json.dump(request, open("prepare.request", "w"))
END"""
    change = finish(configured, f"echo x > x; {spoil}")
    assert change.contents == {"a.txt": b"one\n", "x": b"x\n"}
    assert not (configured.root / "evil").exists()


def test_what_is_held_back_does_not_make_anybody_read_a_terabyte(configured: Jobd) -> None:
    configured.agent("truncate -s 1T b.txt || truncate -s 100G b.txt")
    began = time.monotonic()
    assert configured.collect()["error"] == "change_too_large"
    assert time.monotonic() - began < 30
    assert EDITED_ANEW.format("b.txt") in configured.call("result")["problems"]
