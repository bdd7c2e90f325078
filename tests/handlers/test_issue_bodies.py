"""Issue bodies as people write them: what GitHub shows as code reaches the agent byte for byte."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from textwrap import indent

import pytest

from handlers.text.hidden_text import UNSEEN, reveal
from handlers.text.repros import extract_repros
from tests.support.github_markdown import render_github

FOLDER = Path(__file__).parents[1] / "payloads" / "issues"
BODIES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
SCRIPTS = {
    **dict.fromkeys(("01-traceback", "04-collect-env", "05-nested-fence", "06-table-and-images"), 1),
    **dict.fromkeys(("07-doctest", "08-checklist", "09-gdb", "10-unclosed"), 1),
}
"""How many repro scripts each has."""


def list_code(text: str) -> list[str]:
    """The code blocks that GitHub shows."""
    blocks = re.findall(r"<pre><code[^>]*>(.*?)</code></pre>", render_github(text), re.DOTALL)
    return [unescape(code) for code in blocks]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", BODIES)
def test_code_keeps_its_bytes(name: str, ends: str) -> None:
    text = BODIES[name].replace("\n", ends)
    shown = reveal(text)
    blocks = list_code(BODIES[name])
    assert blocks
    # One fence is indented: the parser takes that from its lines, an agent is given them as they are.
    ways = [[f"\n{indent(block, before)}" for before in ("", " ")] for block in blocks]
    assert [way[0] for way in ways if not any(block in f"{shown}\n" for block in way)] == []
    assert UNSEEN not in shown


@pytest.mark.parametrize("name", BODIES)
def test_scripts_are_extracted_as_they_were_written(name: str) -> None:
    scripts = extract_repros([("the issue", reveal(BODIES[name]))], ["widgets"])
    assert len(scripts) == SCRIPTS.get(name, 0)
    assert scripts == extract_repros([("the issue", BODIES[name])], ["widgets"])


def test_there_are_ten() -> None:
    assert len(BODIES) == 10
