"""That a patch says all of a change: with patches as git makes them, and with forged ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.changes.patch import check_patch, list_bare_returns, list_bases, list_lines
from runner.changes.patch_text import PatchMismatch
from runner.characters import decode_exactly
from runner.model.job import FileChange
from tests.support.site import PATCH

BASE = {
    "a.py": "".join(f"line {number}\n" for number in range(40)),
    "b c.py": "one\ntwo\nthree",
    "gone.py": "x\n",
    "old name.py": "".join(f"row {number}\n" for number in range(20)),
    "run.sh": "echo\n",
    'quo"te\t.py': "1\n",
    "crlf.txt": "a\r\nb\r\n",
    "file-to-link": "text\n",
}
LATIN = b"# coding: latin-1\nname = 'caf\xe9'\nother = 1\n"

Edit = Callable[[Path], object]


def git(folder: Path, *arguments: str) -> bytes:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True).stdout


def make_change(folder: Path, edit: Edit) -> tuple[str, list[FileChange], dict[str, bytes]]:
    """A patch and changes as the machine gives them, and the files of the base."""
    git(folder, "init", "-q")  # What a test has put there before is in the base as well.
    for name, text in BASE.items():
        (folder / name).write_bytes(text.encode())
    (folder / "link").symlink_to("a.py")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    edit(folder)
    git(folder, "add", "-A")
    patch = decode_exactly(git(folder, "diff-index", "--cached", "-p", "--binary", "-M", "HEAD"))
    fields = git(folder, "diff-index", "--cached", "-z", "--no-renames", "HEAD").decode().split("\0")
    changes = []
    for about, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, mode = about[1:].split()[:2]
        where = folder / path
        content = bytes(where.readlink()) if where.is_symlink() else where.read_bytes() if where.exists() else None
        modes = [None if one == "000000" else one for one in (mode, old_mode)]
        changes.append(FileChange(path, modes[0], content, modes[1]))
    return patch, changes, {name: text.encode() for name, text in BASE.items()} | {"link": b"a.py"}


def rewrite(name: str, old: str, new: str) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))

    return edit


def everything(folder: Path) -> None:
    rewrite("a.py", "line 3\n", "line three\n")(folder)
    rewrite("a.py", "line 30\n", "more\nand more\n")(folder)
    rewrite("b c.py", "three", "three\n")(folder)
    (folder / "gone.py").unlink()
    (folder / "new.py").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\ndiff --git a/y b/y\n")
    (folder / "empty").touch()
    (folder / "old name.py").rename(folder / "ne\\w name.py")
    rewrite("ne\\w name.py", "row 5\n", "row five\n")(folder)
    (folder / "run.sh").chmod(0o755)
    rewrite('quo"te\t.py', "1", "2")(folder)
    rewrite("crlf.txt", "b\r\n", "c\r\n")(folder)
    (folder / "data.bin").write_bytes(b"\0\1\2")
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    (folder / "file-to-link").unlink()
    (folder / "file-to-link").symlink_to("a.py")
    (folder / "link").unlink()
    (folder / "link").symlink_to("b c.py")


def test_whatever_git_says_of_a_change_is_true(tmp_path: Path) -> None:
    patch, changes, base = make_change(tmp_path, everything)
    check_patch(patch, changes)
    check_patch(patch, changes, {path: base[path] for path in list_bases(changes)})


def test_no_change_needs_no_patch() -> None:
    check_patch("", [], {})


@pytest.mark.parametrize(
    "name", ["a.py", "b c.py", "new.py", "old name.py", "run.sh", "gone.py", "file-to-link", "link"]
)
def test_a_path_that_the_patch_leaves_out_is_found(tmp_path: Path, name: str) -> None:
    patch, changes, _ = make_change(tmp_path, everything)
    sections = ["diff --git " + part for part in patch.split("\ndiff --git ")]
    sections[0] = sections[0].removeprefix("diff --git ")
    left = [section for section in sections if name not in section.split("\n")[0]]
    assert len(left) < len(sections)
    with pytest.raises(PatchMismatch):
        check_patch("\n".join(left), changes)


def edited(tmp_path: Path) -> tuple[str, FileChange, dict[str, bytes]]:
    patch, (change,), base = make_change(tmp_path, rewrite("a.py", "line 3\n", "line three\n"))
    return patch, change, base


def test_a_line_that_no_hunk_shows_is_found_with_the_base(tmp_path: Path) -> None:
    patch, change, base = edited(tmp_path)
    evil = replace(change, content=(change.content or b"").replace(b"line 33\n", b"import os\n"))
    with pytest.raises(PatchMismatch, match="holds something else"):
        check_patch(patch, [evil], base)


def test_a_line_that_a_hunk_shows_otherwise_is_found_even_without_the_base(tmp_path: Path) -> None:
    patch, change, _ = edited(tmp_path)
    evil = replace(change, content=(change.content or b"").replace(b"line three\n", b"import os\n"))
    with pytest.raises(PatchMismatch, match="holds something else"):
        check_patch(patch, [evil])


def test_a_context_that_hides_what_was_there_is_found(tmp_path: Path) -> None:
    patch, change, base = edited(tmp_path)
    evil = patch.replace(" line 5\n", " line five\n")
    forged = replace(change, content=(change.content or b"").replace(b"line 5\n", b"line five\n"))
    evil = evil.replace(next(line for line in evil.splitlines(keepends=True) if line.startswith("index ")), "")
    check_patch(evil, [forged])
    with pytest.raises(PatchMismatch, match="does not fit"):
        check_patch(evil, [forged], base)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("diff --git a/a.py b/a.py", "diff --git a/docs.md b/docs.md"),
        ("+++ b/a.py", "+++ b/docs.md"),
        ("--- a/a.py", "--- a/docs.md"),
        ("--- a/a.py", "old mode 100644\nnew mode 100755\n--- a/a.py"),
        ("--- a/a.py", "deleted file mode 100644\n--- a/a.py"),
        ("--- a/a.py", "new file mode 100644\n--- a/a.py"),
        ("--- a/a.py", "rename from b c.py\nrename to a.py\n--- a/a.py"),
        ("--- a/a.py", "note: nothing to see\n--- a/a.py"),
        ("+line three", "+line three\n? nothing"),
        ("@@ -1", "@@ -3"),
        ("@@ -1", "@@ one"),
        ("diff --git", "look here\ndiff --git"),
    ],
)
def test_a_header_that_says_what_is_not_so_is_found(tmp_path: Path, old: str, new: str) -> None:
    patch, change, base = edited(tmp_path)
    assert old in patch
    with pytest.raises(PatchMismatch):
        check_patch(patch.replace(old, new, 1), [change], base)


def test_a_mode_that_is_not_told_is_found(tmp_path: Path) -> None:
    patch, change, base = edited(tmp_path)
    with pytest.raises(PatchMismatch, match="another mode"):
        check_patch(patch, [replace(change, mode="100755")], base)


def test_text_that_is_shown_as_binary_is_found(tmp_path: Path) -> None:
    def edit(folder: Path) -> None:
        (folder / ".gitattributes").write_text("*.py binary\n")
        rewrite("a.py", "line 3\n", "import os\n")(folder)

    patch, changes, base = make_change(tmp_path, edit)
    with pytest.raises(PatchMismatch, match="is text"):
        check_patch(patch, changes, base)


def test_a_file_that_the_base_commit_lacks_is_found(tmp_path: Path) -> None:
    patch, change, _ = edited(tmp_path)
    with pytest.raises(PatchMismatch, match="not in the base commit"):
        check_patch(patch, [change], {})


def test_bytes_that_are_no_text_are_compared_exactly(tmp_path: Path) -> None:
    def edit(folder: Path) -> None:
        (folder / "latin.py").write_bytes(LATIN)

    patch, (change,), base = make_change(tmp_path, edit)
    check_patch(patch, [change], base)
    for other in (b"caf\xe8", "caf\ufffd".encode(), b"caf", "caf\U0010ffe9".encode()):
        with pytest.raises(PatchMismatch, match="holds something else"):
            check_patch(patch, [replace(change, content=LATIN.replace(b"caf\xe9", other))], base)


def test_a_base_that_is_no_text_is_compared_exactly(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(LATIN)

    def edit(folder: Path) -> None:
        (folder / "latin.py").write_bytes(LATIN.replace(b"other = 1", b"other = 2"))

    patch, (change,), base = make_change(tmp_path, edit)
    check_patch(patch, [change], {**base, "latin.py": LATIN})
    with pytest.raises(PatchMismatch, match="does not fit"):
        check_patch(patch, [change], {**base, "latin.py": LATIN.replace(b"\xe9", b"\xe8")})


@pytest.mark.parametrize("held", [b"y\n", b"x", b"x\r\n", b"x\ny\n", b""])
def test_a_deletion_that_shows_something_else_than_was_there_is_found(tmp_path: Path, held: bytes) -> None:
    patch, changes, base = make_change(tmp_path, lambda folder: (folder / "gone.py").unlink())
    assert list_bases(changes) == ["gone.py"]
    check_patch(patch, changes, base)
    with pytest.raises(PatchMismatch, match=r"held something else than the diff shows|does not fit"):
        check_patch(patch, changes, {"gone.py": held})
    hidden = patch[: patch.index("---")] + "Binary files a/gone.py and /dev/null differ\n"
    with pytest.raises(PatchMismatch, match="was text"):
        check_patch(hidden, changes, base)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@@ -1,7 +1,7 @@", "@@ -1,7 +1,8 @@"),
        ("@@ -1,7 +1,7 @@", "@@ -1,6 +1,7 @@"),
        ("@@ -1,7 +1,7 @@", "@@ -1,7 +9,7 @@"),
        ("@@ -1,7 +1,7 @@", "@@ -1 +1 @@"),
    ],
)
def test_a_hunk_is_where_and_as_long_as_its_head_says(tmp_path: Path, old: str, new: str) -> None:
    patch, change, base = edited(tmp_path)
    assert old in patch
    with pytest.raises(PatchMismatch, match="that does not match its first line"):
        check_patch(patch.replace(old, new), [change], base)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\nliteral", "\nNothing to see here.\nliteral"),
        ("\nliteral", "\n+print('harmless')\nliteral"),
        ("GIT binary patch", "Binary files are harmless and differ\nGIT binary patch"),
    ],
)
def test_words_in_what_is_binary_are_found(tmp_path: Path, old: str, new: str) -> None:
    patch, changes, base = make_change(tmp_path, lambda folder: (folder / "x.bin").write_bytes(b"\0" * 99))
    check_patch(patch, changes, base)
    with pytest.raises(PatchMismatch):
        check_patch(patch.replace(old, new, 1), changes, base)


@pytest.mark.parametrize(
    ("before", "after", "is_found"),
    [
        (None, b"x = 1  # \revil()\n", True),
        (None, b"x\r", True),
        (None, b"x\r\r\n", True),
        (None, b"x\r\ny\r\n", False),
        (b"a\rb\nc\n", b"a\rb\nd\n", False),
        (b"a\rb\nc\n", b"c\n", False),
        (b"a\rb\nc\n", b"a\rb\rc\n", True),
    ],
)
def test_a_carriage_return_that_is_added_within_a_line_is_found(
    tmp_path: Path, before: bytes | None, after: bytes, is_found: bool
) -> None:
    if before:
        (tmp_path / "r.py").write_bytes(before)
    patch, _, _ = make_change(tmp_path, lambda folder: (folder / "r.py").write_bytes(after))
    assert list_bare_returns(patch) == ["r.py"] * is_found


def test_only_lines_inside_hunks_are_additions_and_removals() -> None:
    lines = [*list_lines(PATCH + PATCH)]
    assert [line.kind for line in lines] == [*["header"] * 4, "hunk", "context", "removed", "added"] * 2
    assert {line.file for line in lines} == {"chunks.py"}
    assert "".join(f"{line.text}\n" for line in lines) == PATCH * 2
    renamed = [line.file for line in list_lines("diff --git a/x b/y\nrename from x\n")]
    assert renamed == ["a/x b/y"] * 2
