"""A repository that becomes private: all its jobs count as private from then on, for good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from handlers.cases.private_repositories import restrict_jobs
from handlers.context import Context
from handlers.inbox.inbox import Inbox
from handlers.jobs.preconditions import find_known
from handlers.ports import GitHub
from handlers.triggers.router import ROUTER
from runner.db.database import Database
from runner.model.job import JobState
from runner.rows import job_rows
from tests.handlers.asked import NAME, render_payload
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.site import make_report


async def list_private_jobs(database: Database) -> list[str]:
    async with database.read() as connection:
        return sorted(job.id for job in await job_rows.fetch_recent_jobs(connection, 10) if job.private)


async def add_jobs(database: Database) -> None:
    async with database.write() as connection:
        await job_rows.insert_job(connection, make_job(id="first", repository=NAME, state=JobState.SUCCEEDED))
        await job_rows.insert_job(connection, make_job(id="second", repository=NAME.title(), attempt=2))
        await job_rows.insert_job(connection, make_job(id="other", repository="octo/gadgets"))


async def test_all_jobs_of_the_repository_become_private_and_no_others(database_url: str) -> None:
    async with open_database(database_url) as database:
        await add_jobs(database)
        with capture_logs() as lines:
            await restrict_jobs(database, NAME)
            await restrict_jobs(database, NAME)
        assert await list_private_jobs(database) == ["first", "second"]
        assert [(line["event"], line["jobs"]) for line in lines] == [("repository.became_private", 2)]


@pytest.mark.parametrize(("private", "restricted"), [(True, ["first", "second"]), (False, [])])
async def test_any_delivery_that_shows_a_private_repository_restricts_its_jobs(
    tmp_path: Path, private: bool, restricted: list[str]
) -> None:
    async with open_database(tmp_path) as database:
        await add_jobs(database)
        clock = Clock()
        inbox = Inbox(database, ROUTER, clock)
        context = Context(cast(GitHub, None), database, {}, {}, "", (), clock, lambda: None)
        payload = render_payload(1, "somebody", NOON, action="labeled", label={"name": "bug"})
        payload["repository"]["private"] = private
        await inbox.receive("id", "issues", f"{NAME}#1", json.dumps(payload).encode())
        await inbox.step(context)
        await inbox.stop()
        assert await list_private_jobs(database) == restricted


@pytest.mark.parametrize("private", [True, False])
async def test_what_was_found_while_the_repository_was_private_is_not_told_once_it_is_public(
    tmp_path: Path, private: bool
) -> None:
    job = make_job(repository=NAME, private=True, state=JobState.SUCCEEDED)
    async with open_database(tmp_path) as database:
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
            await store_report(connection, make_report(job_id=job.id, repro="import widgets\n"))
        async with database.read() as connection:
            context = Context(cast(GitHub, None), database, {}, {}, "", (), Clock(), lambda: None)
            known = await find_known(connection, context, NAME, job.issue_number, private=private)
    assert bool(known) is private
