"""The label that says where a case stands: written down before it is put on, and rarely changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from typing import cast

import pytest

from handlers.cases import casebook
from handlers.cases.case import LABELS, Case, CaseState
from handlers.context import Context
from handlers.effects.case_labels import CaseLabels
from handlers.effects.drain import drain
from handlers.ports import GitHub, GitHubError, NotFound, OverBudget
from handlers.rules import RepositoryRules
from runner.db.database import Database
from runner.model.job import Posts
from runner.rows import job_rows
from tests.support.clock import Clock
from tests.support.jobs import make_job, open_database
from tests.support.model_github import MISHAPS, ModelGitHub

NAME, ISSUE = "octo/widgets", 7
KEY = f"{NAME}#{ISSUE}"
REST = timedelta(minutes=1)
RUNNING, AWAITING, OPEN = LABELS.values()


class WeighingGitHub(ModelGitHub):
    """It also refuses labels as a test says, and notes each change."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.refusal: Exception | None = None
        self.changes = list[str]()

    async def add_label(self, repository: str, issue_number: int, label: str) -> None:
        self.changes.append(f"+{label}")
        if self.refusal:
            raise self.refusal
        await super().add_label(repository, issue_number, label)

    async def remove_label(self, repository: str, issue_number: int, label: str) -> None:
        self.changes.append(f"-{label}")
        await super().remove_label(repository, issue_number, label)


@dataclass
class Issue:
    """An issue with a case, and a label of somebody else."""

    db: Database
    github: WeighingGitHub
    clock: Clock
    shows: bool = True

    async def move(self, state: CaseState, active: str | None = None) -> None:
        now = self.clock()
        async with self.db.write() as connection:
            await casebook.save_case(connection, Case(KEY, NAME, ISSUE, "It breaks", state, now, now, active))

    async def look(self, passes: int = 1, every_s: float = 5) -> None:
        """Passes of the loop, so many seconds one after the other. One may be our last, and another process begins."""
        rules = {NAME: RepositoryRules(NAME, "mine", case_labels=self.shows)}
        github = cast(GitHub, self.github)
        context = Context(github, self.db, rules, {}, "https://ptq", (), self.clock, lambda: None)
        for _ in range(passes):
            with suppress(asyncio.CancelledError):
                await drain(CaseLabels(context, REST))
            self.clock.forward(every_s)

    @property
    def labels(self) -> set[str]:
        return self.github.labels[ISSUE]

    async def known(self) -> casebook.CaseLabel:
        async with self.db.read() as connection:
            label = await casebook.fetch_case_label(connection, KEY)
        assert label
        return label


@asynccontextmanager
async def open_issue(url: str) -> AsyncIterator[Issue]:
    async with open_database(url) as database:
        clock = Clock()
        github = WeighingGitHub(clock)
        github.labels[ISSUE] = {"bug"}
        yield Issue(database, github, clock)


async def live(issue: Issue, states: Iterable[CaseState], every_s: float = 5) -> None:
    for state in states:
        await issue.move(state)
        await issue.look(int(150 / every_s), every_s)


@pytest.mark.slow
async def test_an_issue_shows_where_its_case_stands_and_nothing_where_it_rests(database_url: str) -> None:
    async with open_issue(database_url) as issue:
        for state, label in LABELS.items():
            await live(issue, [state])
            assert issue.labels == {"bug", label}
        await live(issue, [CaseState.IDLE])
        assert issue.labels == {"bug"}
        puts_and_takes = [f"+{RUNNING}", f"-{RUNNING}", f"+{AWAITING}", f"-{AWAITING}", f"+{OPEN}", f"-{OPEN}"]
        assert issue.github.changes == puts_and_takes


@pytest.mark.slow
@pytest.mark.parametrize("posts", Posts)
async def test_a_job_of_which_the_thread_hears_nothing_changes_no_label(sqlite_url: str, posts: Posts) -> None:
    async with open_issue(sqlite_url) as issue:
        await live(issue, [CaseState.AWAITING_NOTE])
        job = make_job(thread=ISSUE, posts=posts)
        async with issue.db.write() as connection:
            await job_rows.insert_job(connection, job)
        await issue.move(CaseState.ACTIVE, job.id)
        await issue.look(passes=30)
        assert issue.labels == {"bug", RUNNING if posts is Posts.ALL else AWAITING}


