"""The service is killed at every step of a maintainer's words to a running agent: the agent hears them exactly once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.crash.installation import PATIENCE_S, Installation
from tests.crash.points import Point
from tests.support.steered_agent import describe_steered_agent, read_heard
from tests.support.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STORED = "commit insert tellings + insert job_events + insert replies"
TOLD = "ssh: tell"
GIVEN = "commit update tellings(given_at) + insert job_events"


@pytest.mark.parametrize(
    "points",
    [
        [Point(STORED, "before", 1), Point(STORED, "after", 1), Point(TOLD, "before", 1), Point(TOLD, "sent", 1)],
        [Point(TOLD, "after", 1), Point(GIVEN, "before", 1), Point(GIVEN, "after", 1)],
    ],
    ids=["up to the machine", "after the machine"],
)
async def test_an_agent_hears_words_once_wherever_the_service_is_killed(tmp_path: Path, points: list[Point]) -> None:
    signs, database = tmp_path / "signs", tmp_path / "ptq.db"
    signs.mkdir()
    url, toml = f"sqlite+aiosqlite:///{database}", describe_steered_agent(tmp_path)
    options: dict[str, Any] = {
        "agent": Path("unused"),
        "more_toml": toml,
        "repository_agent": "steered",
        "verify_runs": 0,
    }
    async with Installation(tmp_path, database_url=url, points=points, **options) as installation:
        world = World(installation, PATIENCE_S)
        await world.open_issue()
        await world.label()
        await installation.wait_for(lambda: bool(read_heard(tmp_path)), "the agent")
        await world.comment("/ptq tell Look at the loop. Finish now.")
        try:
            await world.wait_for_reply("[report](http")
        except AssertionError as error:
            error.add_note(f"reached: {', '.join(map(str, installation.fate.reached))}\n{installation.tail()}")
            raise
        assert installation.fate.waiting == []
        (report,) = world.reports()
        assert "Look at the loop." in report
        assert "not delivered" not in report
        assert len([reply for reply in world.replies() if "Noted. The agent gets your message" in reply]) == 1
    _, (option, _, words) = read_heard(tmp_path)
    assert option == "--resume"
    assert words.count("Look at the loop.") == 1
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*), count(given_at) FROM tellings").fetchall() == [(1, 1)]
        assert connection.execute("SELECT turns FROM meters").fetchall() == [(2,)], "nothing is counted twice"
    connection.close()
