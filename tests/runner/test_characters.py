from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.characters import (
    drop_invisible,
    escape_invisible,
    is_invisible,
    name_oddities,
    show_invisible,
    show_path,
    unescape_invisible,
    unify,
)
from tests.support.cpu_time import measure_cpu, takes_at_most


@pytest.mark.parametrize(
    "char",
    [
        *("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad"),  # zero width, the soft hyphen
        *("\u202e", "\u2066", "\u061c", "\u200f"),  # bidirectional
        *("\U000e0001", "\U000e0041", "\U000e01ef", "\ufe00"),  # tags and variation selectors
        *("\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b"),  # control characters
        *("\u3164", "\u2800", "\u115f", "\u034f", "\u180e"),  # drawn as nothing
        *("\U0001d159", "\U00016fe4", "\U00013441"),  # blank notes and letters
        *("\u2028", "\u2029", "\ue000", "\ud800"),  # odd line breaks, private use, half a character
    ],
    ids=lambda char: f"U+{ord(char):04X}",
)
def test_what_nobody_can_see_is_invisible(char: str) -> None:
    assert is_invisible(char)
    assert show_invisible(f"a{char}b") == f"a⟨U+{ord(char):04X}⟩b"
    assert drop_invisible(f"a{char}b") == "ab"


@pytest.mark.parametrize(
    "char", ["a", " ", "\t", "\n", "\r\n", "é", "\u0301", "漢", "ب", "🙂", "❤\ufe0f", "1\ufe0f\u20e3"]
)
def test_what_people_write_is_visible(char: str) -> None:
    assert not any(map(is_invisible, char))
    assert show_invisible(char) == escape_invisible(char) == drop_invisible(char) == char
    assert name_oddities(char) == []


@pytest.mark.parametrize("char", ["\u00a0", "\u2009", "\u3000", "\u0378", "\U0001fffe"])
def test_a_diff_tells_other_spaces_and_unassigned_characters_from_a_plain_space(char: str) -> None:
    assert show_invisible(char) == drop_invisible(char) == char
    assert name_oddities(char) == []
    assert escape_invisible(f"a{char}b") == f"a⟨U+{ord(char):04X}⟩b"
    assert unescape_invisible(escape_invisible(f"a{char}b")) == f"a{char}b"


@pytest.mark.parametrize("selector", ["\ufe0e", "\ufe0f"])
@pytest.mark.parametrize("before", ["ok", "漢", "ℹ", "1", "#", "", "❤\u200b", "❤\ufe0f"])
def test_a_selector_of_emoji_is_invisible_behind_anything_else(before: str, selector: str) -> None:
    text = f"{before}{selector} = 1"
    mark = f"⟨U+{ord(selector):04X}⟩"
    assert show_invisible(text) == f"{show_invisible(before)}{mark} = 1"
    assert drop_invisible(text) == f"{drop_invisible(before)} = 1"
    assert escape_invisible(text) == f"{escape_invisible(before)}{mark} = 1"
    assert unescape_invisible(escape_invisible(text)) == text
    assert mark.strip("⟨⟩") in name_oddities(text)[-1]


@given(st.text(st.sampled_from("a1#❤\u200b\ufe0e\ufe0f\u20e3⟨⟩U+FE0\r")))
def test_text_with_selectors_is_read_back_and_stays_as_it_is_shown(text: str) -> None:
    assert unescape_invisible(escape_invisible(text)) == text
    assert show_invisible(show_invisible(text)) == show_invisible(text)
    assert drop_invisible(drop_invisible(text)) == drop_invisible(text)
    assert name_oddities(drop_invisible(text).replace("\r", "")) == []


def test_oddities_are_named_by_kind() -> None:
    assert name_oddities("plain\ntext") == []
    assert name_oddities("") == []
    assert name_oddities("x = \u05d0 + 1  # \u0645") == [
        "lines with right-to-left letters, which can show signs and numbers in another place: U+05D0, U+0645"
    ]
    assert name_oddities("\u05d0 \u05d1\nplain\n") == [], "no line has both directions"
    assert name_oddities("a\u202eb\u200bc\u2066") == [
        "characters that change the order of what is read: U+202E, U+2066",
        "invisible characters: U+200B",
    ]
    assert name_oddities("\x00\x01\x02\x03\x04\x05\x06") == [
        "invisible characters: U+0000, U+0001, U+0002, U+0003, U+0004 and 2 more"
    ]


