"""What a diff looks like on a page: by file, with colours that can be read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from bot.web import pages
from bot.web.dashboard.diffs import COLOURED_DIFF, COLOURED_LINES, FileDiff, read_diff
from tests.support.site import PATCH

OLD_AND_NEW = f'''\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,5 +1,5 @@ def f():
 def f():
-    """Old
-    import"""
+    import os  # <b>
+    return "1"
{" "}
\\ No newline at end of file
'''


def read_back(files: Sequence[FileDiff]) -> str:
    """What people read, from top to bottom."""
    return "".join(f"{line}\n" for file in files for line in (*file.header, *(line.text for line in file.lines)))


def test_each_line_of_a_diff_says_what_it_is_and_where() -> None:
    (file,) = read_diff(OLD_AND_NEW)
    assert file.name == "a.py"
    assert read_back([file]) == OLD_AND_NEW
    assert [(line.kind, line.old, line.new) for line in file.lines] == [
        ("hunk", None, None),
        ("", 1, 1),
        ("minus", 2, None),
        ("minus", 3, None),
        ("plus", None, 2),
        ("plus", None, 3),
        ("", 4, 4),
        ("remark", None, None),
    ]


def test_side_by_side_what_was_removed_stands_next_to_what_took_its_place() -> None:
    hunk = "@@ -1,4 +1,4 @@\n a\n-b\n-c\n+B\n d\n-e\n\\ No newline at end of file\n+E\n"
    (file,) = read_diff(f"diff --git a/x b/x\n--- a/x\n+++ b/x\n{hunk}")
    assert [tuple(side.text if side else None for side in pair) for pair in file.pairs()][1:] == [
        (" a", " a"),
        ("-b", "+B"),
        ("-c", None),
        (" d", " d"),
        ("-e", "+E"),
        ("\\ No newline at end of file", None),
    ]


PLAIN = "diff --git a/x b/x\nindex 1d72694..6e9e73f 100644\n--- a/x\n+++ b/x\n"


@pytest.mark.parametrize(
    ("header", "status", "is_plain"),
    [
        (PLAIN, "", True),
        (
            PLAIN.replace("index", "new file mode 100755\nindex").replace("a/x\n+", "/dev/null\n+"),
            "new, executable",
            True,
        ),
        (PLAIN.replace("index", "deleted file mode 100644\nindex"), "deleted", True),
        (PLAIN.replace("index", "old mode 100644\nnew mode 100755\nindex"), "", False),
        (PLAIN.replace("index", "new file mode 120000\nindex"), "", False),
        (PLAIN.replace("+++ b/x", "+++ b/y"), "", False),
        (PLAIN.replace("index", "similarity index 90%\nrename from x\nrename to y\nindex"), "", False),
        (PLAIN + "Binary files a/x and b/x differ\n", "", False),
    ],
)
def test_a_header_is_folded_only_if_the_heading_says_all_that_it_says(header: str, status: str, is_plain: bool) -> None:
    (file,) = read_diff(header + "@@ -1 +1 @@\n-a\n+b\n")
    assert (file.status, file.is_header_plain) == (status, is_plain)


def test_a_diff_is_shown_whole_whatever_is_missing_in_it() -> None:
    for patch in (
        OLD_AND_NEW,
        OLD_AND_NEW.replace("\n \n", "\n\n"),
        PATCH[:-5],
        PATCH + "@@\n",
        PATCH + "@@ x\n\n\n-\n+\n",
        "no diff\n" + PATCH,
    ):
        files = read_diff(patch)
        assert read_back(files).removesuffix("\n") == patch.removesuffix("\n")
        shown = [line for file in files for pair in file.pairs() for line in pair if line]
        assert {id(line) for line in shown} == {id(line) for file in files for line in file.lines}


def test_a_diff_beyond_what_has_colours_is_shown_as_one() -> None:
    longest = (OLD_AND_NEW + "+" * COLOURED_DIFF)[: COLOURED_DIFF - 1]
    most = OLD_AND_NEW + "+\n" * (COLOURED_LINES - OLD_AND_NEW.count("\n"))
    for patch in (longest, most):
        assert read_diff(patch)[0].name == "a.py"
        assert [file.name for file in read_diff(patch + "+\n")] == [""]


Colour = tuple[float, float, float, float]


def read_colours() -> tuple[dict[str, Colour], dict[str, Colour]]:
    """The named colours of the style sheets, in light and dark."""
    light: dict[str, Colour] = {}
    dark: dict[str, Colour] = {}
    for sheet in ("style.css", "dashboard.css"):
        text = (Path(pages.__file__).parent / "static" / sheet).read_text()
        for line in text.splitlines():
            for name, digits in re.findall(r"--(\w+): #([0-9a-f]{3,8})\b", line) if ":root" in line else ():
                full = digits if len(digits) > 4 else "".join(digit * 2 for digit in digits)
                red, green, blue, *alpha = (int(full[at : at + 2], 16) / 255 for at in range(0, len(full), 2))
                colour = (red, green, blue, alpha[0] if alpha else 1.0)
                dark[name] = colour
                if "dark)" not in line:
                    light[name] = colour
    return light, dark


def lay(over: Colour, under: Colour) -> Colour:
    mixed = (top * over[3] + bottom * (1 - over[3]) for top, bottom in zip(over[:3], under[:3], strict=True))
    red, green, blue = mixed
    return red, green, blue, 1.0


def find_luminance(colour: Colour) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def find_contrast(one: Colour, other: Colour) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    darker, lighter = sorted((find_luminance(one), find_luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


WORDS = ("link", "good", "bad", "quiet")
WHITE = (1.0, 1.0, 1.0, 1.0)
NIGHTS = tuple((shade / 255, shade / 255, shade / 255, 1.0) for shade in (0x12, 0x1C, 0x1E, 0x24))
"""What browsers paint below a page: in the dark each has its own."""


def test_every_colour_of_words_can_be_read_on_whatever_it_stands_on_in_light_and_dark() -> None:
    light, dark = read_colours()
    for colours, canvas in [(light, WHITE), *((dark, night) for night in NIGHTS)]:
        box = lay(colours["soft"], canvas)
        for word in WORDS:
            assert find_contrast(colours[word], box) >= 4.5, f"{word} on {canvas}"
