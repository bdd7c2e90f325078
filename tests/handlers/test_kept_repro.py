"""Which repro of an earlier attempt the service runs again, beside what the next agent hands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.jobs.preconditions import MAX_LOOKED_AT, find_proven_repro
from handlers.jobs.snapshot import Snapshot
from handlers.jobs.start import list_scripts
from handlers.text.repros import ReproScript
from runner.checks.verification import Check, CheckKind, CheckRun, Side
from runner.db.schema import reports
from runner.model.job import FileChange, JobState
from runner.rows import job_rows
from runner.rows.check_rows import add_checks, copy_checks, fetch_checks, save_runs
from tests.handlers.test_report_comment import result
from tests.support.jobs import NOON, make_job, open_database, store_report

NAME = "octo/widgets"
REPRO = "import widgets\nassert widgets.works\n"
FAILS = (CheckRun(1, timed_out=False, words="AssertionError: no"),) * 3
PASSES = (CheckRun(0, timed_out=False, words=""),) * 3
MISSING = (CheckRun(1, timed_out=False, words="ModuleNotFoundError: No module named 'torch'"),) * 3
PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+_FIXED = True\n"
SEEN = {Side.BASE: FAILS, Side.CHANGED: PASSES, Side.TEXT: FAILS}

Runs = Mapping[Side, Sequence[CheckRun]]


@dataclass
class Issue:
    """An issue, and its attempts, one after the other."""

    connection: AsyncConnection
    attempts: int = 0

    async def attempt(
        self,
        runs: Runs = SEEN,
        *,
        script: str = REPRO,
        body: str = "fix staged\n\n## Summary\nIt is fixed.\n",
        kind: CheckKind = CheckKind.AGENT,
        has_change: bool = True,
        private: bool = False,
    ) -> None:
        self.attempts += 1
        job = make_job(
            id=f"{self.attempts:010}", attempt=self.attempts, state=JobState.SUCCEEDED, private=private, prompt="Look."
        )
        await job_rows.insert_job(self.connection, job)
        change = FileChange("a.py", "100644", b"_FIXED = True\n", "100644")
        digest = "ab" * 32 if has_change else None
        report = result(job_id=job.id, repro=script, body=body, patch=PATCH, changes=(change,), digest=digest)
        await store_report(self.connection, report)
        await add_checks(self.connection, job.id, [(kind, "repro.py", script)])
        await save_runs(self.connection, Check(job.id, 1, kind, "repro.py", script, runs))

    async def find(self, *, private: bool = False) -> list[tuple[CheckKind, str, str]]:
        return await find_proven_repro(self.connection, NAME, 7, private=private)


@pytest.mark.parametrize(
    ("runs", "has_change", "is_kept"),
    [
        (SEEN, True, True),
        ({Side.BASE: FAILS}, False, True),
        ({**SEEN, Side.CHANGED: FAILS}, True, True),
        ({Side.BASE: FAILS, Side.CHANGED: PASSES}, True, True),
        ({**SEEN, Side.BASE: PASSES}, True, False),
        ({**SEEN, Side.BASE: (*FAILS[:2], *PASSES[:1])}, True, False),
        ({**SEEN, Side.BASE: MISSING}, True, False),
        ({**SEEN, Side.TEXT: PASSES}, True, False),
        ({}, True, False),
    ],
    ids=[
        *("fixed", "diagnosed", "fixed in vain", "not tried on the text"),
        *("shows nothing", "not always", "could not run", "looks for its patch", "not run"),
    ],
)
async def test_a_repro_is_kept_if_it_was_seen_failing_and_not_for_want_of_its_patch(
    sqlite_url: str, runs: Runs, has_change: bool, is_kept: bool
) -> None:
    async with open_database(sqlite_url) as database, database.write() as connection:
        issue = Issue(connection)
        await issue.attempt(runs, has_change=has_change)
        assert await issue.find() == ([(CheckKind.KEPT, "attempt 1", REPRO)] if is_kept else [])


async def test_a_repro_that_asks_for_names_of_its_own_patch_is_not_kept(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, database.write() as connection:
        issue = Issue(connection)
        await issue.attempt(script="import a\nassert a._FIXED\n")
        assert await issue.find() == []


async def test_the_newest_one_is_kept_that_anybody_may_see(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        issue = Issue(connection)
        await issue.attempt()
        await issue.attempt(script="import widgets  # newer\nassert widgets.works\n")
        await issue.attempt(script="raise SystemExit(1)", body="security concern\n\nAnyone may write.\n")
        await issue.attempt(script="raise SystemExit(2)", body=" ")
        await issue.attempt(script="raise SystemExit(3)", private=True)
        await issue.attempt({**SEEN, Side.BASE: PASSES}, script="pass")
        await issue.attempt(script="raise SystemExit(4)", kind=CheckKind.KEPT)
        assert [origin for _, origin, _ in await issue.find()] == ["attempt 2"]
        assert [origin for _, origin, _ in await issue.find(private=True)] == ["attempt 5"]


async def test_the_rules_of_today_decide_what_is_confidential(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, database.write() as connection:
        issue = Issue(connection)
        await issue.attempt(body="security concern\n\nAnyone may write.\n")
        await connection.execute(update(reports).values(withheld=False))
        assert await issue.find() == []


@pytest.mark.slow
async def test_attempts_long_ago_are_not_searched(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        issue = Issue(connection)
        await issue.attempt()
        for _ in range(MAX_LOOKED_AT - 1):
            await issue.attempt({})
        assert await issue.find()
        await issue.attempt({})
        assert await issue.find() == []


async def test_a_job_that_takes_the_place_of_another_one_keeps_its_scripts(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:
        for job_id in ("0" * 10, "1" * 10):
            state = JobState.LOST if job_id == "0" * 10 else JobState.QUEUED
            await job_rows.insert_job(connection, make_job(id=job_id, state=state))
        kept = [(CheckKind.ISSUE, "the issue", "x"), (CheckKind.KEPT, "attempt 1", REPRO)]
        await add_checks(connection, "0" * 10, [*kept, (CheckKind.AGENT, "repro.py", "y")])
        await copy_checks(connection, "0" * 10, "1" * 10)
        copied = await fetch_checks(connection, "1" * 10)
        assert [(check.kind, check.origin, check.script) for check in copied] == kept


def test_a_script_that_the_issue_has_anyway_is_run_once() -> None:
    snapshot = Snapshot(
        issue_number=7,
        title="",
        author="alice",
        body="",
        labels=(),
        created_at=NOON,
        frozen_at=NOON,
        comments=(),
        repros=(ReproScript("the issue", "python", REPRO.strip()),),
    )
    kept = [(CheckKind.KEPT, "attempt 1", REPRO), (CheckKind.KEPT, "attempt 1", "other")]
    own = (CheckKind.ISSUE, "the issue", REPRO.strip())
    assert list_scripts(snapshot, kept) == [own, (CheckKind.KEPT, "attempt 1", "other")]
