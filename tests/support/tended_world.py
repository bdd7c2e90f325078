"""Worlds whose service looks for what it missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.world import World, open_world


@asynccontextmanager
async def open_tended_world(folder: Path, recover_s: float = 300.0, **choices: Any) -> AsyncIterator[World]:
    """A world whose service looks so often for what it missed, and was enabled more than a second ago."""
    async with open_world(folder, **choices) as world:
        playground = world.playground
        # A label counts as missed at once. Other worlds leave a new label to its webhook, as production does.
        playground.pace = replace(playground.pace, recover_s=recover_s, in_flight_s=0.0)
        # GitHub tells times in whole seconds.
        await asyncio.sleep(1.1)
        yield world


async def restart(world: World) -> None:
    await world.playground.stop_service()
    await world.playground.start_service()


async def settle_with(world: World, jobs: int) -> None:
    await asyncio.sleep(0.5)
    await world.settle()
    assert len(await world.jobs()) == jobs
