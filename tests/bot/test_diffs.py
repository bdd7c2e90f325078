"""What a diff looks like on a page: by file, with colours that can be read, whatever is in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from bot import pages
from bot.dashboard.diffs import COLOURED_DIFF, COLOURED_LINES, read_diff
from bot.dashboard.syntax import find_language, paint
from tests.support.site import PATCH

NAMES = (
    *("a.py", "a.c", "a.ts", "a.java", "a.go", "a.rs", "a.sh", "Dockerfile", "CMakeLists.txt", "a.yaml", "a.json"),
    *("a.css", "a.html", "a.sql", "a.lua", "Makefile"),
)
UNITS = (
    *(
        '"',
        "'",
        "`",
        '"""',
        "'''",
        "\\",
        '"\\',
        "/*",
        "//",
        "#",
        "--",
        "<!--",
        "<",
        "<a ",
        "{{",
        "$(",
        "${a",
        "@",
        "@a",
    ),
    *(" ", "\n", " \n", "\t", "a", "a ", "a.", "1", "1.", "0x", "a-", "a: ", "[a", "'a", "=begin\n", "é", "\r", "def "),
)
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


class Reader(HTMLParser):
    """The text of some HTML, with the classes that each piece of it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.marked, self.open = "", set[tuple[str, str]](), [""]
        self.feed(html)
        self.close()
        assert self.open == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "span"
        assert [name for name, _ in attrs] == ["class"]
        self.open.append(attrs[0][1] or "")

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data
        self.marked.add((self.open[-1], data))


def read_lines(patch: str) -> list[Reader]:
    return [Reader(str(escape(line))) for file in read_diff(patch) for _, line in file.lines]


def test_the_code_of_a_diff_has_colours_and_each_side_is_read_by_itself() -> None:
    lines = read_lines(OLD_AND_NEW)
    assert "".join(line.text for line in lines) == OLD_AND_NEW
    marked = [line.marked for line in lines]
    assert {("keyword", "def"), ("name", "f")} <= marked[4]
    assert ("string", '"""Old') in marked[5]
    assert ("string", '    import"""') in marked[6], "a text of several lines goes on, on its own side"
    assert {("keyword", "import"), ("comment", "# <b>")} <= marked[7]
    assert {("keyword", "return"), ("string", '"1"')} <= marked[8]
    assert [kind for kind, _ in read_diff(OLD_AND_NEW)[0].lines][3:] == [
        "hunk",
        "",
        "minus",
        "minus",
        "plus",
        "plus",
        "",
        "",
    ]


@pytest.mark.parametrize("name", ["a.unknown", "a b.xyz"])
def test_a_file_in_a_language_that_we_do_not_know_has_none(name: str) -> None:
    for line in read_lines(PATCH.replace("chunks.py", name)):
        assert {kind for kind, _ in line.marked} <= {""}


def test_a_diff_is_shown_whole_whatever_is_missing_in_it() -> None:
    for patch in (
        OLD_AND_NEW,
        OLD_AND_NEW.replace("\n \n", "\n\n"),
        PATCH[:-5],
        PATCH + "@@\n",
        PATCH + "@@ x\n\n\n-\n+\n",
    ):
        assert "".join(line.text for line in read_lines(patch)).removesuffix("\n") == patch.removesuffix("\n")


@pytest.mark.parametrize("name", NAMES)
def test_no_code_is_lost_or_never_done_whatever_it_is(name: str) -> None:
    language = find_language(name)
    assert language
    for unit in UNITS:
        # Whoever looked back at it all would never be done with so much.
        code = (unit * 30_000)[:30_000]
        assert "".join(Reader("\n".join(paint(code, language))).text) == code, unit


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


GROUNDS = ("soft", "plus", "minus")
WORDS = {
    **dict.fromkeys(("keyword", "string", "comment", "number", "name"), GROUNDS),
    **dict.fromkeys(("link", "good", "bad"), GROUNDS[:1]),
}
WHITE = (1.0, 1.0, 1.0, 1.0)
NIGHTS = tuple((shade / 255, shade / 255, shade / 255, 1.0) for shade in (0x12, 0x1C, 0x1E, 0x24))
"""What browsers paint below a page: in the dark each has its own."""


def test_every_colour_of_words_can_be_read_on_whatever_it_stands_on_in_light_and_dark() -> None:
    light, dark = read_colours()
    for colours, canvas in [(light, WHITE), *((dark, night) for night in NIGHTS)]:
        box = lay(colours["soft"], canvas)
        for word, grounds in WORDS.items():
            for name in grounds:
                ground = box if name == "soft" else lay(colours[name], box)
                assert find_contrast(colours[word], ground) >= 4.5, f"{word} on {name} on {canvas}"
