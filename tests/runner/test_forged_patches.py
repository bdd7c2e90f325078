"""Patches that no git writes, each of which would show another change than is proposed."""

from __future__ import annotations

import base64
import os
import string
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from runner.changes.patch import check_patch
from runner.changes.patch_text import PatchMismatch, name_section, quote
from runner.model.job import FileChange
from tests.runner.test_patch import make_change, rewrite
from tests.support.cpu_time import Work, takes_at_most

LINK = "120000"


def section(name: str, *lines: str, old: str = "") -> str:
    return "".join(f"{line}\n" for line in (f"diff --git a/{old or name} b/{name}", *lines))


def sides(old: str, new: str) -> tuple[str, str]:
    return f"--- {old}", f"+++ {new}"


ADDITION = ("new file mode 100644", *sides("/dev/null", "b/ok.py"), "@@ -0,0 +1 @@", "+x = 1")
OK = FileChange("ok.py", "100644", b"x = 1\n", None)
EDITED = FileChange("a.py", "100644", b"new\n", "100644")
EDIT = (*sides("a/a.py", "b/a.py"), "@@ -1 +1 @@", "-old", "+new")
BASE = {"a.py": b"old\n"}
RENAMED = ("rename from old.py", "rename to new.py")
MOVED = [FileChange("old.py", None, None, "100644"), FileChange("new.py", "100644", b"x\n", None)]
REMARK = "\\ No newline at end of file"


def test_the_shapes_below_are_accepted_without_their_lies() -> None:
    check_patch(section("ok.py", *ADDITION), [OK], {})
    check_patch(section("a.py", *EDIT), [EDITED], BASE)
    check_patch(section("new.py", "similarity index 100%", *RENAMED, old="old.py"), MOVED, {"old.py": b"x\n"})


def test_an_added_file_behind_a_rename_that_adds_is_found() -> None:
    """The first section stood for both files, and the second one for the shown file again."""
    evil = FileChange("evil.py", "100644", b"import os\n", None)
    renamed = ("rename from evil.py", "rename to ok.py")
    head, *rest = ADDITION
    patch = section("ok.py", head, *renamed, *rest, old="evil.py") + section("ok.py", *ADDITION)
    bases: tuple[dict[str, bytes] | None, ...] = (None, {})
    for base in bases:
        with pytest.raises(PatchMismatch):
            check_patch(patch, [evil, OK], base)


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        ((*sides("/dev/null", "b/a.py"), *EDIT[2:]), EDITED),
        ((*sides("a/a.py", "/dev/null"), *EDIT[2:]), EDITED),
        ((EDIT[1], EDIT[0], *EDIT[2:]), EDITED),
        ((EDIT[0], *EDIT), EDITED),
        (EDIT[2:], EDITED),
        (EDIT[:2], replace(EDITED, content=b"old\n")),
        (("rename from a.py", "rename to a.py", *EDIT), EDITED),
        (("index 1..2", "index 1..2", *EDIT), EDITED),
        (("index 1..2 100755", *EDIT), EDITED),
        (("old mode 100644", "new mode 100644", *EDIT), EDITED),
        (("new mode 100755", "old mode 100644", *EDIT), replace(EDITED, mode="100755")),
        (("Binary files a/a.py and /dev/null differ",), replace(EDITED, content=b"\0")),
        (("Binary files a/a.py and b/a.py differ", *EDIT), replace(EDITED, content=b"\0")),
    ],
)
def test_only_the_header_that_git_writes_for_an_edited_file_is_accepted(
    lines: tuple[str, ...], change: FileChange
) -> None:
    with pytest.raises(PatchMismatch):
        check_patch(section("a.py", *lines), [change], BASE)


@pytest.mark.parametrize(
    "lines",
    [
        (*ADDITION[:1], *sides("a/ok.py", "b/ok.py"), *ADDITION[3:]),
        (*ADDITION[:1], *sides("/dev/null", "/dev/null"), *ADDITION[3:]),
        (*ADDITION[:1], "similarity index 90%", *ADDITION[1:]),
        (*ADDITION[1:3], *ADDITION[:1], *ADDITION[3:]),
        (*ADDITION[:3], "@@ -5,0 +6 @@", "+x = 1"),
        (*ADDITION, "@@ -0,0 +1,0 @@"),
    ],
)
def test_only_the_section_that_git_writes_for_an_added_file_is_accepted(lines: tuple[str, ...]) -> None:
    with pytest.raises(PatchMismatch):
        check_patch(section("ok.py", *lines), [OK], {})