def test_a_line_is_too_long_from_a_thousand_characters_on() -> None:
    assert name_oddities("x" * 1000 + "\n" + "y" * 1000) == []
    assert name_oddities("short\n" + "x" * 1001) == ["a line of 1001 characters"]


@given(st.text(st.characters(exclude_characters="\ufe0e\ufe0f")))
def test_text_that_is_shown_or_stripped_hides_nothing_more(text: str) -> None:
    assert not any(map(is_invisible, show_invisible(text)))
    assert drop_invisible(text) == "".join(char for char in text if not is_invisible(char))


@pytest.mark.slow
def test_a_name_in_a_program_has_no_visible_selector() -> None:
    texts = (f"{chr(number)}\ufe0f" for number in range(0x20000))
    assert [text for text in texts if text.isidentifier() and not name_oddities(text)] == []


@pytest.mark.slow
def test_megabytes_are_read_in_no_time() -> None:
    text = "é\u200b x" * 450_000 + "x\ufe0f" * 50_000
    assert measure_cpu(lambda: (name_oddities(text), show_invisible(text))) < 2


@pytest.mark.parametrize(("blanks", "named"), [(" " * 79, False), (" " * 88, True), ("\t" * 11, True)])
def test_what_stands_far_to_the_right_is_named(blanks: str, named: bool) -> None:
    assert (
        name_oddities(f"x = 1{blanks}; evil()\n")
        == ["something behind 80 columns of blanks or more in one line"] * named
    )
    assert name_oddities(f"{blanks}x = 1\n") == ["something behind 80 columns of blanks or more in one line"] * named
    assert name_oddities(f"x = 1{blanks}\n{blanks}") == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("x = 1" + (" " * 79 + ";") * 11 + "evil()", True),
        ("x = 1" + "\t\t\t\t\t\t;" * 2 + "evil()", True),
        (" " * 40 + "x = 1" + " " * 40 + "# evil()", True),
        (" " * 40 + "x = 1" + " " * 39 + "# fine", False),
        ("| a     " * 30 + "|", False),
        ("a word  " * 100, False),
        (" " * 40 + "x = 1" + " " * 900 + "\r", False),
    ],
)
def test_columns_of_all_gaps_of_a_line_count(line: str, named: bool) -> None:
    assert name_oddities(f"{line}\n") == ["something behind 80 columns of blanks or more in one line"] * named


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("\uff54\uff49\uff54\uff4c\uff45\u00a0\ufb01x", "title fix"),
        ("cafe\u0301 a\u0308b\n", "caf\u00e9 \u00e4b\n"),
        ("e\u0301" * 600, None),
    ],
)
def test_characters_that_look_the_same_are_spelt_the_same(text: str, expected: str | None) -> None:
    assert unify(text) == expected if expected else unify(text).count("\u00e9") > 590


@given(st.text())
def test_a_text_of_plain_letters_comes_out_of_any_spelling(text: str) -> None:
    assert unify("".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)) == unify(text)


def test_a_long_text_is_written_out_like_a_short_one() -> None:
    assert escape_invisible("a\u200b\u00a0\r\n" * 30_000) == escape_invisible("a\u200b\u00a0\r\n") * 30_000


@pytest.mark.slow
async def test_others_take_their_turns_while_a_long_text_is_written_out() -> None:
    """Pages are drawn in a thread, which helps only if no single step takes long."""
    writing = asyncio.create_task(asyncio.to_thread(escape_invisible, "\u00f6" * 8_000_000))
    longest_s = 0.0
    while not writing.done():
        began = time.process_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.process_time() - began)
    assert longest_s < 0.35


def test_a_long_name_is_cut_before_it_is_written_out() -> None:
    """A machine may send megabytes, and nothing else runs meanwhile."""
    long, longer = ("\u202e" * size for size in (20_000, 2_000_000))
    assert show_path(longer) == show_path(long)
    assert takes_at_most(10, lambda: show_path(long), lambda: show_path(longer))
