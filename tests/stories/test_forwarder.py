"""What somebody between GitHub and the service took, and lost, is found out and done: once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bot.demo.playground import STRANGER
from tests.support.forwarder import open_forwarder
from tests.support.tended_world import open_tended_world, restart, settle_with
from tests.support.world import World

pytestmark = pytest.mark.slow


def write_anew(body: bytes) -> bytes:
    """The same JSON in other bytes, which the signature does not fit."""
    return json.dumps(json.loads(body), indent=1).encode()


async def test_what_a_forwarder_took_and_did_not_pass_on_is_found_and_done_once(tmp_path: Path) -> None:
    async with open_tended_world(tmp_path, recover_s=0.3) as world, open_forwarder(world) as forwarder:
        ways: tuple[tuple[bool, Callable[[bytes], bytes]], ...] = ((True, bytes), (False, write_anew))
        for count, (is_away, rewrite) in enumerate(ways, 1):
            await world.open_issue()
            await world.comment("/ptq help")
            await world.wait_for_reply("/ptq repro")
            forwarder.is_away, forwarder.rewrite = is_away, rewrite
            await world.comment("/ptq fix")
            await world.github.settle()
            lost = world.github.deliveries[-1]
            assert (lost.name, lost.status_code) == ("issue_comment.created", 200)
            await world.wait_for_report()
            await world.comment("/ptq status")
            await world.wait_for_reply("No job is running. Last:")
            forwarder.is_away, forwarder.rewrite = False, bytes
            await world.github.redeliver(lost.guid)
            await forwarder.settle()
            await restart(world)
            await asyncio.sleep(1.0)
            await settle_with(world, jobs=count)
            assert len(world.statuses()) == len(world.reports()) == 1
            assert len(world.replies()) == 4, "help, the status of the job, its report, and the answer to /ptq status"


async def test_what_a_forwarder_passes_on_is_not_fetched_and_what_it_loses_is_fetched_once(tmp_path: Path) -> None:
    async with open_tended_world(tmp_path, recover_s=0.3) as world:
        world.playground.pace = replace(world.playground.pace, in_flight_s=2.0)
        async with open_forwarder(world) as forwarder:
            await world.open_issue()
            await world.comment("It breaks here as well.", by=STRANGER)
            await asyncio.sleep(3.0)
            assert count_fetched(world) == 0
            forwarder.is_away = True
            await world.comment("And here.", by=STRANGER)
            await asyncio.sleep(5.0)
            assert count_fetched(world) == 1


async def test_whoever_uses_the_id_of_a_delivery_first_does_not_keep_it_out(tmp_path: Path) -> None:
    """Everybody can read what is sent to a public forwarder, and no signature covers the ids."""
    async with open_tended_world(tmp_path, recover_s=0.3) as world, open_forwarder(world) as forwarder:
        await world.open_issue()
        forwarder.is_away = True
        kept = list[tuple[bytes, dict[str, str]]]()

        def keep(body: bytes, headers: dict[str, str]) -> None:
            kept.append((body, headers))

        forwarder.overheard = keep
        await world.comment("It breaks here as well.", by=STRANGER)
        await world.github.settle()
        (body, headers) = kept[-1]
        await world.playground.stop_service()
        await world.comment("/ptq fix")
        await world.github.settle()
        wanted = world.github.deliveries[-1].guid
        world.playground.pace = replace(world.playground.pace, in_flight_s=2.0)
        await world.playground.start_service()
        async with forwarder.session.post(
            f"{world.playground.service.url}/webhook", data=body, headers={**headers, "X-GitHub-Delivery": wanted}
        ) as answer:
            assert answer.status == 202, "the id is taken before recovery looks for it"
        await world.wait_for_report()


def count_fetched(world: World) -> int:
    """How often the service has asked what some delivery carried."""
    return sum("/app/hook/deliveries/" in exchange.path for exchange in world.github.exchanges)
