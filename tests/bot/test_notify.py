"""What the operator hears, over a real database and a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from bot.config.policy_tables import NotifyTable
from bot.observability.notify import WAITS, Notifier
from handlers.context import Context
from handlers.notices.notifications import draft_concern
from runner.db.database import Database
from runner.model.job import Report
from runner.rows import job_rows
from runner.rows.notifications import draft_broken_base, insert_notification
from tests.support.clock import Clock
from tests.support.hook import PATH, open_hook
from tests.support.jobs import NOON, make_job, open_database

SECRET = "hunter2-hunter2"


async def keep(database: Database, job_id: str, thread: int = 7) -> None:
    """A job whose report waits for the operator."""
    job = make_job(id=job_id, thread=thread)
    report = Report(job_id, "security concern\n\n## Summary\nAnyone may write.\n", "", "", "", "", (), None)
    async with database.write() as connection:
        await job_rows.insert_job(connection, job)
        await insert_notification(connection, draft_concern(job, report, NOON))


@asynccontextmanager
async def start(database: Database, url: str | None, clock: Clock, **choices: Any) -> AsyncIterator[Notifier]:
    context = Context(cast("Any", None), database, {}, {}, "https://ptq.example", (SECRET,), clock, lambda: None)
    async with aiohttp.ClientSession() as session:
        yield Notifier(session, context, NotifyTable(url=SecretStr(url) if url else None, **choices))


async def test_the_operator_hears_of_each_job_once(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, open_hook() as hook, start(database, hook.url, Clock()) as notifier:
        await keep(database, "0123456789")
        for _ in range(3):
            await notifier.step()
        assert hook.heard == [
            {
                "text": "octo/widgets#7: an agent reports a security concern. Anyone may write.",
                "kind": "concern",
                "job": "0123456789",
                "repository": "octo/widgets",
                "issue": 7,
                "summary": "Anyone may write.",
                "inherited": False,
                "command": "ptq-bot report 0123456789 --config ptq.toml",
            }
        ]


async def test_what_fails_is_tried_again_later_and_later_until_it_is_heard(tmp_path: Path) -> None:
    clock = Clock()
    async with open_database(tmp_path) as database, open_hook(500, 404) as hook:
        async with start(database, hook.url, clock) as notifier:
            await keep(database, "0123456789")
            counts = []
            for seconds in (0, 1, 1, 3, 1, 1000):
                clock.forward(seconds)
                await notifier.step()
                counts.append(len(hook.heard))
        assert counts == [1, 1, 2, 2, 3, 3]


async def test_a_restart_goes_on_where_the_last_service_stopped(tmp_path: Path) -> None:
    clock = Clock()
    async with open_hook(503, 503) as hook:
        for _ in range(4):
            async with open_database(tmp_path) as database, start(database, hook.url, clock) as notifier:
                if not hook.heard:
                    await keep(database, "0123456789")
                await notifier.step()
                clock.forward(60)
        assert len(hook.heard) == 3


async def test_one_that_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, open_hook(500) as hook:
        async with start(database, hook.url, Clock()) as notifier:
            await keep(database, "0123456789")
            await keep(database, "9876543210", thread=8)
            await notifier.step()
        assert [heard["job"] for heard in hook.heard] == ["0123456789", "9876543210"]


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, open_hook(307) as hook:
        async with start(database, hook.url, Clock()) as notifier:
            await keep(database, "0123456789")
            await notifier.step()
        assert [heard.get("followed") for heard in hook.heard] == [None]


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1" + PATH, "http://host.invalid:99999" + PATH])
async def test_the_address_is_in_no_log_however_it_fails(tmp_path: Path, url: str | None) -> None:
    async with open_database(tmp_path) as database, open_hook(500) as hook:
        await keep(database, "0123456789")
        async with start(database, url or hook.url, Clock()) as notifier:
            with capture_logs() as lines:
                await notifier.step()
    (line,) = lines
    assert line["event"] == "notification.waits"
    assert line["about"] == "concern 0123456789"
    for secret in (PATH, "127.0.0.1", "host.invalid"):
        assert secret not in json.dumps(lines)


async def test_no_wait_is_too_long(tmp_path: Path) -> None:
    clock = Clock()
    async with open_database(tmp_path) as database, open_hook(*[500] * 30) as hook:
        async with start(database, hook.url, clock) as notifier:
            await keep(database, "0123456789")
            for _ in range(31):
                await notifier.step()
                clock.forward(WAITS.longest_s)
        assert len(hook.heard) == 31


async def test_without_an_address_the_log_names_each_waiting_job_once_a_start(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        await keep(database, "0123456789")
        for _ in range(2):
            async with start(database, None, Clock()) as notifier:
                with capture_logs() as lines:
                    await notifier.step()
                    await notifier.step()
            (line,) = lines
            assert (line["event"], line["log_level"]) == ("notification.no_target", "error")
            assert (line["about"], line["look"]) == (
                "concern 0123456789",
                "ptq-bot report 0123456789 --config ptq.toml",
            )


REASON = f"setup `pip install <{SECRET}>` failed:\n<!channel> @here & more"


async def test_slack_gets_text_alone_in_which_nobody_is_called(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, open_hook() as hook:
        async with start(database, hook.url, Clock(), format="slack") as notifier:
            await keep(database, "0123456789")
            async with database.write() as connection:
                await insert_notification(connection, draft_broken_base("gpu-1", "octo/widgets", REASON, NOON))
            await notifier.step()
        base, concern = sorted(heard.pop("text") for heard in hook.heard)[::-1]
        assert concern.endswith("Anyone may write.\n`ptq-bot report 0123456789 --config ptq.toml`")
        assert "gpu-1: setup `pip install &lt;[redacted]&gt;` failed: &lt;!channel&gt; here &amp; more." in base
        assert hook.heard == [{"unfurl_links": False}] * 2


async def test_without_an_address_the_log_has_all_but_what_is_confidential_and_has_it_once(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database, start(database, None, Clock()) as notifier:
        async with database.write() as connection:
            await insert_notification(connection, draft_broken_base("gpu-1", "octo/widgets", REASON, NOON))
        with capture_logs() as lines:
            await notifier.step()
            await notifier.step()
    (line,) = lines
    assert (line["event"], line["kind"]) == ("notification.for_the_log", "base")
    assert "octo/widgets: the base environment cannot be built on gpu-1" in line["text"]
    assert SECRET not in line["text"]
