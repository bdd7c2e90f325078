"""`docs/troubleshooting.md`: every message and log event that it quotes is one that the program has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
HEAD = "| message |"
"""How a table of messages begins."""

GAP = "\0"
"""In place of a value in a message."""


def read_text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(read_text(part) or GAP for part in node.values)
    return None


def list_texts() -> Iterator[str]:
    for package in ("bot", "handlers", "runner"):
        for path in (ROOT / package).rglob("*.py"):
            yield from filter(None, map(read_text, ast.walk(ast.parse(path.read_text()))))


@pytest.fixture(scope="module")
def said() -> str:
    """Every text in the program."""
    return "\n".join(list_texts())


def list_messages(page: str) -> Iterator[str]:
    """The code at the beginning of each row of a table of messages."""
    for table in re.findall(rf"^{re.escape(HEAD)}.*\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE):
        yield from re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)


@pytest.mark.slow
def test_every_message_on_the_page_is_in_the_program(said: str) -> None:
    messages = [*list_messages(PAGE)]
    assert len(messages) == sum(
        len(table.splitlines()) for table in re.findall(r"\| message .*\n\|-.*\n((?:\|.*\n)+)", PAGE)
    )
    parts = {part.strip(" ()") for message in messages for part in message.split("…")}
    assert sorted(part for part in parts if part not in said) == []


def test_every_log_event_on_the_page_is_in_the_program(said: str) -> None:
    named = re.findall(r"(?:events?|has) `([a-z_]+\.[a-z_]+)`", PAGE)
    assert len(named) > 5
    assert [event for event in named if f"\n{event}\n" not in said] == []
