"""The times that replicas share, over a real database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from handlers.recovery.heartbeats import (
    ALIVE,
    LOOKED,
    beat,
    enable_repositories,
    fetch_beat,
    fetch_enabled,
    note_look,
)
from tests.support.jobs import NOON, open_database

LATER, LAST = NOON + timedelta(minutes=1), NOON + timedelta(minutes=2)


async def test_the_newest_of_all_replicas_counts(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        assert await fetch_beat(connection, ALIVE) is None
        for at in (LATER, NOON):
            await beat(connection, ALIVE, at)
        assert await fetch_beat(connection, ALIVE) == LATER
        await beat(connection, ALIVE, LAST)
        assert await fetch_beat(connection, ALIVE) == LAST
        assert await fetch_beat(connection, LOOKED) is None


async def test_a_repository_is_enabled_the_first_time_that_it_is_configured(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await enable_repositories(connection, ["Octo/Widgets"], NOON)
        await enable_repositories(connection, ["octo/widgets", "octo/more"], LATER)
        enabled = await fetch_enabled(connection)
        assert {name: row.enabled_at for name, row in enabled.items()} == {"octo/widgets": NOON, "octo/more": LATER}


async def test_a_repository_begins_with_the_whole_second_because_github_tells_no_fractions(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await enable_repositories(connection, ["octo/widgets"], NOON + timedelta(milliseconds=700))
        assert (await fetch_enabled(connection))["octo/widgets"].enabled_at == NOON


async def test_a_repository_that_was_out_of_the_configuration_begins_again(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await enable_repositories(connection, ["octo/widgets", "octo/more"], NOON)
        await enable_repositories(connection, ["octo/more"], LATER)
        await enable_repositories(connection, ["octo/widgets", "octo/more"], LAST)
        enabled = await fetch_enabled(connection)
        assert {name: row.enabled_at for name, row in enabled.items()} == {"octo/widgets": LAST, "octo/more": NOON}


async def test_how_far_labels_were_looked_for_never_goes_back(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, database.write() as connection:
        await enable_repositories(connection, ["octo/widgets", "octo/more"], NOON)
        for at in (LAST, LATER):
            await note_look(connection, "Octo/Widgets", at)
        enabled = await fetch_enabled(connection)
        assert [enabled[name].looked_at for name in ("octo/widgets", "octo/more")] == [LAST, NOON]
