"""What a recording of the service's steps is made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.crash.edges import describe_statement, name_operation, name_request
from tests.crash.points import OCCURRENCES, Logbook, Point, find_lost_answers, find_pauses, read_logbook, spread

COMMENTS = "/repos/{owner}/{repo}/issues/{issue_number}/comments"
POST = Point(f"POST {COMMENTS}", "before", 2)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT 1", ""),
        ("BEGIN IMMEDIATE", ""),
        ("SELECT claims.name FROM claims WHERE claims.name = $1 FOR UPDATE", ""),
        ("INSERT INTO jobs (id, state) VALUES (?, ?)", "insert jobs"),
        ("DELETE FROM leases WHERE leases.job_id = ?", "delete leases"),
        ("UPDATE jobs SET state=?, machine=? WHERE jobs.id = ?", "update jobs(state, machine)"),
        ("\nCREATE TABLE jobs (\n\tid INTEGER)", "make the tables"),
    ],
)
def test_a_statement_is_named_by_what_it_writes(statement: str, words: str) -> None:
    assert describe_statement(statement) == words


def test_a_request_has_the_same_name_for_all_issues() -> None:
    names = {name_request("POST", f"http://127.0.0.1:1/api/v3/repos/octo/widgets/issues/{n}/comments") for n in (1, 2)}
    assert names == {f"POST {COMMENTS}"}
    assert name_request("POST", "https://chat.example.org/hook") == "POST elsewhere"


def test_a_command_for_a_machine_is_named_by_its_verb() -> None:
    assert name_operation(["python3", "-I", "-S", "/x/jobd.pyz", "poll"], b'{"stage": "agent"}') == "ssh: poll agent"
    assert name_operation(["python3", "-I", "-S", "/x/jobd.pyz", "start"], b"{}") == "ssh: start"
    assert name_operation(["python3", "-I", "-S", "-c", "...", "/x/jobd.pyz", "digest"], b"PK") == "ssh: install"


def test_a_logbook_knows_its_point_and_forgets_endless_repetitions(tmp_path: Path) -> None:
    book = Logbook(tmp_path / "points", Point("ssh: poll agent", "after", 3))
    assert [book.note(when, "ssh: poll agent") for _ in range(4) for when in ("before", "after")].index(True) == 5
    for _ in range(4):
        book.note("before", f"POST {COMMENTS}")
    points = read_logbook(tmp_path / "points")
    assert Counter(point.name for point in points) == {"ssh: poll agent": 2 * OCCURRENCES, f"POST {COMMENTS}": 4}


def test_answers_get_lost_after_each_write_to_github() -> None:
    points = [POST, Point("GET /app", "before", 1), Point("ssh: start", "before", 1)]
    assert find_lost_answers(points) == [Point(f"POST {COMMENTS}", "lost", 2)]


def test_nobody_stands_still_between_a_look_at_their_claim_and_a_request() -> None:
    commit = [Point("commit insert jobs", when, 1) for when in ("before", "after")]
    command = [Point("ssh: start", when, 1) for when in ("before", "sent", "after")]
    assert find_pauses([*commit, *command, *find_lost_answers([POST])]) == [*commit, *command[1:]]


def test_a_sample_has_something_of_each_kind_and_can_be_drawn_again() -> None:
    points = [Point(f"commit {number}", "after", 1) for number in range(50)]
    points += [Point("ssh: start", when, 1) for when in ("before", "sent", "after")]
    drawn = spread(points, 7)
    assert len({point.kind for point in drawn[:4]}) == 4
    assert sorted(drawn) == sorted(points)
    assert drawn == spread(points, 7) != spread(points, 8)