@pytest.mark.parametrize(
    "lines",
    [
        RENAMED[:1],
        RENAMED[::-1],
        ("deleted file mode 100644", *RENAMED),
        (*RENAMED, *RENAMED),
        (*RENAMED, "similarity index 100%"),
    ],
)
def test_a_rename_is_an_exact_pair_of_lines(lines: tuple[str, ...]) -> None:
    with pytest.raises(PatchMismatch):
        check_patch(section("new.py", *lines, old="old.py"), MOVED, {"old.py": b"x\n"})


def test_a_file_that_becomes_a_link_is_no_rename() -> None:
    moved = [MOVED[0], FileChange("new.py", LINK, b"x\n", None)]
    told = ("old mode 100644", "new mode 120000", "similarity index 100%", *RENAMED)
    with pytest.raises(PatchMismatch, match="another type"):
        check_patch(section("new.py", *told, old="old.py"), moved, {"old.py": b"x\n"})


def test_a_link_is_compared_with_its_target_in_the_base() -> None:
    link = FileChange("l", LINK, b"new", LINK)
    hunk = (*sides("a/l", "b/l"), "@@ -1 +1 @@", "-old", REMARK, "+new", REMARK)
    check_patch(section("l", *hunk), [link], {"l": b"old"})
    unchanged = (*hunk[:2], "@@ -1 +1 @@", " new", REMARK)
    gone = ("deleted file mode 120000", *sides("a/l", "/dev/null"), "@@ -1 +0,0 @@", "-old", REMARK)
    check_patch(section("l", *gone), [FileChange("l", None, None, LINK)], {"l": b"old"})
    for lines, change in ((hunk, link), (unchanged, link), (gone, FileChange("l", None, None, LINK))):
        with pytest.raises(PatchMismatch):
            check_patch(section("l", *lines), [change], {"l": b"other"})


# Ends of files


@pytest.mark.parametrize("base", [None, {}])
def test_two_shown_lines_that_are_one_are_found_in_an_added_file(base: dict[str, bytes] | None) -> None:
    lines = (*ADDITION[:3], "@@ -0,0 +1,2 @@", "+# check first", REMARK, "+verify(token)")
    with pytest.raises(PatchMismatch, match="in the middle of a file"):
        check_patch(section("ok.py", *lines), [replace(OK, content=b"# check firstverify(token)\n")], base)


@pytest.mark.parametrize(
    ("lines", "before", "after"),
    [
        (("@@ -1,2 +1,3 @@", "-old", "+# a", REMARK, "+b()", " end"), b"old\nend\n", b"# ab()\nend\n"),
        (("@@ -1 +1 @@", "-old", "+# a", REMARK), b"old\nend()\n", b"# aend()\n"),
        (("@@ -1 +1,2 @@", " # a", REMARK, "+b()"), b"# a", b"# ab()\n"),
        (("@@ -1 +1 @@", "-old", "+# a", REMARK, REMARK), b"old\n", b"# a"),
        (("@@ -1 +1 @@", REMARK, "-old", "+# a"), b"old\n", b"# a\n"),
        (("@@ -1 +1 @@", "-old", "+# a", REMARK, "@@ -2 +2 @@", "-x", "+y"), b"old\nx\n", b"# ay\n"),
    ],
)
def test_two_shown_lines_that_are_one_are_found_in_an_edited_file(
    lines: tuple[str, ...], before: bytes, after: bytes
) -> None:
    with pytest.raises(PatchMismatch):
        check_patch(section("a.py", *EDIT[:2], *lines), [replace(EDITED, content=after)], {"a.py": before})


@pytest.mark.parametrize(
    "head",
    [
        f"@@ -{'9' * 5000} +1 @@",
        f"@@ -{'0' * 10}1 +1 @@",
        "@@ -\u0661 +\u0661 @@",
        "@@ -1 +1 @@x = 1",
        "@@ -1 +1 @@ " + "x" * 81,
        "@@ -1  +1 @@",
        "@@ -1,1 +1 @@",
        "@@ -01 +1 @@",
        "@@ -1 +1 @@ ",
        "@@ -1 +1 @@ approved",
    ],
)
def test_the_head_of_a_hunk_has_the_form_that_git_writes(head: str) -> None:
    with pytest.raises(PatchMismatch):
        check_patch(section("a.py", *EDIT[:2], head, *EDIT[3:]), [EDITED], BASE)


