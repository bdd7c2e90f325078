"""What somebody takes over by a comment, and which of their keys let them in."""

from __future__ import annotations

from dataclasses import replace

from handlers.by_comment import choose_keys, find_newest
from runner import store
from runner.job import VERIFY, JobState
from runner.jobd.admission import MAX_KEYS, read_keys
from tests.handlers.test_report_comment import result
from tests.runner.test_admission import BAD_KEYS, KEY, KEYS, OTHER
from tests.support.jobs import make_job, open_database


def test_what_machines_do_not_take_is_left_out() -> None:
    assert choose_keys([*BAD_KEYS, f"{OTHER} me@home", KEY, OTHER]) == [OTHER, KEY]
    assert choose_keys(BAD_KEYS) == []


def test_of_many_keys_the_first_are_taken_and_a_machine_takes_them_all() -> None:
    many = [f"ssh-ed25519 {KEYS['ed25519'][:-2]}{letter}K" for letter in "AEIMQUYcgkosw"]
    chosen = choose_keys(many)
    assert len(set(chosen)) == MAX_KEYS
    assert read_keys("\n".join(chosen)) == chosen


async def test_a_job_in_which_nobody_worked_hides_none_in_which_somebody_did(database_url: str) -> None:
    async with open_database(database_url) as database, database.write() as connection:

        async def find() -> str | None:
            newest = await find_newest(connection, "octo/widgets", 7)
            return newest.id if newest else None

        assert await find() is None
        looked = make_job(id="2" * 10, preset=VERIFY, attempt=2, state=JobState.SUCCEEDED)
        await store.insert_job(connection, looked)
        assert await find() == looked.id
        worked = make_job(id="1" * 10, state=JobState.SUCCEEDED)
        await store.insert_job(connection, worked)
        await store.insert_report(connection, replace(result(), job_id=worked.id))
        assert await find() == worked.id
        await store.insert_job(connection, make_job(id="3" * 10, preset=VERIFY, attempt=3))
        assert await find() == "3" * 10, "what is under way is what they mean"