@pytest.mark.slow
@pytest.mark.parametrize("mishaps", [*product(("none", *MISHAPS), repeat=2), *((one,) * 3 for one in MISHAPS)])
async def test_whatever_happens_to_the_writes_in_the_end_the_right_label_stands(
    tmp_path_factory: pytest.TempPathFactory, mishaps: tuple[str, ...]
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('labels')}/ptq.db"
    async with open_issue(url) as issue:
        issue.github.mishaps = [*mishaps]
        await issue.move(CaseState.ACTIVE)
        await issue.look()
        await live(issue, [CaseState.AWAITING_NOTE], every_s=10)
        assert issue.labels == {"bug", AWAITING}
        issue.github.mishaps = [*mishaps]
        await issue.move(CaseState.PULL_OPEN)
        await issue.look()
        await live(issue, [CaseState.IDLE], every_s=10)
        assert issue.labels == {"bug"}


async def test_a_label_changes_once_a_minute_at_most_and_then_to_the_newest(sqlite_url: str) -> None:
    async with open_issue(sqlite_url) as issue:
        for state in (CaseState.ACTIVE, CaseState.AWAITING_NOTE, CaseState.ACTIVE, CaseState.PULL_OPEN):
            await issue.move(state)
            await issue.look()
        assert issue.github.changes == [f"+{RUNNING}"]
        await issue.look(passes=12)
        assert issue.github.changes == [f"+{RUNNING}", f"-{RUNNING}", f"+{OPEN}"]


async def test_a_case_that_comes_back_to_what_stands_writes_nothing(sqlite_url: str) -> None:
    async with open_issue(sqlite_url) as issue:
        for state in (CaseState.ACTIVE, CaseState.IDLE, CaseState.ACTIVE):
            await issue.move(state)
            await issue.look()
        await issue.look(passes=30)
        assert issue.github.changes == [f"+{RUNNING}"]


@pytest.mark.slow
async def test_where_it_is_not_wanted_nothing_is_written_and_what_we_put_there_comes_off(database_url: str) -> None:
    async with open_issue(database_url) as issue:
        await live(issue, [CaseState.ACTIVE])
        issue.shows = False
        await issue.look(passes=30)
        assert issue.labels == {"bug"}
        await live(issue, [CaseState.AWAITING_NOTE, CaseState.PULL_OPEN])
        assert issue.github.changes == [f"+{RUNNING}", f"-{RUNNING}"]


async def test_a_label_of_ours_that_a_human_put_there_first_stays_where_we_never_came(sqlite_url: str) -> None:
    async with open_issue(sqlite_url) as issue:
        issue.labels.add(AWAITING)
        await live(issue, [CaseState.ACTIVE, CaseState.IDLE])
        assert issue.labels == {"bug", AWAITING}


async def test_a_refusal_for_good_ends_the_tries_and_says_why(sqlite_url: str) -> None:
    async with open_issue(sqlite_url) as issue:
        issue.github.refusal = NotFound(410, "This issue was deleted")
        await live(issue, [CaseState.ACTIVE, CaseState.IDLE])
        assert issue.github.changes == [f"+{RUNNING}"]
        assert (await issue.known()).abandoned == "the issue was deleted, moved, or converted to a discussion"


async def test_a_refusal_that_may_pass_is_tried_again_later_and_later(sqlite_url: str) -> None:
    async with open_issue(sqlite_url) as issue:
        issue.github.refusal = GitHubError(403, "Repository was archived so is read-only.")
        await live(issue, [CaseState.ACTIVE])
        known = await issue.known()
        assert (known.trouble, known.abandoned) == ("the repository is archived", None)
        assert len(issue.github.changes) < 6
        issue.github.refusal = None
        issue.clock.forward(3600)
        await issue.look()
        assert issue.labels == {"bug", RUNNING}
        assert replace(await issue.known(), next_attempt_at=issue.clock()) == casebook.CaseLabel(
            KEY, RUNNING, next_attempt_at=issue.clock()
        )


async def test_without_a_turn_to_write_a_label_waits_without_a_word(sqlite_url: str) -> None:
    async with open_issue(sqlite_url) as issue:
        issue.github.refusal = OverBudget(900)
        await live(issue, [CaseState.ACTIVE])
        known = await issue.known()
        assert (known.attempts, known.refusals, known.trouble) == (0, 0, None)
        issue.github.refusal = None
        await issue.look(passes=13)
        assert issue.labels == {"bug", RUNNING}