@pytest.mark.parametrize(
    "heading", ["def area(ÄÖÜ):", "a" * 79 + "ä", "b" * 78 + "€", "c" * 77 + "\U0001f600", "d" * 99]
)
def test_a_heading_repeats_an_earlier_line_as_far_as_git_does(tmp_path: Path, heading: str) -> None:
    text = f"{heading}\n" + "".join(f"    {number}\n" for number in range(20))
    (tmp_path / "long.py").write_text(text)
    patch, changes, _ = make_change(
        tmp_path, lambda folder: (folder / "long.py").write_text(text.replace("19", "20")) and None
    )
    base = {"long.py": text.encode()}
    assert f"@@ {heading[:70]}" in patch
    check_patch(patch, changes, base)
    with pytest.raises(PatchMismatch, match="repeats a line"):
        check_patch(patch.replace(f"@@ {heading[:70]}", f"@@ x{heading[1:70]}"), changes, base)


def test_a_header_names_the_contents_before_and_after(tmp_path: Path) -> None:
    patch, changes, base = make_change(tmp_path, rewrite("a.py", "line 3", "line three"))
    check_patch(patch, changes, base)
    (ids,) = (line.split()[1] for line in patch.splitlines() if line.startswith("index "))
    before, after = ids.split("..")
    for lie in (f"{before}..{before}", f"{after}..{after}", f"0000000..{after}", f"{before}..0000000"):
        with pytest.raises(PatchMismatch, match="names a content"):
            check_patch(patch.replace(ids, lie), changes, base)


# Binary files


def test_lines_of_a_file_that_is_called_binary_are_found() -> None:
    evil = FileChange("r.sh", "100755", b"#!/bin/sh\nevil\n\0", None)
    lines = ("Binary files /dev/null and b/r.sh differ", *sides("/dev/null", "b/r.sh"), "@@ -0,0 +1 @@", "+echo ok")
    check_patch(section("r.sh", "new file mode 100755", lines[0]), [evil], {})
    for shown in (lines, (*lines[1:3], lines[0], *lines[3:]), (lines[0], *lines[3:])):
        with pytest.raises(PatchMismatch):
            check_patch(section("r.sh", "new file mode 100755", *shown), [evil], {})


@pytest.mark.parametrize("content", [b"#!/bin/sh\nevil\n\xff", b"#" * 8000 + b"\nevil\n\0"])
def test_a_text_with_a_bad_byte_may_not_be_called_binary(content: bytes) -> None:
    lines = ("new file mode 100755", "Binary files /dev/null and b/r.sh differ")
    with pytest.raises(PatchMismatch, match="is text"):
        check_patch(section("r.sh", *lines), [FileChange("r.sh", "100755", content, None)], {})


RANDOM = b"\0" + bytes(range(256)) * 20 + b"".join(str(number * number).encode() for number in range(2000))


@pytest.mark.parametrize("edited", [RANDOM.replace(b"400", b"401"), RANDOM[:7000] + RANDOM, b"\0" * 77, RANDOM[:0:-1]])
def test_a_binary_body_decodes_to_the_content(tmp_path: Path, edited: bytes) -> None:
    (tmp_path / "old.bin").write_bytes(RANDOM)
    (tmp_path / "gone.bin").write_bytes(os.urandom(500) + b"\0")

    def edit(folder: Path) -> None:
        (folder / "gone.bin").unlink()
        (folder / "old.bin").write_bytes(edited)
        (folder / "new.bin").write_bytes(RANDOM + b"!")

    base = {"old.bin": RANDOM, "gone.bin": (tmp_path / "gone.bin").read_bytes()}
    patch, changes, _ = make_change(tmp_path, edit)
    check_patch(patch, changes)
    check_patch(patch, changes, base)
    for change in changes:
        if change.content:
            lied = [replace(one, content=RANDOM + b"?") if one is change else one for one in changes]
            with pytest.raises(PatchMismatch):
                check_patch(patch, lied, base)
    with pytest.raises(PatchMismatch):
        check_patch(patch, changes, base | {"old.bin": RANDOM + b"?"})
    for odd in (patch.removesuffix("\n"), f"{patch}\n", patch.replace("\n\nliteral", "\nliteral", 1)):
        with pytest.raises(PatchMismatch):
            check_patch(odd, changes, base)


