from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.commands.rights import Operation
from handlers.commands.table import (
    COMMANDS,
    MAX_COMMANDS,
    MAX_READ,
    Command,
    UnknownCommand,
    find_command_with_mail,
    parse_commands,
    render_help,
    render_manual,
)
from handlers.rules import COMMANDED, PRESETS, RepositoryRules, Role
from handlers.words.replies import render_unknown_command
from tests.support.corpus import cases_of
from tests.support.github_markdown import render_github
from tests.support.manuals import check_manual

FIX = Command("fix", "", "")

SILENCING = {case.name: case.text for case in cases_of("comment") if case.fields.get("silences")}
COMMANDS_NOWHERE = {
    case.name: case.text for case in cases_of("comment") if not case.fields["shown"] and case.name not in SILENCING
}


@pytest.mark.parametrize("comment", COMMANDS_NOWHERE.values(), ids=COMMANDS_NOWHERE)
def test_a_command_above_it_is_heard_all_the_same(comment: str) -> None:
    commands = parse_commands(f"/ptq fix\n\n{comment}")
    assert [command.verb for command in commands if isinstance(command, Command)] == ["fix"]


@pytest.mark.parametrize("comment", SILENCING.values(), ids=SILENCING)
def test_a_command_above_a_mail_that_is_not_recognised_as_one_is_not_heard(comment: str) -> None:
    assert parse_commands(f"/ptq fix\n\n{comment}") == []
    found = find_command_with_mail(f"\n  \n/ptq fix\n\n{comment}")
    assert isinstance(found, Command)
    assert found.verb == "fix"
    assert find_command_with_mail(comment) is None


def test_a_comment_without_such_a_mail_has_no_command_that_it_keeps_back() -> None:
    assert find_command_with_mail("/ptq fix") is None
    assert find_command_with_mail("From: alice <notifications@github.com>") is None


@pytest.mark.parametrize(
    ("comment", "command"),
    [
        ("/ptq fix", FIX),
        ("   /ptq fix  ", FIX),
        ("/ptq\tfix", FIX),
        ("/PTQ Fix", FIX),
        ("/ptq fix:", FIX),
        ("/ptq", Command("help", "", "")),
        ("Thanks!\n/ptq fix", FIX),
        ("Thanks!  \n/ptq fix", FIX),
        ("Thanks!\\\n/ptq fix", FIX),
        ("> It breaks\n\n/ptq fix", FIX),
        ("- a\n\n/ptq fix", FIX),
        ("<details>\n\nsee\n\n</details>\n\n/ptq fix", FIX),
        ("<!-- hidden -->\n\n/ptq fix", FIX),
        ("the List<int> fails\n\n/ptq fix", FIX),
        ("/ptq fix look at `chunks.py`  ", Command("fix", "look at `chunks.py`", "")),
        ("/ptq fix\nthe loop\n\n- and this\n", Command("fix", "", "the loop\n\n- and this")),
        ("/ptq pr 0123456789ab\r\n\r\nIt is right.\r\n", Command("pr", "0123456789ab", "It is right.")),
        ("/ptq pr\n\n> /ptq fix", Command("pr", "", "> /ptq fix")),
        ("/ptq pr\n\nRight.\n\nOn 4 Nov 2025, x wrote:\n\n> the report", Command("pr", "", "Right.")),
        ("/ptq pr\n\nRight.\n\nAr 4 Tach 2025, ysgrifennodd x\n<x@y>:\n\n> a\n\n> b", Command("pr", "", "Right.")),
        ("/ptq pr\n\nSee at 10:30:\n> a\n\nRight.", Command("pr", "", "See at 10:30:\n> a\n\nRight.")),
        ("/ptq pr\n\nI mean this:\n> a", Command("pr", "", "I mean this:\n> a")),
        ("/ptq pr\n\nOn failure the loop wrote: nothing.", Command("pr", "", "On failure the loop wrote: nothing.")),
    ],
)
def test_a_command_is_read_with_its_argument_and_what_stands_below(comment: str, command: Command) -> None:
    assert parse_commands(comment) == [command]


