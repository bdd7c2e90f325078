"""`ptq-bot pr`: where a person writes the note on a job's diff."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bot.config.settings import Settings, load_settings
from bot.operations.context import UnknownJob
from bot.operations.reports import NoNotePage, find_note_page
from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from runner.model.job import JobKind, JobState
from runner.rows import job_rows
from tests.bot.test_cli import configure
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.site import make_report

SIGN_IN = '[dashboard]\nclient_id = "an-id"\nclient_secret = "a-secret"\n\n[agents.mine]'


async def find(settings: Settings, problem: str) -> None:
    with pytest.raises(NoNotePage, match=problem):
        await find_note_page(settings, "0123456789")


async def test_the_page_for_a_note_is_named_only_while_a_diff_waits_for_one(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0))
    with_sign_in = load_settings(configure(tmp_path, 0, ("[agents.mine]", SIGN_IN)))
    async with open_database(tmp_path) as database:
        job = make_job(state=JobState.SUCCEEDED)
        pull = casebook.Pull(job.id, "ab" * 32, "It ends.", "alice", "", "ptq/7", NOON, next_attempt_at=NOON, number=9)
        case = Case(job.case_key, job.repository, job.issue_number, "Broken", CaseState.AWAITING_NOTE, NOON, NOON)
        async with database.write() as connection:
            await job_rows.insert_job(connection, job)
            await store_report(connection, make_report())
            await casebook.save_case(connection, case)
        with pytest.raises(UnknownJob):
            await find_note_page(with_sign_in, "none")
        await find(with_sign_in, "no diff of job 0123456789 waits for a note")
        async with database.write() as connection:
            await casebook.save_case(connection, replace(case, standing_job_id=job.id))
        assert await find_note_page(with_sign_in, job.id) == "http://127.0.0.1:0/jobs/0123456789/note\n"
        await find(settings, "there is no page for a note, because sign-in is not set up")
        async with database.write() as connection:
            await casebook.save_pull(connection, pull)
        await find(with_sign_in, "is in pull request #9 already")


async def test_the_page_for_a_note_on_a_task_is_named_for_its_newest_diff(tmp_path: Path) -> None:
    settings = load_settings(configure(tmp_path, 0, ("[agents.mine]", SIGN_IN)))
    async with open_database(tmp_path) as database:
        for attempt, job_id in enumerate(("0123456789", "newer00001"), start=1):
            job = make_job(id=job_id, kind=JobKind.TASK, series=1, attempt=attempt, state=JobState.SUCCEEDED)
            async with database.write() as connection:
                await job_rows.insert_job(connection, job)
                await store_report(connection, make_report(job_id=job_id))
            assert await find_note_page(settings, job_id) == f"http://127.0.0.1:0/jobs/{job_id}/note\n"
        await find(settings, "no diff of job 0123456789 waits for a note")
