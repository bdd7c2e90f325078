"""The machine's clone, which all jobs of a repository fetch into: as seldom as they can, and never too seldom."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.clone import was_fetched_since
from runner.jobd.files import read_boot_id
from runner.jobd.git import find_clone
from tests.support.jobd import Jobd, Repository, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def jobd(jobd_without_base: Jobd) -> Jobd:
    return jobd_without_base


@contextmanager
def clone_taken(jobd: Jobd, jobs: int) -> Iterator[None]:
    """Hold the clone's lock until so many others want it; inside the block nobody else does yet."""
    clone = find_clone(jobd.job, jobd.repository.url)
    path = clone.with_name(f"{clone.name}.lock")
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        wait_until(lambda: count_who_has_open(path) == jobs + 1)


def count_who_has_open(path: Path) -> int:
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It may end while we look.
            for descriptor in process.joinpath("fd").iterdir():
                with suppress(OSError):
                    found += descriptor.readlink() == path
    return found


def prepare_together(jobd: Jobd, *branches: str) -> list[dict[str, Any]]:
    """Jobs that all had asked for their environment before the first one could fetch."""
    many = [jobd.beside() for _ in branches]
    with clone_taken(jobd, len(many)):
        for job, branch in zip(many, branches, strict=True):
            job.call("prepare", **job.prepare_request(base_branch=branch))
    return [job.wait("prepare") for job in many]


def test_of_jobs_that_come_at_once_one_fetches_for_all(jobd: Jobd, repository: Repository) -> None:
    jobd.prepare()
    newest = repository.commit({"a.txt": "newer\n"})
    polls = prepare_together(jobd, "main", "main", "main")
    assert [poll["result"]["base_commit"] for poll in polls] == [newest] * 3
    assert sorted(poll["log"].count(b" fetch ") for poll in polls) == [0, 0, 1]
    told = b"[Another job has just fetched the repository.]"
    assert sorted(poll["log"].count(told) for poll in polls) == [0, 1, 1]

    # Another branch is fetched, however new the first one is.
    repository.git("branch", "other")
    assert [poll["log"].count(b" fetch ") for poll in prepare_together(jobd, "main", "other")] == [1, 1]

    # When the first one cannot fetch, the next one tries.
    repository.folder.rename(repository.folder.with_name("away"))
    assert [poll["error"] for poll in prepare_together(jobd, "main", "main")] == ["clone_failed"] * 2


@pytest.mark.parametrize("began_at", [1e300, -1.0, True, "soon", None])
def test_a_record_that_somebody_made_up_keeps_nobody_from_what_is_new(began_at: object) -> None:
    now = time.monotonic()
    assert not was_fetched_since(now, json.loads(json.dumps([began_at, "this"])), "this")


def test_a_record_of_before_the_machine_was_started_says_nothing() -> None:
    now = time.monotonic()
    assert was_fetched_since(now - 2, [now - 1, "this"], "this")
    assert not was_fetched_since(now - 2, [now - 1, "before"], "this")
    assert not was_fetched_since(now - 1, [now - 2, "this"], "this")


def test_a_clone_that_is_there_is_not_made_again_and_one_whose_making_was_cut_short_is_made(
    jobd: Jobd, repository: Repository
) -> None:
    assert jobd.prepare()["log"].count(b" init --quiet --bare") == 1
    clone = find_clone(jobd.job, repository.url)

    # Nor does it keep anybody from what is new if somebody made its record up.
    record = clone / "fetched.json"
    assert list(json.loads(record.read_text())) == ["refs/heads/main"]
    record.write_text(json.dumps({"refs/heads/main": [1e300, read_boot_id()]}))
    newest = repository.commit()
    later = jobd.beside().prepare()
    assert later["result"]["base_commit"] == newest
    assert later["log"].count(b" init --quiet --bare") == 0

    for name in ("HEAD", "objects", "refs"):
        (clone / name).rename(jobd.workspace / f"old-{name}")
        later = jobd.beside().prepare()
        assert later["state"] == "done", later["message"]
        assert later["log"].count(b" init --quiet --bare") == 1