@pytest.mark.parametrize(
    "above",
    [
        *("> [a]: b", "- [a]: b", "1. [a]: b", "> - [a]: b", "> hi\n>\n> [a]: b", "- a\n\n  [a]: b", "> [a]: b 'c'"),
        *("> [a]: b\nmore", "> [a]: b\n    more", "> [a]: b\n    >", "> [a]: b\n[c]: d", "> > [a]: b\n>\tx"),
    ],
)
def test_a_command_that_github_shows_in_the_quote_or_list_above_is_none(above: str) -> None:
    comment = f"{above}\n/ptq fix"
    assert "<p>/ptq fix" not in re.sub(r"<(blockquote|[uo]l)>.*</\1>", "", render_github(comment), flags=re.DOTALL)
    assert parse_commands(comment) == []


@pytest.mark.parametrize("above", ["> [a]: b\n", "- [a]: b\n\t", "> a\n>", "> > [a]: b\n>>", "> a\n\nb", "[a]: b"])
def test_a_command_that_github_shows_below_a_quote_or_list_is_heard(above: str) -> None:
    comment = f"{above}\n/ptq fix"
    assert "/ptq fix" in re.sub(r"<(blockquote|[uo]l)>.*</\1>", "", render_github(comment), flags=re.DOTALL)
    assert parse_commands(comment) == [FIX]


@pytest.mark.parametrize(
    "comment",
    [
        *("Log:\n`x\n/ptq fix\n<!doctype html> 404`\nI'll look.", "`\n/ptq fix\n<search>`"),
        *("[^log]:\n1.\n   ```\n```\n\n/ptq fix\n```", "- x\n[^1]:\n  ```\n\n/ptq fix\n```"),
        "<p title='>\n\n/ptq fix\n\n'>Thanks.",
        *("text\n<source>\n```\n\n```\n/ptq fix\n```", "a\n<search></search>\n```\n\n/ptq fix\n```"),
        *("> a\n<source>\n\n/ptq fix", "[^1]: u\n\n    x\n/ptq fix", "Yes[^1].\n\n[^1]: u\n\n\tx\ny\n/ptq fix"),
        *("1.\n    \n   /ptq fix", "1. [a\nb]: /u\n[a\nb]: /u\n\n   ```\n```\n/ptq fix"),
        *("- a | b\n-|-\n     z\n   /ptq fix", "<div>\n<!-- x > y\n\n/ptq fix", "<p>\n<!-- > <b>\n\n/ptq fix"),
    ],
)
def test_a_command_that_github_may_show_otherwise_than_our_parser_is_none(comment: str) -> None:
    assert parse_commands(comment) == []


@pytest.mark.parametrize(
    "above",
    [
        *("```html\n<source src=x>\n```\n", "```\n[^1]: u\n```\n", "See[^1].\n\n[^1]: u\n\n    more\n\n"),
        *("1. a\n\n  ```py\n  x\n  ```\n\n", "- a\n```\n  x\n```\n\n", "- a\n  - b\n\nwords\n\n", "- a\n\n  b\n\n"),
        "1. a\n2. b\n\n> q\n\n",
    ],
)
def test_a_command_below_lists_code_and_footnotes_is_heard(above: str) -> None:
    assert parse_commands(f"{above}/ptq fix") == [FIX]


@pytest.mark.parametrize(
    ("above", "below"),
    [
        *(("see <!-- x\n", "y --> z"), ('<b title="x\n', 'y">x</b>'), ("`x\n", "y`"), ("", "---"), ("", "===")),
        *(("", "-|-\n|a|b|"), ("[a\n", "b](/u)"), ("~~x\n", "y~~"), ("", "more\n---")),
    ],
)
def test_what_is_beyond_the_part_that_is_read_makes_no_command_of_code_or_a_heading(above: str, below: str) -> None:
    line = "/ptq fix | x" if below.startswith("-|") else "/ptq fix"
    words = ("word " * MAX_READ)[: MAX_READ - len(above) - len(line) - 5]
    assert parse_commands(f"{words}\n\n{above}{line}\n{below}") == []
    assert parse_commands(f"{words}\n\n{line}\nand so on") != []


def test_a_link_whose_definition_is_beyond_the_part_that_is_read_holds_no_command() -> None:
    assert parse_commands(f"[a\n/ptq fix\nb]\n\n{'word ' * MAX_READ}\n\n[a /ptq fix b]: /u") == []


