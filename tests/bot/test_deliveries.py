"""`ptq-bot deliveries` and `replay`, run as the operator runs them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from gidgethub import sansio
from gidgethub.routing import Router
from sqlalchemy import select

from bot.operations.deliveries import find_refusal
from handlers.context import Context
from handlers.inbox.inbox import Inbox
from handlers.ports import GitHub
from runner.db.database import Database
from runner.db.schema import deliveries
from tests.bot.test_cli import AGENT_VALUE, configure
from tests.support import program
from tests.support.jobs import NOON, open_database

pytestmark = pytest.mark.slow


def in_database(folder: Path, work: Callable[[Database], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with open_database(folder) as database:
            return await work(database)

    return asyncio.run(run())


async def fill(database: Database) -> None:
    for number, (state, error) in enumerate(
        [("done", None), ("failed", f"RuntimeError('{AGENT_VALUE} \x1b[31m')"), ("pending", None)]
    ):
        row = {"id": f"id-{state}", "event": "issues", "lane": f"octo/widgets#{number}", "body": b"{}", "error": error}
        times = {"received_at": NOON + timedelta(minutes=number), "next_attempt_at": NOON}
        async with database.write() as connection:
            await connection.execute(
                deliveries.insert().values(**row, **times, state=state, attempts=3 * (state == "failed"))
            )


def ptq(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return program.run(*arguments, "--config", configure(folder, 0))


def test_deliveries_are_listed_with_what_went_wrong_and_no_secret(tmp_path: Path) -> None:
    in_database(tmp_path, fill)
    lines = ptq(tmp_path, "deliveries").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["delivery", "id-done", "id-failed", "id-pending"]
    (head, failed) = ptq(tmp_path, "deliveries", "--failed").stdout.splitlines()
    assert head.split() == ["delivery", "received", "(UTC)", "state", "tries", "event", "about", "error"]
    assert failed.startswith("id-failed  2026-03-01 12:01:00  failed  3      issues  octo/widgets#1  RuntimeError(")
    assert AGENT_VALUE not in failed
    assert "\x1b" not in failed


def test_an_empty_list_says_so(tmp_path: Path) -> None:
    in_database(tmp_path, do_nothing)
    assert ptq(tmp_path, "deliveries", "--failed").stdout == "There are none.\n"


async def do_nothing(_database: Database) -> None:
    return None


def test_a_delivery_that_was_set_aside_is_worked_again_by_the_inbox(tmp_path: Path) -> None:
    in_database(tmp_path, fill)
    assert "will be worked again" in ptq(tmp_path, "replay", "id-failed").stdout

    async def work(database: Database) -> Any:
        router, worked = Router(), list[str]()

        async def on_anything(event: sansio.Event, _context: Context) -> None:
            worked.append(event.delivery_id)

        router.add(on_anything, "issues")
        inbox = Inbox(database, router, lambda: NOON + timedelta(hours=1))
        await inbox.step(Context(cast(GitHub, None), database, {}, {}, "", (), lambda: NOON, lambda: None))
        await inbox.stop()
        async with database.read() as connection:
            row = (await connection.execute(select(deliveries).where(deliveries.c.id == "id-failed"))).one()
        return worked, row.state, row.attempts, row.error

    worked, *row = in_database(tmp_path, work)
    assert "id-failed" in worked
    assert row == ["done", 0, None]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["id-unknown"], "delivery id-unknown is not here"),
        (["id-pending"], "waits to be worked already"),
        (["id-pending", "--force"], "waits to be worked already"),
        (["id-done"], "was worked already; --force works it again"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(tmp_path: Path, arguments: list[str], says: str) -> None:
    in_database(tmp_path, fill)
    done = ptq(tmp_path, "replay", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stdout == ""


def test_one_that_was_worked_is_replayed_by_force(tmp_path: Path) -> None:
    in_database(tmp_path, fill)
    assert ptq(tmp_path, "replay", "id-done", "--force").returncode == 0
    (done,) = [line for line in ptq(tmp_path, "deliveries").stdout.splitlines() if line.startswith("id-done")]
    assert done.split()[3:5] == ["pending", "0"]


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_cancel_is_never_replayed_for_it_would_end_what_runs_now(state: str) -> None:
    assert "comment /ptq cancel again" in (find_refusal(state, "octo/widgets#7/cancel", force=True) or "")
    assert find_refusal(state, "octo/widgets#7", force=True) is None


def test_a_delivery_without_its_body_is_not_replayed() -> None:
    assert "its body is gone" in (find_refusal("done", "octo/widgets#7", has_body=False, force=True) or "")
