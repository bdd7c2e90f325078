"""What others put in the way of a pull request: it opens with the approved commit alone, or the thread hears why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handlers.effects.drain import drain
from handlers.ports import PullRequest
from handlers.pulls.pulls import Pulls
from tests.handlers.test_notes_again import ISSUE, Thread, open_thread
from tests.support.model_github import OURS, Opened

JOB = "0000000001"
BRANCH = f"ptq/issue-{ISSUE}-{JOB}"
OURS_BEFORE = {"author": OURS, "body": f"A note.\n\n<!-- ptq:pull={JOB} -->", "base_branch": "main"}


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[Thread]:
    """A diff that waits for a note."""
    async with open_thread(tmp_path) as thread:
        await thread.stand(JOB, 1)
        yield thread


def push(thread: Thread) -> str:
    """Somebody puts a commit of their own on the branch that our pull request will want."""
    thread.github._branches[BRANCH] = "e" * 40
    return "e" * 40


def add_pull(thread: Thread, head_sha: str, author: str = "writer", state: str = "open", **more: Any) -> int:
    number = thread.github.next_id()
    pull = PullRequest(number, f"https://github/pull/{number}", state, head_sha, author, **more)
    thread.github.opened.append(Opened(pull, BRANCH, pull.body, ""))
    return number


def ours(thread: Thread) -> list[PullRequest]:
    return [opened.pull for opened in thread.github.opened if opened.pull.author == OURS]


async def approve(thread: Thread) -> str:
    """What the thread hears of a good note."""
    await thread.work(thread.note())
    for _ in range(5):
        await drain(Pulls(thread.context))
        thread.clock.forward(600)
    (answer,) = await thread.answers()
    return answer


@pytest.mark.parametrize("more", [{}, {"body": f"<!-- ptq:pull={JOB} -->", "base_branch": "main"}])
async def test_a_pull_request_that_somebody_else_opened_from_our_branch_is_named_as_in_the_way(
    thread: Thread, more: dict[str, str]
) -> None:
    number = add_pull(thread, push(thread), **more)
    answer = await approve(thread)
    assert f"`writer` has opened pull request #{number} from the branch `{BRANCH}`" in answer
    assert "delete its branch first" in answer
    assert ours(thread) == []


async def test_one_that_was_closed_again_is_not_taken_for_ours_and_its_branch_is_named(thread: Thread) -> None:
    add_pull(thread, push(thread), state="closed")
    assert f"the branch `{BRANCH}` exists with another commit" in await approve(thread)
    assert ours(thread) == []


async def test_ours_opens_where_only_a_closed_one_of_somebody_else_is_left(thread: Thread) -> None:
    add_pull(thread, "e" * 40, state="closed")
    answer = await approve(thread)
    (opened,) = ours(thread)
    assert answer.startswith(f"Draft pull request #{opened.number} is open")


@pytest.mark.parametrize(
    "changed",
    [{"base_branch": "dev"}, {"body": "no marker"}, {"body": "<!-- ptq:pull=0000000002 -->"}],
)
async def test_another_one_of_our_app_is_not_taken_for_the_one_that_the_note_asks_for(
    thread: Thread, changed: dict[str, str]
) -> None:
    number = add_pull(thread, "e" * 40, **{**OURS_BEFORE, **changed})
    assert f"has opened pull request #{number}" in await approve(thread)
    assert len(ours(thread)) == 1


Interfere = Callable[[Thread], object]


def open_newer(thread: Thread) -> None:
    add_pull(thread, "e" * 40, state="closed")
    add_pull(thread, ours(thread)[0].head_sha, base_branch="dev")


async def lose_answer(thread: Thread, interfere: Interfere) -> str:
    """Our pull request is there, its answer was lost, and something happens before the next attempt."""
    before, thread.github.loses_opened = thread.github.next_id(), True
    await thread.work(thread.note())
    await drain(Pulls(thread.context))
    assert [pull.number > before for pull in ours(thread)] == [True]
    assert await thread.answers() == []
    interfere(thread)
    thread.clock.forward(600)
    await drain(Pulls(thread.context))
    (answer,) = await thread.answers()
    assert len(ours(thread)) == 1
    return answer


@pytest.mark.parametrize("interfere", [lambda thread: None, open_newer])
async def test_ours_is_found_again_after_a_lost_answer(thread: Thread, interfere: Interfere) -> None:
    answer = await lose_answer(thread, interfere)
    assert answer.startswith(f"Draft pull request #{ours(thread)[0].number} is open")


def push_to_ours(thread: Thread) -> None:
    head_sha = push(thread)
    (place,) = [at for at, opened in enumerate(thread.github.opened) if opened.pull.author == OURS]
    opened = thread.github.opened[place]
    thread.github.opened[place] = replace(opened, pull=replace(opened.pull, head_sha=head_sha))


async def test_what_was_pushed_to_ours_before_it_was_found_again_is_not_passed_off_as_approved(thread: Thread) -> None:
    answer = await lose_answer(thread, push_to_ours)
    assert f"somebody else has pushed to pull request #{ours(thread)[0].number}" in answer


async def test_what_is_pushed_between_the_branch_and_the_pull_request_is_not_passed_off_as_approved(
    thread: Thread,
) -> None:
    thread.github.before_opening = lambda: push(thread)
    answer = await approve(thread)
    assert f"somebody else has pushed to pull request #{ours(thread)[0].number}" in answer