_CONTAINER_TAG = re.compile(r"(</?(?:blockquote|ul|ol|pre|table)\b[^>]*>)")
LAYOUT = ["/ptq fix", "[a]: b", "[a]:", "b", "'c'", "# x", "***", "", "x", "```", "<div>", "</div>", "| a |", "| - |"]
MARKS = ["", "", "> ", ">", "- ", "1. ", "  ", "    ", "\t", "> > ", "> - ", "- > "]


@pytest.mark.slow
@settings(max_examples=1_000)
@given(st.lists(st.tuples(st.sampled_from(MARKS), st.sampled_from(LAYOUT)), max_size=8))
def test_every_command_is_in_no_quote_or_list_on_the_page(written: list[tuple[str, str]]) -> None:
    lines = [f"{mark}{line}" for mark, line in written]
    named = [f"{line} n{number}" if "/ptq" in line else line for number, line in enumerate(lines)]
    shown = render_github("\n".join(named))
    depth, outside = 0, ""
    for part in _CONTAINER_TAG.split(shown):
        if _CONTAINER_TAG.fullmatch(part):
            depth += -1 if part.startswith("</") else 1
        outside += "" if depth else part
    for command in parse_commands("\n".join(named)):
        assert isinstance(command, Command)
        assert f"/ptq fix {command.argument}" in outside


def test_a_comment_may_hold_several_commands_each_with_its_own_text() -> None:
    comment = "/ptq cancel\n/ptq fix with care\nand slowly\n\n/ptq status\nplease"
    assert parse_commands(comment) == [
        Command("cancel", "", ""),
        Command("fix", "with care", "and slowly"),
        Command("status", "", "please"),
    ]


def test_a_comment_with_too_many_commands_gives_the_first_ones() -> None:
    commands = parse_commands("/ptq status\n" * 20)
    assert commands == [Command("status", "", "")] * MAX_COMMANDS


@pytest.mark.parametrize(
    ("comment", "unknown"),
    [
        ("/ptq fxi", UnknownCommand("fxi", "fix")),
        ("/ptq cancle it", UnknownCommand("cancle", "cancel")),
        ("/ptq merge", UnknownCommand("merge", None)),
        ("/ptq @octocat`<b>", UnknownCommand("octocatb", None)),
        ("/ptq ***", UnknownCommand("?", None)),
        ("/ptq " + "x" * 1000, UnknownCommand("x" * 30, None)),
    ],
)
def test_a_typo_gets_a_suggestion(comment: str, unknown: UnknownCommand) -> None:
    assert parse_commands(comment) == [unknown]


@pytest.mark.parametrize(
    "comment",
    [
        "a\n:-\n/ptq fix",
        "a\n-:\nb\n/ptq fix",
        "|a|\n|-|\x0c\n/ptq fix",
        "|a|\n\x0b-|\n/ptq fix",
        "[a]: b\n|-|\n/ptq fix",
        "[a]:\n|-|\n/ptq fix",
        "a\n:-\n===\n/ptq fix",
        "/ptq fix\n|-\n-:",
        "x\n/ptq fix\n| a\n---",
    ],
)
def test_a_cell_or_a_heading_that_only_github_sees_is_no_command(comment: str) -> None:
    assert re.search(r"<(td|th|h2)[^>]*>(?:x<br />\n)?/ptq fix", render_github(comment))
    assert parse_commands(comment) == []


@pytest.mark.parametrize(
    "comment",
    [
        "/ptq fix\n| a | b |\n|---|---|\n| 1 | 2 |",
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n/ptq fix",
        "Title\n---\n/ptq fix",
        "/ptq fix\n```yaml\na: |\n---\n```",
    ],
)
def test_a_command_next_to_a_table_or_below_a_heading_is_heard(comment: str) -> None:
    assert [command.verb for command in parse_commands(comment) if isinstance(command, Command)] == ["fix"]


ROWS = ["|a|", "a|b", "a", "|-|", "-|-", ":-", "-:", "|-", "--", "===", "\x0c|-|", "\x0b-|", "[a]:", "[a]:b"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from([*ROWS, "", "    x", "/ptq fix", "   /ptq fix"]), max_size=7))
def test_no_command_is_in_what_github_shows_as_a_table(rows: list[str]) -> None:
    lines = [f"{row}{number}" if "/ptq" in row else row for number, row in enumerate(rows)]
    cells = "".join(re.findall(r"<table>.*?</table>", render_github("\n".join(lines)), re.DOTALL))
    hidden = set(re.findall(r"/ptq (fix\d+)", cells))
    heard = {command.word for command in parse_commands("\n".join(lines)) if isinstance(command, UnknownCommand)}
    assert not hidden & heard


