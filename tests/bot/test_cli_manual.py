"""`docs/command-line.md`, which is made from the commands, and every command that a document tells people to type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli_manual import Typed, complain, find_typed, list_commands, render_manual
from tests.support.manuals import check_manual

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def test_the_reference_has_what_the_commands_take() -> None:
    check_manual("command-line.md", "the commands themselves", render_manual())


def test_every_command_argument_and_option_has_its_words() -> None:
    assert [name for name, command in list_commands().items() if not command.help] == []
    assert re.findall(r"^\|.*\| *\|.*$", render_manual(), re.MULTILINE) == []


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_tells_people_to_type_is_taken(document: Path) -> None:
    typed = find_typed(document.read_text())
    assert {" ".join(one.words): said for one in typed if (said := complain(one))} == {}


def test_command_lines_are_found_where_people_copy_them() -> None:
    line = 'docker compose exec ptq ptq-bot run --repo a/b "x y" --config c < in   # why'
    block = f"```sh\n{line}\nsystemctl reload ptq-bot\n```\n"
    assert [*find_typed(f"A `ptq-bot\ndoctor`.\n\n{block}")] == [
        Typed(("run", "--repo", "a/b", "x y", "--config", "c"), is_whole=True),
        Typed(("doctor",), is_whole=False),
    ]


@pytest.mark.parametrize(
    ("words", "is_whole", "said"),
    [
        ("deliveries replay --force", False, "--force"),
        ("delivery", False, "no such command"),
        ("db backup", True, "Missing"),
        ("jobs", True, "no such command"),
        ("report --config c", True, "Missing"),
        ("db upgrade now --config c", True, "unexpected"),
        ("sweep --repo r --label l --limit many --config c", True, "integer"),
    ],
)
def test_a_wrong_command_in_a_document_is_complained_of(words: str, is_whole: bool, said: str) -> None:
    assert said in complain(Typed(tuple(words.split()), is_whole))


@pytest.mark.parametrize("words", ["jobs", "db upgrade", "takeover --key", "sweep", "--install-completion"])
def test_a_sentence_may_name_a_command_without_saying_all_of_it(words: str) -> None:
    assert complain(Typed(tuple(words.split()), is_whole=False)) == ""
