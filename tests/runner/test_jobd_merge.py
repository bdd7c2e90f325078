"""Edits that were made on one commit come to lie on another: merged three ways, with whatever can go wrong named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.files import Failure
from tests.runner.test_jobd_carry import edit, finish
from tests.support.jobd import Change, Jobd, Repository, make_repository
from tests.support.plain_worktree import PlainWorktree, check_out

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

LINES = "".join(f"{number}\n" for number in range(1, 41))
FILES: Mapping[str, str | bytes] = {"a.txt": LINES, "b.txt": "bee\n", "dir/c.txt": LINES, "bin": b"x\0y", "tool": LINES}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "origin", FILES)


def change_line(number: int, words: str, text: str = LINES) -> bytes:
    return text.replace(f"\n{number}\n", f"\n{words}\n").encode()


def rebase(repository: Repository, changes: list[dict[str, Any]], begun_at: str) -> tuple[PlainWorktree, list[str]]:
    """The worktree of the newest commit, with edits that were made on another one, and the conflicts."""
    worktree = check_out(repository)
    return worktree, worktree.carry_over(changes, begun_at)


def rebase_job(jobd: Jobd, changes: list[dict[str, Any]], begun_at: str, **request: Any) -> list[str]:
    """Prepare an environment in the same way: the conflicts."""
    prepared = jobd.prepare(changes=changes, changes_from=begun_at, **request)
    assert prepared["state"] == "done", prepared["message"]
    assert prepared["result"]["base_commit"] == jobd.repository.git("rev-parse", "main")
    conflicts: list[str] = prepared["result"]["conflicts"]
    listed = jobd.root / "output" / "conflicts.txt"
    assert (listed.read_text().splitlines() if listed.exists() else []) == conflicts
    return conflicts


def base(repository: Repository) -> str:
    return repository.git("rev-parse", "main")


def test_edits_of_other_lines_and_files_come_together(repository: Repository) -> None:
    old = base(repository)
    repository.commit({"a.txt": change_line(30, "thirty"), "b.txt": "newer\n"})
    edits = [edit("a.txt", change_line(5, "five")), edit("new", b"new\n"), edit("dir/c.txt", None)]
    worktree, conflicts = rebase(repository, edits, old)
    assert conflicts == []
    both = change_line(5, "five", change_line(30, "thirty").decode())
    assert (worktree.path / "b.txt").read_text() == "newer\n"
    assert worktree.collect().contents == {"a.txt": both, "new": b"new\n", "dir/c.txt": None}


def test_edits_of_the_same_lines_are_in_conflict_and_marked_with_both_sides(jobd: Jobd, repository: Repository) -> None:
    old = base(repository)
    repository.commit({"a.txt": change_line(5, "FIVE")})
    assert rebase_job(jobd, [edit("a.txt", change_line(5, "five")), edit("b.txt", b"bees\n")], old) == ["a.txt"]
    text = jobd.find("a.txt").read_text()
    assert "\n<<<<<<< onto\nFIVE\n|||||||" in text
    assert "\n5\n=======\nfive\n>>>>>>> change\n6\n" in text
    assert finish(jobd).contents["b.txt"] == b"bees\n"


def test_a_file_that_the_base_has_moved_is_edited_where_it_is_now(repository: Repository) -> None:
    old = base(repository)
    repository.git("mv", "dir", "deeper")
    repository.commit({"deeper/c.txt": change_line(30, "thirty")})
    worktree, conflicts = rebase(
        repository, [edit("dir/c.txt", change_line(5, "five")), edit("dir/new", b"new\n")], old
    )
    assert conflicts == []
    both = change_line(5, "five", change_line(30, "thirty").decode())
    assert worktree.collect().contents == {"deeper/c.txt": both, "deeper/new": b"new\n"}


def test_what_one_side_deletes_and_the_other_edits_stays_and_is_in_conflict(repository: Repository) -> None:
    old = base(repository)
    repository.git("rm", "--quiet", "b.txt")
    repository.commit({"a.txt": change_line(30, "thirty")})
    edits = [edit("b.txt", b"bees\n"), edit("a.txt", None)]
    worktree, conflicts = rebase(repository, edits, old)
    assert conflicts == ["a.txt", "b.txt"]
    assert (worktree.path / "a.txt").read_bytes() == change_line(30, "thirty")
    assert worktree.collect().contents == {"b.txt": b"bees\n"}


def test_binary_files_that_both_sides_change_are_in_conflict(repository: Repository) -> None:
    old = base(repository)
    repository.commit({"bin": b"x\0w"})
    worktree, conflicts = rebase(repository, [edit("bin", b"x\0z")], old)
    assert conflicts == ["bin"]
    assert (worktree.path / "bin").read_bytes() == b"x\0w"


def test_a_mode_and_a_content_that_are_changed_apart_come_together(repository: Repository) -> None:
    old = base(repository)
    repository.commit({"tool": change_line(30, "thirty")})
    worktree, conflicts = rebase(repository, [edit("tool", LINES.encode(), "100755", "100644")], old)
    assert conflicts == []
    change = worktree.collect()
    assert (change.modes["tool"], change.contents["tool"]) == ("100755", change_line(30, "thirty"))


def test_links_are_carried_over_and_two_targets_are_in_conflict(repository: Repository, tmp_path: Path) -> None:
    (repository.folder / "link").symlink_to("a.txt")
    (repository.folder / "same").symlink_to("a.txt")
    old = repository.commit()
    (repository.folder / "link").unlink()
    (repository.folder / "link").symlink_to(tmp_path)
    repository.commit()
    edits = [edit("link", b"b.txt", "120000", "120000"), edit("same", b"b.txt", "120000", "120000")]
    worktree, conflicts = rebase(repository, [*edits, edit("link2", str(tmp_path).encode(), "120000")], old)
    assert conflicts == ["link"]
    assert (worktree.path / "same").readlink() == Path("b.txt")
    assert worktree.collect().contents["link2"] == str(tmp_path).encode()
    assert {path.name for path in tmp_path.iterdir()} == {"origin", "plain-0"}


def test_nothing_is_written_through_a_link_that_a_renamed_folder_takes_with_it(
    repository: Repository, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    old = repository.commit({f"d/f{number}": f"file {number}\n" * 20 for number in range(4)})
    repository.git("mv", "d", "q")
    repository.commit()
    edits = [edit("q/s", str(outside).encode(), "120000"), edit("d/s/planted", b"of a stranger\n")]
    message = None
    try:
        rebase(repository, edits, old)
    except Failure as failure:  # Git may give this merge up.
        message = failure.message
    assert message is None or message.startswith("git merge-recursive failed:")
    assert [*outside.iterdir()] == []


def test_a_file_and_a_folder_in_one_place_lie_beside_each_other(repository: Repository) -> None:
    old = base(repository)
    repository.commit({"place/inside": "inside\n"})
    worktree, conflicts = rebase(repository, [edit("place", b"a file\n")], old)
    assert "place~change" in conflicts
    assert worktree.collect().contents == {"place~change": b"a file\n"}


def test_what_the_base_has_already_leaves_nothing(repository: Repository) -> None:
    old = base(repository)
    repository.commit({"a.txt": change_line(5, "five"), "new": "new\n"})
    edits = [edit("a.txt", change_line(5, "five")), edit("new", b"new\n")]
    worktree, conflicts = rebase(repository, edits, old)
    assert conflicts == []
    assert worktree.collect().contents == {}


def test_the_same_base_leaves_the_edits_as_they_are(repository: Repository) -> None:
    worktree, conflicts = rebase(repository, [edit("a.txt", b"<<<<<<< onto\n")], base(repository))
    assert conflicts == []
    assert worktree.collect().contents == {"a.txt": b"<<<<<<< onto\n"}


def test_a_base_that_was_pushed_over_by_force_is_fetched_as_long_as_it_is_there(
    jobd: Jobd, repository: Repository
) -> None:
    repository.commit({"b.txt": "lost\n"})
    old = base(repository)
    repository.git("reset", "--quiet", "--hard", "HEAD~")
    repository.commit({"a.txt": change_line(30, "thirty")})
    assert rebase_job(jobd, [edit("a.txt", change_line(5, "five"))], old) == []
    later = jobd.beside()
    poll = later.prepare(changes=[edit("new", b"")], changes_from="1" * 40)
    assert (poll["state"], poll["error"]) == ("failed", "base_gone")


HOSTILE = """\
*.txt merge=evil conflict-marker-size=2
tool merge=evil filter=evil diff=evil conflict-marker-size=1000
"""


def test_nothing_that_the_repository_or_its_settings_say_is_run_or_hides_a_conflict(
    tmp_path: Path, repository: Repository
) -> None:
    touch = f"touch {tmp_path}/evil; exit 0"
    config = "".join(
        f'[{section}]\n\t{name} = "{touch}"\n'
        for section, name in (
            ('merge "evil"', "driver"),
            ('filter "evil"', "smudge"),
            ('filter "evil"', "clean"),
            ('diff "evil"', "command"),
            ("core", "fsmonitor"),
        )
    )
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(config)
    repository.commit({".gitattributes": HOSTILE})
    old = base(repository)
    repository.commit({"a.txt": change_line(5, "FIVE"), "tool": change_line(5, "FIVE")})
    jobd = Jobd(tmp_path, repository, {"HOME": str(tmp_path / "home")})
    edits = [edit("a.txt", change_line(5, "five")), edit("tool", change_line(5, "five"))]
    more = [edit(".gitattributes", f"{HOSTILE}* merge=evil\n".encode())]
    assert rebase_job(jobd, [*edits, *more], old) == ["a.txt", "tool"]
    for path in ("a.txt", "tool"):
        assert "\n<<<<<<< onto\nFIVE\n" in jobd.find(path).read_text()
    assert not (tmp_path / "evil").exists()


def test_files_that_git_converts_are_merged_as_git_has_them(tmp_path: Path) -> None:
    text = LINES.replace("\n", "\r\n")
    files: dict[str, str | bytes] = {".gitattributes": "*.bat text eol=crlf\n", "run.bat": text}
    repository = make_repository(tmp_path / "origin", files)
    old = base(repository)
    repository.commit({"run.bat": change_line(30, "thirty").decode().replace("\n", "\r\n")})
    worktree, conflicts = rebase(repository, [edit("run.bat", change_line(5, "five"))], old)
    assert conflicts == []
    both = change_line(5, "five", change_line(30, "thirty").decode())
    assert (worktree.path / "run.bat").read_bytes() == both.replace(b"\n", b"\r\n")
    assert worktree.collect().contents == {"run.bat": both}


def test_what_is_held_back_comes_back_only_where_the_new_base_has_not_changed_it(
    jobd: Jobd, repository: Repository
) -> None:
    repository.commit({".claude/settings.json": "old\n", "AGENTS.md": "old\n"})
    old = base(repository)
    repository.commit({"AGENTS.md": "newer\n"})
    held_back = [edit(".claude/settings.json", b"new\n"), edit("AGENTS.md", b"new\n"), edit("CLAUDE.md", b"new\n")]
    assert rebase_job(jobd, [edit("b.txt", b"bees\n")], old, held_back=held_back) == []
    change: Change = finish(jobd)
    assert change.contents == {".claude/settings.json": b"new\n", "CLAUDE.md": b"new\n", "b.txt": b"bees\n"}
    assert change.problems == ["an earlier edit of `AGENTS.md` was left out: the new base also changes it"]