def test_the_table_knows_every_preset_and_help_says_who_may_use_it() -> None:
    starts = {verb for verb, spec in COMMANDS.items() if spec.operation is Operation.START}
    assert starts - {"run", "retry"} == COMMANDED
    assert PRESETS.keys() >= COMMANDED
    rules = RepositoryRules("octo/widgets", agent="mine", who_may_start=Role.TRIAGE)
    assert "| triage access |" in render_help(rules)


@pytest.mark.parametrize("hidden", ["```\n/ptq fix\n```", "> a\n/ptq fix", "[^1]: a\n/ptq fix"])
def test_a_byte_order_mark_makes_no_command_of_what_the_page_hides(hidden: str) -> None:
    """GitHub's parser drops it, and sees what follows it at the beginning of a line."""
    assert parse_commands(hidden) == []
    assert parse_commands(f"\ufeff{hidden}") == []
    assert parse_commands("\ufeff/ptq fix") == [Command("fix", "", "")]


def test_the_help_shows_every_command_and_holds_no_live_one() -> None:
    table = render_help()
    for spec in COMMANDS.values():
        assert f"| `{spec.usage}` | {spec.summary} |" in table
    assert parse_commands(table) == []
    assert parse_commands(render_unknown_command("fxi", "fix")) == []


def test_the_documentation_says_what_the_table_says() -> None:
    made = re.sub(r"docs/([a-z-]+)\.md", r"[\1](\1.md)", render_manual())  # They are pages beside this one.
    check_manual("commands.md", "the table in handlers/commands/table.py", made)


PIECES = [
    *("/ptq fix", "/ptq", " ", "\n", "\n\n", "\r\n", "\r", "`", "```", "> ", "- ", "    ", "<!--", "-->", "<details>"),
    *(
        "</details>",
        "[",
        "](",
        ")",
        "*",
        "~~",
        "|",
        "\n-|-\n",
        "\\",
        "x",
        "On 1 ",
        "wrote:",
        "\x00",
        "\ud800",
        "\u2028",
    ),
]


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=200))
def test_whatever_the_text_the_parser_answers(comment: str) -> None:
    commands = parse_commands(comment)
    assert len(commands) <= MAX_COMMANDS
    assert all(isinstance(command, UnknownCommand) or command.verb in COMMANDS for command in commands)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "[",
        "![",
        "<",
        "<!--",
        "*a_",
        "> ",
        "- ",
        "|a",
        "a `\n/ptq fix\n",
        "<div>\n\n",
        "on 1\n",
        "\\",
        "[a](",
        "a\n",
    ],
)
def test_a_long_comment_takes_no_longer_than_one_of_a_few_lines(piece: str) -> None:
    comment = "/ptq fix\n\n" + piece * (65_000 // len(piece))
    short, long = measure(comment[:MAX_READ], comment)
    assert long < 4 * short + 0.005


def measure(*comments: str) -> list[float]:
    """The least seconds of work that each of these comments takes.

    They are read in turn, so that what else the machine does holds up all of them alike. Only this thread counts: the
    one that reports to a parallel run of tests works, too.
    """
    rounds = [[_measure_once(comment) for comment in comments] for _ in range(7)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _measure_once(comment: str) -> float:
    began = time.thread_time()
    parse_commands(comment)
    return time.thread_time() - began


@pytest.mark.parametrize(
    "line", ["2020 " + "wrote " * 110, "a" * 100 + " 2020" + " wrote" * 90, "2020:" + " wrote:" * 99]
)
def test_a_line_that_nearly_begins_forwarded_mail_is_read_in_little_time(line: str) -> None:
    plain = "x" * len(line)
    others, lines = measure(*(f"/ptq fix\n{(text + chr(10)) * 5}" for text in (plain, line)))
    assert lines < 20 * others


def test_commands_are_read_at_the_beginning_of_a_comment_with_all_that_stands_below() -> None:
    words = "word " * (MAX_READ // 5)
    assert parse_commands(f"{words}\n\n/ptq fix") == []
    assert parse_commands(f"/ptq fix\n{words}\n\nand more") == [Command("fix", "", f"{words}\n\nand more")]
    assert parse_commands(f"/ptq fix {words}") == [Command("fix", words.strip(), "")]
