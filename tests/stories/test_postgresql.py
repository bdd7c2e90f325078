"""The main story once more, with everything durable in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.world import NOTE, open_world

pytestmark = pytest.mark.slow


async def test_a_label_becomes_a_draft_pull_request_also_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    async with open_world(tmp_path, on_real_machine=True, database_url=postgres_url) as world:
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        assert "Fix staged" in report
        await world.playground.stop_service()
        await world.playground.start_service()
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert pull.draft
        assert pull.body.startswith(f"**@maintainer wrote:**\n\n{NOTE}")
        assert len(world.reports()) == len(world.statuses()) == 1
    assert not list(tmp_path.glob("*.db*")), "nothing was left in SQLite"
