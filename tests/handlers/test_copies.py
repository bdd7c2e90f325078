"""A content is received once, under any id."""

from __future__ import annotations

from pathlib import Path

import pytest
from gidgethub.routing import Router
from sqlalchemy import update

from handlers.inbox.inbox import LANES_AT_ONCE, Inbox, fetch_doubtful
from handlers.inbox.receiving import Arrival, NotStored, find_digest
from runner.db.schema import deliveries
from tests.support.clock import Clock
from tests.support.jobs import open_database

LANE = "octo/widgets#1"


def arrive(delivery_id: str, event: str, body: bytes) -> Arrival:
    return Arrival(delivery_id, event, LANE, body, signature=f"of {body!r}")


async def test_a_content_is_received_under_one_id(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, Router(), Clock())
        assert await inbox.receive_once(arrive("first", "issues", b"{}"))
        assert not await inbox.receive_once(arrive("copy", "issues", b"{}"))
        assert not await inbox.receive_once(arrive("first", "issues", b"{}")), "GitHub's own redelivery"
        assert await inbox.receive_once(arrive("other-event", "issue_comment", b"{}"))
        assert await inbox.receive("recovered", "issues", LANE, b"{}"), "who reads it at GitHub knows its id"
        # After a restart nothing is remembered, but a redelivery shows that the content is stored.
        restarted = Inbox(database, Router(), Clock())
        assert not await restarted.receive_once(arrive("first", "issues", b"{}"))
        assert not await restarted.receive_once(arrive("copy", "issues", b"{}"))


async def test_a_content_that_could_not_be_stored_is_received_later(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, Router(), Clock(), max_pending=1)
        assert await inbox.receive_once(arrive("first", "issues", b"{}"))
        with pytest.raises(NotStored):
            await inbox.receive_once(arrive("second", "issues", b'{"other": 1}'))
        async with database.write() as connection:
            await connection.execute(update(deliveries).values(state="done"))
        assert await inbox.receive_once(arrive("second", "issues", b'{"other": 1}'))


async def test_an_id_that_is_taken_keeps_no_content_out(tmp_path: Path) -> None:
    """Ids are not signed: somebody may send another content under the id that a delivery has had."""
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, Router(), Clock())
        assert await inbox.receive_once(arrive("first", "issues", b"{}"))
        assert await inbox.receive_once(arrive("first", "issues", b'{"other": 1}'))
        assert not await inbox.receive_once(arrive("first", "issues", b'{"other": 1}'))
        assert not await inbox.receive_once(arrive("second", "issues", b'{"other": 1}')), "it is here already"


async def test_what_an_id_holds_decides_whether_a_delivery_is_here(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, Router(), Clock())
        assert not await inbox.holds("first", "issues", b'{"real": 1}')
        assert await inbox.receive_once(arrive("first", "issues", b'{"squats": 1}'))
        assert not await inbox.holds("first", "issues", b'{"real": 1}')
        assert await inbox.receive("first", "issues", LANE, b'{"real": 1}')
        assert await inbox.holds("first", "issues", b'{"real": 1}')
        assert await inbox.holds("first", "issues", b'{ "squats": 1 }')
        # After a restart nothing is remembered, and the database tells.
        assert not await Inbox(database, Router(), Clock()).receive_once(arrive("first", "issues", b'{"real": 1}'))


async def test_an_id_is_doubtful_if_its_content_came_twice_also_before_it_is_processed(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, Router(), Clock())
        for number in range(2 * LANES_AT_ONCE):
            await inbox.receive(f"id-{number}", "issues", LANE, b'{"number": %d}' % number)
        events = {f"id-{number}": "issues" for number in range(2 * LANES_AT_ONCE)}
        assert await fetch_doubtful(database, events) == set()
        await inbox.receive("copy", "issues", LANE, b'{ "number": 12 }')
        assert await fetch_doubtful(database, {**events, "unknown": "issues"}) == {"id-12"}
        assert await fetch_doubtful(database, {"id-1": "issue_comment"}) == {"id-1"}


async def test_a_content_is_known_after_its_body_was_emptied(tmp_path: Path) -> None:
    """Old bodies are emptied when they take too much room."""
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, Router(), Clock())
        await inbox.receive("first", "issues", LANE, b'{"real": 1}')
        async with database.write() as connection:
            emptied = {"digest": find_digest("issues", b'{"real": 1}'), "body": b"", "state": "done"}
            await connection.execute(update(deliveries).values(**emptied))
        assert await inbox.holds("first", "issues", b'{"real": 1}')
        assert not await inbox.receive_once(arrive("first", "issues", b'{"real": 1}'))
        assert await inbox.receive_once(arrive("first", "issues", b'{"real": 2}'))