def write_hunk(kind: str, data: bytes) -> list[str]:
    """A hunk of a binary body, as git writes it."""
    letters, packed, lines = string.ascii_uppercase + string.ascii_lowercase, zlib.compress(data), list[str]()
    for at in range(0, len(packed), 52):
        part = packed[at : at + 52]
        lines.append(letters[len(part) - 1] + base64.b85encode(part + b"\0" * (-len(part) % 4)).decode())
    return [f"{kind} {len(data)}", *lines, ""]


def write_size(size: int) -> bytes:
    """A size in a delta."""
    return (bytes([size & 0x7F | 0x80]) + write_size(size >> 7)) if size > 0x7F else bytes([size])


COPY = b"\xf0\x40\x42\x0f"
"""The part of a delta that copies the first million bytes."""


@pytest.mark.parametrize(
    "delta",
    [
        write_size(1_000_000) + write_size(200_000_000) + COPY * 200,
        write_size(1_000_000) + write_size(1_000_001) + COPY * 200,
        write_size(1_000_000) + b"\xff" * 500_000,
    ],
)
def test_a_delta_takes_no_more_room_than_the_content_that_it_should_lead_to(delta: bytes) -> None:
    before, after = b"\0" * 1_000_000, b"\1" + b"\0" * 1_000_000
    lines = ["GIT binary patch", *write_hunk("delta", delta), *write_hunk("literal", before)]
    patch = section("x.bin", *lines)
    tracemalloc.start()
    try:
        with pytest.raises(PatchMismatch, match="something else"):
            check_patch(patch, [FileChange("x.bin", "100644", after, "100644")], {"x.bin": before})
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# What it costs


@pytest.mark.slow
def test_many_headings_that_repeat_an_early_line_take_linear_time() -> None:
    def prepare(count: int) -> Work:
        base = ["first", *map(str, range(5 * count))]
        new, hunks = [*base], list[str]()
        for number in range(count, 0, -1):
            new.insert(5 * number, "x")
            hunks += ["+x", f"@@ -{5 * number},0 +{5 * number + number} @@ first"]
        change = FileChange("a.txt", "100644", "".join(f"{line}\n" for line in new).encode(), "100644")
        patch = section("a.txt", *sides("a/a.txt", "b/a.txt"), *reversed(hunks))
        before = {"a.txt": "".join(f"{line}\n" for line in base).encode()}
        return lambda: check_patch(patch, [change], before)

    assert takes_at_most(2.5**3, prepare(1_000), prepare(8_000))


def test_a_heading_must_repeat_an_earlier_line() -> None:
    before = b"def a():\n    1\ndef b():\n    2\nend\n"
    changed = FileChange("a.py", "100644", before.replace(b"2", b"3"), "100644")
    lines = (*sides("a/a.py", "b/a.py"), "@@ -4 +4 @@ {}", "-    2", "+    3")
    for heading in ("def a():", "def b", "def"):
        check_patch(section("a.py", *lines).format(heading), [changed], {"a.py": before})
    for heading in ("end", "def c", "def b():x", "e", "zzz"):
        with pytest.raises(PatchMismatch, match="repeats a line"):
            check_patch(section("a.py", *lines).format(heading), [changed], {"a.py": before})


@pytest.mark.slow
def test_many_long_names_that_must_be_quoted_take_no_longer_each_than_a_few() -> None:
    def prepare(count: int) -> Work:
        changes = [FileChange('"' * 1000 + f"{number:04}", "100644", b"a\n", None) for number in range(count)]
        lines = "new file mode 100644\n--- /dev/null\n+++ {}\n@@ -0,0 +1 @@\n+a\n"
        patch = "".join(
            f"{name_section(change.path, change.path)}\n{lines.format(quote(f'b/{change.path}'))}" for change in changes
        )
        return lambda: check_patch(patch, changes, {})

    assert takes_at_most(60, prepare(20), prepare(320))
