"""Every payload that GitHub publishes as an example goes through the whole service, and upsets nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import structlog
from sqlalchemy import select

from bot.demo.playground import SECRET
from handlers.events import find_lane, find_time, fits, parse_excerpt
from runner.db.schema import deliveries
from tests.support.descriptions import find_webhook_examples
from tests.support.world import World, open_world

CONFIGURED = """
[repos."Codertocat/Hello-World"]
agent = "script"
"""
"""Most examples come from this repository: configured, so that their comments and labels are really read."""


def examples() -> Iterator[tuple[str, bytes]]:
    """Each event and payload; few of them carry the `installation` that an App's deliveries always have."""
    for described in json.loads(find_webhook_examples().read_bytes()):
        for payload in described["examples"]:
            for thing in (payload.get(name) for name in ("issue", "comment", "pull_request")):
                if isinstance(thing, dict):
                    thing["updated_at"] = datetime.now(UTC).isoformat()  # Old events are refused.
            yield described["name"], json.dumps({"installation": {"id": 1, "node_id": "I"}} | payload).encode()


async def deliver(session: aiohttp.ClientSession, url: str, delivery_id: str, event: str, body: bytes) -> int:
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery_id,
        "X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
    }
    async with session.post(url, data=body, headers=headers) as answer:
        return answer.status


async def outcomes(world: World) -> dict[str, tuple[str, str | None]]:
    """Delivery id -> state and error."""
    async with world.playground.service.context.db.read() as connection:
        rows = await connection.execute(select(deliveries.c.id, deliveries.c.state, deliveries.c.error))
        return {row.id: (row.state, row.error) for row in rows}


def test_an_excerpt_says_the_same_about_a_delivery_as_its_payload() -> None:
    for event, body in examples():
        excerpt, payload = parse_excerpt(body), json.loads(body)
        assert find_lane(excerpt) == find_lane(payload)
        assert find_time(excerpt) == find_time(payload)
        assert fits(event, excerpt) == fits(event, payload)
        assert excerpt.get("action") == payload.get("action")


@pytest.mark.slow
async def test_every_example_is_accepted_and_worked(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        await work_every_example(tmp_path)
    assert [line for line in lines if line.get("exc_info") or line["log_level"] in ("error", "critical")] == []


async def work_every_example(tmp_path: Path) -> None:
    async with open_world(tmp_path, more_toml=CONFIGURED) as world, aiohttp.ClientSession() as session:
        url, refused, stored, contents = f"{world.playground.service.url}/webhook", [], set(), set()
        for number, (event, body) in enumerate(examples()):
            delivery_id = f"{number}-{event}"
            status = await deliver(session, url, delivery_id, event, body)
            if status >= 300:
                refused.append((delivery_id, status))
            elif status == 202 and (event, body) not in contents:
                stored.add(delivery_id)  # Some examples are there twice, and a copy takes no place in the inbox.
                contents.add((event, body))
        assert refused == []
        assert {delivery_id.partition("-")[2] for delivery_id in stored} == {"issues", "issue_comment"}
        await world.settle()
        assert await outcomes(world) == dict.fromkeys(stored, ("done", None))
