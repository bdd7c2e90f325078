"""Pauses of several origins: each takes back its own, and the operator all of them."""

from __future__ import annotations

from handlers.commands.rights import Person, Surface
from handlers.jobs.pauses import pause, resume
from handlers.rules import RepositoryRules, Role
from runner.rows.pauses import EVERYWHERE, fetch_pauses
from tests.support.jobs import NOON, open_database

NAME = "octo/Widgets"
BOSS = Person("boss", Surface.THREAD, RepositoryRules(NAME, agent="mine"), Role.WRITE)
OPERATOR = Person("root", Surface.TERMINAL)


async def test_a_pause_goes_on_until_every_origin_has_taken_it_back(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        assert await pause(connection, BOSS, NAME, NOON, 7)
        assert not await pause(connection, BOSS, NAME, NOON, 7), "the same label tells it twice"
        assert await pause(connection, BOSS, NAME, NOON, 8)
        assert await resume(connection, BOSS, NAME, 7) == 1
        assert await resume(connection, BOSS, NAME, 7) == 0
        (left,) = await fetch_pauses(connection)
        assert (left.repository, left.origin, left.paused_by) == ("octo/widgets", "#8", "boss")


async def test_the_operator_ends_the_pauses_of_a_repository_and_not_the_one_of_all(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        for issue in (7, 8):
            await pause(connection, BOSS, NAME, NOON, issue)
        await pause(connection, OPERATOR, EVERYWHERE, NOON)
        assert await resume(connection, OPERATOR, NAME) == 2
        (left,) = await fetch_pauses(connection)
        assert (left.repository, left.paused_by) == (EVERYWHERE, "root")
