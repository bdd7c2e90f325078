"""The service is killed at every step of a maintainer's words to a running agent: the agent hears them exactly once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.crash.installation import PATIENCE_S, Installation
from tests.crash.points import Point
from tests.support.installed import install_program
from tests.support.jobs import write_database
from tests.support.steered_agent import describe_steered_agent, read_heard
from tests.support.world import World

pytestmark = [pytest.mark.slow(13), pytest.mark.timeout(600)]

WORDS = ("Look at the loop.", "Mind the gap.")
STORED = "commit insert tellings + insert job_events + insert replies"
TOLD = "ssh: tell"
GIVEN = "commit update tellings(given_at) + insert job_events"

STEPS = [
    *[Point(STORED, "before", 1), Point(STORED, "after", 1), Point(TOLD, "before", 1), Point(TOLD, "sent", 1)],
    *[Point(TOLD, "after", 1), Point(GIVEN, "before", 1), Point(GIVEN, "after", 1)],
]
"""One life ends at each of them. A machine gets words once, so the later ones are met with others."""


async def test_an_agent_hears_words_once_wherever_the_service_is_killed(tmp_path: Path) -> None:
    signs, database = tmp_path / "signs", tmp_path / "ptq.db"
    signs.mkdir()
    install_program(tmp_path / "machine" / "workspace")
    write_database(database)
    url, toml = f"sqlite+aiosqlite:///{database}", describe_steered_agent(tmp_path)
    options: dict[str, Any] = {
        "agent": Path("unused"),
        "more_toml": toml,
        "repository_agent": "steered",
        "verify_runs": 0,
    }
    async with Installation(tmp_path, database_url=url, points=[*STEPS], **options) as installation:
        world = World(installation, PATIENCE_S)
        await world.open_issue()
        await world.label()
        await installation.wait_for(lambda: bool(read_heard(tmp_path)), "the agent")
        try:
            await world.comment(f"/ptq tell {WORDS[0]}")
            await installation.wait_for(lambda: len(read_heard(tmp_path)) == 2, "the first words to be heard")
            await world.comment(f"/ptq tell {WORDS[1]} Finish now.")
            await world.wait_for_reply("[report](http")
        except AssertionError as error:
            error.add_note(f"reached: {', '.join(map(str, installation.fate.reached))}\n{installation.tail()}")
            raise
        assert installation.fate.waiting == []
        (report,) = world.reports()
        assert all(words in report for words in WORDS)
        assert "not delivered" not in report
        assert len([reply for reply in world.replies() if "Noted. The agent gets your message" in reply]) == 2
    _, first, second = read_heard(tmp_path)
    assert [option for option, *_ in (first, second)] == ["--resume", "--resume"]
    assert [first[2].count(words) for words in WORDS] == [1, 0]
    assert [second[2].count(words) for words in WORDS] == [0, 1]
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*), count(given_at) FROM tellings").fetchall() == [(2, 2)]
        assert connection.execute("SELECT turns FROM meters").fetchall() == [(3,)], "nothing is counted twice"
    connection.close()
