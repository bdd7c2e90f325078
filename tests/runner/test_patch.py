"""That a patch says all of a change: with patches as git makes them, and with forged ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.characters import decode_exactly
from runner.job import FileChange
from runner.patch import Untrue, check_patch, list_bases

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

Edit = Callable[[Path], None]


def git(folder: Path, *arguments: str) -> bytes:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True).stdout


def make_change(folder: Path, edit: Edit) -> tuple[str, list[FileChange], dict[str, bytes]]:
    """A patch and changes as the machine gives them, and the files of the base."""
    git(folder, "init", "-q")
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
    return patch, changes, {name: text.encode() for name, text in BASE.items()}


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
    check_patch(patch, changes, {path: base[path] for path in list_bases(patch, changes)})


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
    with pytest.raises(Untrue):
        check_patch("\n".join(left), changes)


def edited(tmp_path: Path) -> tuple[str, FileChange, dict[str, bytes]]:
    patch, (change,), base = make_change(tmp_path, rewrite("a.py", "line 3\n", "line three\n"))
    return patch, change, base


def test_a_line_that_no_hunk_shows_is_found_with_the_base(tmp_path: Path) -> None:
    patch, change, base = edited(tmp_path)
    evil = replace(change, content=(change.content or b"").replace(b"line 33\n", b"import os\n"))
    with pytest.raises(Untrue, match="holds something else"):
        check_patch(patch, [evil], base)


def test_a_line_that_a_hunk_shows_otherwise_is_found_even_without_the_base(tmp_path: Path) -> None:
    patch, change, _ = edited(tmp_path)
    evil = replace(change, content=(change.content or b"").replace(b"line three\n", b"import os\n"))
    with pytest.raises(Untrue, match="holds something else"):
        check_patch(patch, [evil])


def test_a_context_that_hides_what_was_there_is_found(tmp_path: Path) -> None:
    patch, change, base = edited(tmp_path)
    evil = patch.replace(" line 5\n", " line five\n")
    forged = replace(change, content=(change.content or b"").replace(b"line 5\n", b"line five\n"))
    check_patch(evil, [forged])
    with pytest.raises(Untrue, match="does not fit"):
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
    with pytest.raises(Untrue):
        check_patch(patch.replace(old, new, 1), [change], base)


def test_a_mode_that_is_not_told_is_found(tmp_path: Path) -> None:
    patch, change, base = edited(tmp_path)
    with pytest.raises(Untrue, match="another mode"):
        check_patch(patch, [replace(change, mode="100755")], base)


def test_text_that_is_shown_as_binary_is_found(tmp_path: Path) -> None:
    def edit(folder: Path) -> None:
        (folder / ".gitattributes").write_text("*.py binary\n")
        rewrite("a.py", "line 3\n", "import os\n")(folder)

    patch, changes, base = make_change(tmp_path, edit)
    with pytest.raises(Untrue, match="is text"):
        check_patch(patch, changes, base)


def test_a_file_that_the_base_commit_lacks_is_found(tmp_path: Path) -> None:
    patch, change, _ = edited(tmp_path)
    with pytest.raises(Untrue, match="not in the base commit"):
        check_patch(patch, [change], {})
