"""What a cancel ends, whoever asks for it and on whatever surface."""

from __future__ import annotations

import pytest

from handlers.commands.rights import Person, Surface
from handlers.jobs.cancel import cancel
from handlers.rules import RepositoryRules, Role
from runner.model.job import ACTIVE, JobState
from runner.rows import job_rows
from tests.support.jobs import NOON, make_job, open_database

BOSS = Person("boss", Surface.THREAD, RepositoryRules("octo/widgets", agent="mine"), Role.WRITE)
OPERATOR = Person("root", Surface.TERMINAL)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize(("person", "by"), [(BOSS, "@boss"), (OPERATOR, "the operator")])
async def test_a_cancel_ends_what_is_active_and_what_may_be_started_again(
    database_url: str, state: JobState, person: Person, by: str
) -> None:
    job = make_job(state=state)
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, job)
        ends = await cancel(connection, person, job, NOON)
        found = await job_rows.fetch_job(connection, job.id)
        events = [what for _, what in await job_rows.fetch_events(connection, job.id) if "cancel" in what]
    assert found
    # A lost job may be started again until its report says whether it is, and nothing has been reported here.
    assert ends == (state in {*ACTIVE, JobState.LOST})
    assert found.cancelled_by == (person.signature if ends else None)
    assert events == [f"cancel requested by {by}"] * ends


async def test_of_two_people_who_cancel_a_job_the_first_has_ended_it(database_url: str) -> None:
    job = make_job()
    async with open_database(database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, job)
        assert await cancel(connection, BOSS, job, NOON)
        assert await cancel(connection, OPERATOR, job, NOON), "it is about to end"
        found = await job_rows.fetch_job(connection, job.id)
    assert found
    assert found.cancelled_by == "boss"
