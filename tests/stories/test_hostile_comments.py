"""The whole hostile corpus, as comments of a stranger: nothing starts, and few words come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.playground import STRANGER
from handlers.commands.table import COMMANDS, parse_commands, render_help
from handlers.rules import Role
from handlers.words.replies import render_idle, render_no_permission
from tests.support.corpus import load_corpus
from tests.support.readers import find_live
from tests.support.world import open_world

pytestmark = pytest.mark.slow

MAX_COMMENT = 65_536
"""Characters that GitHub takes."""
TOGETHER = 10
"""Texts in one comment."""


def gather(texts: list[str]) -> list[str]:
    """What the stranger writes: each text that may hold a command in a comment of its own, and the others together."""
    alone = [text for text in texts if "ptq" in text.casefold()]
    others = [text for text in texts if text not in alone]
    assert [text for text in others if parse_commands(text)] == []
    pages = ["\n\n".join(others[first : first + TOGETHER]) for first in range(0, len(others), TOGETHER)]
    assert max(map(len, pages)) <= MAX_COMMENT
    return alone + pages


async def test_a_stranger_who_sends_the_whole_corpus_starts_nothing_and_is_answered_once_each(tmp_path: Path) -> None:
    texts = gather([case.text for case in load_corpus() if case.text.strip() and len(case.text) <= MAX_COMMENT])
    async with open_world(tmp_path) as world:
        world.patience_s *= 2
        await world.open_issue()
        for text in texts:
            await world.comment(text, by=STRANGER)
        await world.settle()
        assert await world.jobs() == []
        assert world.pulls() == []
        words = [body.partition(" -->\n")[2] for body in world.replies()]
        idle = render_idle(world.playground.service.context.public_url, None)
        rules = world.playground.service.context.rules_for("octo/widgets")
        refusals = [
            render_no_permission(STRANGER, "octo/widgets", Role.WRITE, command=f"/ptq {verb}" if verb else "")
            for verb in ("", *COMMANDS)
        ]
        (refusal,) = set(words) & set(refusals)
        assert sorted(words) == sorted([refusal, render_help(rules), idle])
        for body in words:
            assert parse_commands(body) == []
            assert find_live(body) in ([], ["@d"])
