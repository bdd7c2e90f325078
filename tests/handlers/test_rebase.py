"""What `/ptq rebase` makes of the words behind it, and which rebases are tried again."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.jobs.rebase import MAX_TRIES, is_branch, is_to_be_tried_again, left_conflicts, read_onto
from runner.changes.rebase import find_unresolved, read_conflicts
from runner.model.job import FileChange, Job, JobKind, JobState, Report
from runner.model.jobd_answers import JobdError
from runner.model.meter import Meter
from runner.rows import job_rows
from tests.support.jobs import make_job, open_database

MARKED = b"a\n<<<<<<< onto\nb\n||||||| base\nc\n=======\nd\n>>>>>>> change\n"


@pytest.mark.parametrize(
    ("argument", "onto", "rest"),
    [
        ("", None, ""),
        ("ontology first", None, "ontology first"),
        ("onto", "", ""),
        ("onto --agent codex", "", "--agent codex"),
        ("Onto `release/2.5` —agent codex mind it", "release/2.5", "—agent codex mind it"),
        ("--agent codex onto main", None, "--agent codex onto main"),
    ],
)
def test_what_stands_behind_onto_is_read_and_the_rest_is_left(argument: str, onto: str | None, rest: str) -> None:
    assert read_onto(argument) == (onto, rest)


@pytest.mark.parametrize("ref", ["main", "release/2.5", "v1.0+cu12", "gh/ann_b/1-x"])
def test_branches_are_taken(ref: str) -> None:
    assert is_branch(ref)


@pytest.mark.parametrize(
    "ref",
    [
        *("", "-x", ".x", "a..b", "a//b", "a/", "a/.b", "a./b", "a.", "a.lock", "a.lock/b", "a b", "a~1", "a^", "a:b"),
        *("a?", "a@{1}", "ä", "a\n", "a`b", "$(a)", "x" * 201),
    ],
)
def test_what_git_or_a_shell_could_read_in_another_way_is_no_branch(ref: str) -> None:
    assert not is_branch(ref)


def rebased(**changes: Any) -> Job:
    given = {"preset": "rebase", "state": JobState.FAILED, "conflicts": ("a.py", "b~change")}
    return make_job(**{**given, **changes})


@pytest.mark.parametrize(
    ("path", "content", "is_left"),
    [
        ("a.py", MARKED, True),
        ("a.py", MARKED.replace(b"\n", b"\r\n"), True),
        ("a.py", b">>>>>>>\n", True),
        ("a.py", b"Heading\n=======\n", False),
        ("a.py", b"<<<<<<<< 8\n <<<<<<< x\n", False),
        ("a.py", None, False),
        ("b~change", b"x", True),
        ("other.py", MARKED, False),
    ],
)
def test_a_conflict_is_left_where_a_marker_or_a_made_up_name_is(
    path: str, content: bytes | None, is_left: bool
) -> None:
    change = FileChange(path, None if content is None else "100644", content)
    assert find_unresolved(rebased(), [change]) == ((path,) if is_left else ())


@pytest.mark.parametrize("told", [None, "a", [7], [""], ["x" * 5_000], ["x"] * 10_001])
def test_a_machine_that_makes_no_sense_about_conflicts_is_not_believed(told: Any) -> None:
    with pytest.raises(JobdError):
        read_conflicts({"conflicts": told})


def report_of(job: Job, body: str = "fix staged", content: bytes = MARKED) -> Report:
    return Report(job.id, body, "", "", "", "", (FileChange("a.py", "100644", content),), None)


FINISHED = Meter("0123456789", ending="finished")


@pytest.mark.parametrize(
    ("job", "body", "content", "meter", "expected"),
    [
        (rebased(), "fix staged", MARKED, FINISHED, True),
        (rebased(), "", MARKED, FINISHED, False),
        (rebased(), "security concern", MARKED, FINISHED, False),
        (rebased(), "fix staged", b"", FINISHED, False),
        (rebased(), "fix staged", MARKED, Meter("0123456789", ending="capped"), False),
        (rebased(), "fix staged", MARKED, None, False),
        (rebased(state=JobState.CANCELLED), "fix staged", MARKED, FINISHED, False),
        (rebased(kind=JobKind.RELEASE), "fix staged", MARKED, FINISHED, False),
        (rebased(preset="fix"), "fix staged", MARKED, FINISHED, False),
    ],
)
def test_only_an_agent_that_came_to_its_own_end_is_followed_by_another(
    job: Job, body: str, content: bytes, meter: Meter | None, expected: bool
) -> None:
    assert left_conflicts(job, report_of(job, body, content), meter) is expected


async def test_a_lost_attempt_is_no_try(database_url: str) -> None:
    async with open_database(database_url) as db, db.write() as connection:
        expected, before = [], None
        states = [JobState.FAILED, JobState.LOST, JobState.FAILED, JobState.FAILED]
        for attempt, state in enumerate(states, 1):
            job = rebased(id=f"{attempt:010}", attempt=attempt, state=state, replaces=before)
            await job_rows.insert_job(connection, job)
            await job_rows.save_meter(connection, Meter(job.id, ending="finished"))
            expected.append(await is_to_be_tried_again(connection, job, report_of(job)))
            before = job.id
    assert expected == [True, False, True, False]
    assert states.count(JobState.FAILED) == MAX_TRIES
