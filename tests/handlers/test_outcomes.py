"""What is written down when jobs go on and end, over a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.case import Case, CaseState
from handlers.cases.casebook import Reply
from handlers.context import Context
from handlers.jobs.outcomes import render_report, report_jobs
from handlers.jobs.preconditions import find_known, find_proven_repro
from handlers.notices.notifications import render_payload
from handlers.rules import VERIFY
from handlers.words import replies
from runner.db.database import Database
from runner.model.job import FileChange, Job, JobState, Posts, Report
from runner.model.jobd_answers import Worklog
from runner.rows import job_rows
from runner.rows.notifications import Notification, fetch_waiting
from runner.rows.worklogs import save_worklog
from tests.support.clock import Clock
from tests.support.jobs import NOON, make_job, open_database, store_report
from tests.support.meters import make_meter

SECRET = "hunter2-hunter2"
URL = "https://ptq.example"


@dataclass
class Desk:
    """The words in which these tests are told."""

    db: Database
    clock: Clock
    context: Context

    async def add(self, job: Job, report: Report | None = None, standing: str | None = None, worklog: str = "") -> None:
        case = Case(job.case_key, job.repository, job.issue_number, "It breaks", CaseState.ACTIVE, NOON, NOON)
        status = casebook.draft_reply(job.id, "status", job, "", self.clock())
        async with self.db.write() as connection:
            await job_rows.insert_job(connection, job)
            await casebook.save_case(connection, replace(case, active_job_id=job.id, standing_job_id=standing))
            await casebook.insert_reply(connection, status)
            if worklog:
                await save_worklog(connection, job.id, Worklog("1", worklog, is_cut=False))
            if report:
                await store_report(connection, report)
        await report_jobs(self.context)

    async def count(self, turns: int, **changes: Any) -> str:
        """The status comment after the agent has taken so many turns."""
        async with self.db.write() as connection:
            await job_rows.save_meter(connection, make_meter("0123456789", turns=turns, **changes))
        await report_jobs(self.context)
        return (await self.reply("status")).body

    async def note(self, worklog: str) -> str:
        """The status comment after the agent has written this worklog."""
        async with self.db.write() as connection:
            await save_worklog(connection, "0123456789", Worklog("2", worklog, is_cut=False))
        await report_jobs(self.context)
        return (await self.reply("status")).body

    async def change(self, **changes: Any) -> None:
        async with self.db.write() as connection:
            job = await job_rows.fetch_job(connection, "0123456789")
            assert job
            await job_rows.change_job(connection, job, **changes)
        await report_jobs(self.context)

    async def reply(self, kind: str) -> Reply:
        async with self.db.read() as connection:
            reply = await casebook.fetch_job_reply(connection, "0123456789", kind)
        assert reply
        return reply

    async def case(self) -> Case:
        async with self.db.read() as connection:
            case = await casebook.fetch_case(connection, "octo/widgets#7")
        assert case
        return case

    async def notifications(self) -> list[Notification]:
        async with self.db.read() as connection:
            return await fetch_waiting(connection)


@asynccontextmanager
async def open_desk(url: str, *, public_logs: bool = False) -> AsyncIterator[Desk]:
    async with open_database(url) as database:
        clock = Clock()
        github = cast("Any", None)  # Only `handlers.effects.outbox` asks GitHub.
        context = Context(github, database, {}, {}, URL, (SECRET,), clock, lambda: None, public_logs=public_logs)
        yield Desk(database, clock, context)


def running(**changes: Any) -> Job:
    return make_job(**{"state": JobState.RUNNING, "machine": "gpu-1", "started_at": NOON, **changes})


async def test_the_numbers_of_a_status_change_at_most_every_other_minute(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        await desk.add(running())
        desk.clock.forward(119)
        assert "turn" not in await desk.count(1)
        desk.clock.forward(1)
        assert "2 turns" in await desk.count(2)
        desk.clock.forward(119)
        assert "2 turns" in await desk.count(3)
        desk.clock.forward(1)
        assert "4 turns" in await desk.count(4)


async def test_the_headings_of_a_worklog_come_with_the_numbers_where_everybody_may_read_the_log(
    sqlite_url: str,
) -> None:
    async with open_desk(sqlite_url, public_logs=True) as desk:
        await desk.add(running(), worklog="## Look\n")
        assert "`Look`" in (await desk.reply("status")).body
        desk.clock.forward(119)
        assert "`Bisect`" not in await desk.note("## Look\n\n## Bisect\n")
        desk.clock.forward(1)
        assert "`Bisect`" in await desk.count(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("public_logs", "job"),
    [(False, running()), (True, running(private=True)), (True, running(confidential=True))],
    ids=["closed", "private", "confidential"],
)
async def test_no_heading_is_in_a_thread_whose_readers_may_not_all_read_the_log(
    sqlite_url: str, public_logs: bool, job: Job
) -> None:
    async with open_desk(sqlite_url, public_logs=public_logs) as desk:
        await desk.add(job, worklog="## Look\n")
        assert "Look" not in (await desk.reply("status")).body


async def test_a_pass_without_news_takes_no_turn_to_write(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        await desk.add(running())
        await report_jobs(desk.context)
        async with desk.db.write(), asyncio.timeout(30):  # There is one turn, and we have it.
            await report_jobs(desk.context)


async def test_what_is_news_does_not_wait_for_the_numbers(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(running())
        desk.clock.forward(120)
        assert "1 turn," in await desk.count(1)
        desk.clock.forward(1)
        await desk.change(trouble="the machine does not answer")
        assert "**Waiting:**" in (await desk.reply("status")).body
        desk.clock.forward(1)
        await desk.change(trouble=None)
        assert "**Waiting:**" not in (await desk.reply("status")).body
        await desk.change(state=str(JobState.COLLECTING))
        assert "collecting the result" in (await desk.reply("status")).body


async def test_a_report_that_cannot_be_written_holds_up_no_other(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        garbled = ended(id="00garbled0", thread=6)
        case = Case(garbled.case_key, garbled.repository, 6, "It breaks", CaseState.IDLE, NOON, NOON)
        async with desk.db.write() as connection:
            await job_rows.insert_job(connection, garbled)
            await casebook.save_case(connection, replace(case, active_job_id=garbled.id))
        await desk.add(ended(), found("fix staged\n\n## Summary\nFixed.\n"))
        assert "Fixed." in (await desk.reply("report")).body
        async with desk.db.write() as connection:
            assert await casebook.fetch_unreported_job_ids(connection) == [garbled.id]
            await casebook.save_case(connection, replace(case, state=CaseState.ACTIVE, active_job_id=garbled.id))
        await report_jobs(desk.context)
        async with desk.db.read() as connection:
            assert await casebook.fetch_unreported_job_ids(connection) == [], "it is tried again"


CONCERN = "Outcome: security concern\n\n## Summary\nAnyone <!channel> may write\nas @all, with hunter2-hunter2.\n"


def found(body: str) -> Report:
    change = FileChange("a.py", "100644", b"new\n", "100644")
    return Report("0123456789", body, "looked", "Close it", "", "+new\n", (change,), "ab" * 32)


def ended(**changes: Any) -> Job:
    return running(**{"state": JobState.SUCCEEDED, "ended_at": NOON, **changes})


async def test_a_security_concern_goes_to_the_operator_and_to_nobody_else(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(ended(), found(CONCERN))
        assert (await desk.reply("report")).body == replies.render_confidential()
        (notification,) = await desk.notifications()
        assert render_payload(notification, (SECRET,))["text"] == (
            "octo/widgets#7: an agent reports a security concern. "
            "Anyone &lt;!channel&gt; may write as all, with [redacted]."
        )
        case = await desk.case()
        assert (case.state, case.standing_job_id) == (CaseState.IDLE, None)


async def test_a_security_concern_leaves_the_diff_of_an_earlier_job_standing(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(ended(), found(CONCERN), standing="earlier")
        case = await desk.case()
        assert (case.state, case.standing_job_id) == (CaseState.AWAITING_NOTE, "earlier")


async def test_the_operator_hears_of_a_concern_also_where_the_run_did_not_finish(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(ended(state=JobState.FAILED, failure="stopped at its cap"), found(CONCERN))
        for _ in range(2):
            await report_jobs(desk.context)
        assert len(await desk.notifications()) == 1
        assert "cap" not in (await desk.reply("report")).body


async def test_the_last_word_of_a_status_tells_nothing_of_a_concern(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(ended(state=JobState.FAILED, failure="the agent gave up"), found(CONCERN))
        report = await desk.reply("report")
        async with desk.db.write() as connection:
            await casebook.change_reply(connection, report, comment_url="https://github.example/1")
        await report_jobs(desk.context)
        status = await desk.reply("status")
        assert status.final
        assert status.body == "**ptq** · `fix` attempt 1: ended · [report](https://github.example/1)"


FINDING = "anyone may empty the till"


def cut_short() -> Report:
    """What is left of a run that did not come to write its report."""
    return replace(found(" \n"), worklog=FINDING, repro=f"print('{FINDING}')\n", patch=f"+{FINDING}\n", digest=None)


@pytest.mark.slow
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.LOST])
@pytest.mark.parametrize("report", [cut_short(), None], ids=["cut short", "nothing"])
async def test_no_word_of_a_log_or_of_a_run_without_a_report_is_in_a_thread(
    sqlite_url: str, report: Report | None, state: JobState
) -> None:
    async with open_desk(sqlite_url) as desk:
        job = ended(state=state, failure=f"the agent exited with status 1:\n{FINDING}")
        await desk.add(job, report, worklog=f"# {FINDING}\n")
        posted = (await desk.reply("report")).body
        assert f"the agent exited with status 1. See [the log]({URL}/jobs/{job.id}#log) for details." in posted
        assert ("There is no report, so diff and worklog are not shown here." in posted) is (report is not None)
        again = await render_report(desk.context, job)
        assert FINDING not in posted + again
        assert await desk.notifications() == [], "nobody has judged it"
        async with desk.db.read() as connection:
            assert await find_proven_repro(connection, job.repository, job.issue_number, private=True) == []
            known = await find_known(connection, desk.context, job.repository, job.issue_number, private=True)
            assert known is None, "nor does another run get it"
        opened = replace(desk.context, public_logs=True)
        assert FINDING in await render_report(opened, job)
        assert FINDING not in await render_report(opened, replace(job, private=True))


async def test_a_failed_run_quotes_the_end_of_its_log_where_everybody_may_read_it(database_url: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(90))
    async with open_desk(database_url) as desk:
        job = ended(state=JobState.FAILED, failure="the agent exited with status 1")
        await desk.add(job)
        async with desk.db.write() as connection:
            log = f"{lines}no such table, said {SECRET}\n".encode()
            await job_rows.save_log(connection, job.id, "agent", job_rows.compress_log(log))
        assert "no such table" not in await render_report(desk.context, job)
        opened = await render_report(replace(desk.context, public_logs=True), job)
    assert "**Why:** the agent exited with status 1\n\n```\nline 79\n" in opened
    assert "line 89\nno such table, said [redacted]\n```" in opened


async def test_an_ordinary_report_notifies_nobody(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(ended(), found("fix staged\n\n## Summary\nIt is fixed.\n"))
        assert await desk.notifications() == []
        assert (await desk.reply("report")).body.startswith("### Fix staged")
        assert (await desk.case()).state is CaseState.AWAITING_NOTE


@pytest.mark.parametrize("posts", [Posts.NOTHING, Posts.FINDING])
async def test_a_job_of_which_the_thread_hears_nothing_frees_its_issue_all_the_same(
    sqlite_url: str, posts: Posts
) -> None:
    async with open_desk(sqlite_url) as desk:
        await desk.add(make_job(state=JobState.FAILED, failure="no room", preset=VERIFY, posts=posts))
        case = await desk.case()
        assert (case.state, case.active_job_id) == (CaseState.IDLE, None)
        async with desk.db.read() as connection:
            assert await casebook.fetch_unreported_job_ids(connection) == []
            assert await casebook.fetch_job_reply(connection, "0123456789", "report") is None


HOSTILE = "fix staged\n\n## Summary\n" + "```\n- > `a <!-- @octocat\n" * 8_000
"""Some 200 kB that are dear to render."""


@dataclass
class Watched(Collection[str]):
    """The service's secrets, which whatever is rendered is searched for; they tell when that was."""

    is_writing: Callable[[], bool]
    looks: list[bool] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        self.looks.append(self.is_writing())
        return iter((SECRET,))

    def __len__(self) -> int:
        return 1

    def __contains__(self, value: object) -> bool:
        return value == SECRET


