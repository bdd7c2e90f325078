"""An agent's long texts are read aside, so that everybody else has their turns meanwhile."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from sqlalchemy import update

from handlers.cases import casebook
from handlers.cases.case import CaseState
from handlers.effects.drain import drain
from handlers.jobs.outcomes import report_jobs
from handlers.pulls.pulls import Pulls
from runner.aside import LONG
from runner.db.schema import reports
from runner.rows import job_rows
from tests.handlers.test_notes_again import Thread, open_thread

JOB = "0000000001"
READERS = {
    "is_withheld",
    "names_concern",
    "approvable",
    "draft_report",
    "find_note_fault",
    "render_pull_body",
    "redact",
}


@pytest.fixture(params=["body", "worklog", "repro"])
async def thread(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Thread]:
    """A job that has ended with a short diff, and with one text that is long."""
    async with open_thread(tmp_path) as thread:
        await thread.stand(JOB, 1)
        async with thread.db.write() as connection:
            long = f"fix staged\n\n{'word ' * (LONG // 5)}"
            await connection.execute(update(reports).values({request.param: long}))
        yield thread


@contextmanager
def called_here() -> Iterator[set[str]]:
    """The names of the functions that this thread calls, which is the one of the event loop."""
    names = set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        names.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)


async def test_a_report_is_written_aside(thread: Thread) -> None:
    async with thread.db.write() as connection:
        job = await job_rows.fetch_job(connection, JOB)
        assert job
        case = await casebook.fetch_case(connection, job.case_key)
        assert case
        await casebook.save_case(connection, replace(case, state=CaseState.ACTIVE, active_job_id=JOB))
    with called_here() as names:
        await report_jobs(thread.context)
    assert len(await thread.answers()) == 1
    assert names & READERS == set()


async def test_a_note_is_compared_and_its_pull_request_written_aside(thread: Thread) -> None:
    note = thread.note()
    with called_here() as names:
        await thread.work(note)
    assert "find_fault" not in names
    with called_here() as names:
        await drain(Pulls(thread.context))
    assert len(thread.github.opened) == 1
    assert names & {"is_withheld", "names_concern", "approvable", "render_pull_body"} == set()