class Transactions:
    """Stands before a database's transactions that write: whether one is open, and what comes just before the next."""

    def __init__(self, desk: Desk) -> None:
        self.open = 0
        self.before: Callable[[AsyncConnection], Awaitable[object]] | None = None
        self.read, self._write = desk.db.read, desk.db.write
        desk.context = replace(desk.context, db=cast("Database", self), secrets=Watched(lambda: self.open > 0))

    @asynccontextmanager
    async def write(self, **options: Any) -> AsyncIterator[AsyncConnection]:
        if before := self.before:
            self.before = None
            async with self._write() as connection:
                await before(connection)
        async with self._write(**options) as connection:
            self.open += 1
            try:
                yield connection
            finally:
                self.open -= 1


def assert_rendered_outside(desk: Desk) -> None:
    assert isinstance(desk.context.secrets, Watched)
    assert desk.context.secrets.looks
    assert not any(desk.context.secrets.looks)


@pytest.mark.slow
async def test_nothing_is_rendered_while_a_transaction_keeps_others_from_writing(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        Transactions(desk)
        await desk.add(ended(), replace(found(HOSTILE), worklog=HOSTILE))
        assert (await desk.reply("report")).body.startswith("### Fix staged")
        assert_rendered_outside(desk)


async def test_a_status_is_rendered_before_its_transaction_too(sqlite_url: str) -> None:
    async with open_desk(sqlite_url) as desk:
        Transactions(desk)
        await desk.add(running(trouble="the machine does not answer"))
        assert "**Waiting:**" in (await desk.reply("status")).body
        assert_rendered_outside(desk)


async def test_a_job_that_changed_while_its_report_was_rendered_is_reported_as_it_is_then(database_url: str) -> None:
    async with open_desk(database_url) as desk:
        transactions = Transactions(desk)
        async with desk.db.write() as connection:
            job = ended(state=JobState.LOST, failure="machine gpu-1 is gone")
            case = Case(job.case_key, job.repository, job.issue_number, "It breaks", CaseState.ACTIVE, NOON, NOON)
            await job_rows.insert_job(connection, job)
            await casebook.save_case(connection, replace(case, active_job_id=job.id))
        transactions.before = lambda connection: job_rows.request_cancel(connection, job.id, "maintainer", desk.clock())
        await report_jobs(desk.context)
        async with desk.db.read() as connection:
            assert await casebook.fetch_unreported_job_ids(connection) == [job.id]
        await report_jobs(desk.context)
        assert "maintainer had cancelled it" in (await desk.reply("report")).body
