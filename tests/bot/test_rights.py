"""Who may do what: every operation, for every role and on every surface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.operations import deliveries, jobs, machines, repositories, worktrees
from handlers.commands.options import Options
from handlers.commands.rights import RIGHTS, NotPermitted, Operation, Person, Surface
from handlers.commands.table import COMMANDS, Command
from handlers.context import Context
from handlers.events import Issue, IssueComment, Repository
from handlers.holds import takeover
from handlers.holds.manual_jobs import KeyHolder, Source
from handlers.jobs import cancel, pauses, tell
from handlers.jobs.start import StartRequest, start_job, start_unheard
from handlers.jobs.task_attempts import FurtherAttempt, start_further
from handlers.jobs.tasks import TaskRequest, start_off_thread
from handlers.pulls.pulls import ask_for_pull
from handlers.rules import COMMANDED, RepositoryRules, Role
from runner.rows.pauses import EVERYWHERE
from tests.support.jobs import NOON, make_job, open_database

NAME = "octo/widgets"
RULES = RepositoryRules(NAME, agent="mine", who_may_start=Role.TRIAGE, who_may_open=Role.MAINTAIN)
JOB = make_job(repository=NAME)

LEAST: Mapping[Operation, Role | None] = {
    Operation.HELP: Role.NONE,
    Operation.STATUS: Role.NONE,
    Operation.WITHDRAW: Role.NONE,
    Operation.START: Role.TRIAGE,
    Operation.RESULTS: Role.TRIAGE,
    Operation.CANCEL: Role.TRIAGE,
    Operation.TELL: Role.TRIAGE,
    Operation.PAUSE: Role.TRIAGE,
    Operation.RESUME: Role.TRIAGE,
    Operation.OPEN_PULL: Role.MAINTAIN,
    Operation.TAKE_OVER: Role.MAINTAIN,
    Operation.RELEASE: Role.MAINTAIN,
    Operation.REPLAY: None,
    Operation.DRAIN_MACHINE: None,
    Operation.RESUME_MACHINE: None,
    Operation.MAKE_WORKTREE: None,
    Operation.ASSIGN: None,
    Operation.RENAME: None,
    Operation.CLEAN: None,
    Operation.LIFT: None,
    Operation.ACCEPT_REPOSITORY: None,
}
"""The lowest role that may do it by these `RULES`; None where only operators may, whatever their role."""

SOMEBODY = Person("alice", Surface.PAGE, RULES)
PEOPLE = [
    replace(SOMEBODY, surface=surface, role=role, is_operator=is_operator)
    for surface, role, is_operator in product(Surface, Role, (False, True))
]
PEOPLE.append(Person("root", Surface.TERMINAL, is_operator=True))


EVERYWHERE_FOR_OPERATORS = {Operation.PAUSE, Operation.RESUME}
"""Operators do it on pages without a role."""


def may(person: Person, operation: Operation) -> bool:
    least = LEAST[operation]
    if person.surface is Surface.TERMINAL:
        return True
    if person.surface is Surface.PAGE and person.is_operator and operation in EVERYWHERE_FOR_OPERATORS:
        return True
    return person.is_operator if least is None else person.role >= least


@pytest.mark.parametrize("operation", Operation)
def test_an_operation_is_for_everybody_with_the_role_that_it_takes(operation: Operation) -> None:
    for person in PEOPLE:
        assert person.may(operation) == may(person, operation), person


def test_a_command_asks_for_the_operation_of_its_name() -> None:
    named = {verb: spec.operation for verb, spec in COMMANDS.items() if verb not in COMMANDED}
    assert named == {
        "run": Operation.START,
        "retry": Operation.START,
        "status": Operation.STATUS,
        "results": Operation.RESULTS,
        "cancel": Operation.CANCEL,
        "tell": Operation.TELL,
        "pr": Operation.OPEN_PULL,
        "takeover": Operation.TAKE_OVER,
        "release": Operation.RELEASE,
        "help": Operation.HELP,
    }
    assert {COMMANDS[verb].operation for verb in COMMANDED} == {Operation.START}


# Every function checks the right of its operation before it does anything.

Act = Callable[[Context, AsyncConnection, Person], Awaitable[object]]
REPOSITORY = Repository(full_name=NAME, private=False, default_branch="main", clone_url="https://git")
GUEST = KeyHolder("casey", "ssh-ed25519 AAAA", timedelta(hours=8))
SOURCE = Source(NAME, private=False, clone_url="https://git", base_branch="main", base_commit=None, agent="mine")


COMMENT = IssueComment(id=1, body="/ptq pr", user=None, created_at=NOON, html_url="https://github.com/octo/widgets#1")


def ask_for_job(person: Person) -> StartRequest:
    issue = Issue(number=7, title="It breaks", created_at=NOON, updated_at=NOON)
    return StartRequest(person, REPOSITORY, issue, "fix", NOON, "a form")


ACTS: tuple[tuple[Operation, Act], ...] = (
    (Operation.START, lambda context, _, person: start_job(context, ask_for_job(person))),
    (Operation.START, lambda context, _, person: start_unheard(context, ask_for_job(person))),
    (
        Operation.START,
        lambda context, _, person: start_off_thread(context, person, REPOSITORY, TaskRequest("Do it.", "fix")),
    ),
    (
        Operation.START,
        lambda context, _, person: start_further(context, FurtherAttempt(person, REPOSITORY, JOB, "a form")),
    ),
    (Operation.CANCEL, lambda _, connection, person: cancel.cancel(connection, person, JOB, NOON)),
    (Operation.TELL, lambda _, connection, person: tell.tell(connection, person, JOB, "Look.", "once", NOON)),
    (Operation.WITHDRAW, lambda _, connection, person: cancel.withdraw(connection, person, 7, NOON, NOON)),
    (Operation.PAUSE, lambda _, connection, person: pauses.pause(connection, person, NAME, NOON)),
    (Operation.RESUME, lambda _, connection, person: pauses.resume(connection, person, NAME)),
    (Operation.OPEN_PULL, lambda context, _, person: ask_for_pull(context, person, 7, COMMENT, Command("pr", "", ""))),
    (
        Operation.TAKE_OVER,
        lambda _, connection, person: takeover.take_over(
            connection, person, JOB, GUEST, agent="mine", secret=b"", now=NOON
        ),
    ),
    (
        Operation.RELEASE,
        lambda _, connection, person: takeover.release(
            connection, person, JOB, drop=False, secret=b"", public_url="", now=NOON
        ),
    ),
    (Operation.REPLAY, lambda _, connection, person: deliveries.replay(connection, person, "none", force=True)),
    (Operation.DRAIN_MACHINE, lambda _, connection, person: machines.drain(connection, person, "gpu-1", NOON)),
    (Operation.RESUME_MACHINE, lambda _, connection, person: machines.resume(connection, person, "gpu-1")),
    (
        Operation.MAKE_WORKTREE,
        lambda _, connection, person: worktrees.begin_worktree(
            connection, person, GUEST, SOURCE, "try", machine="gpu-1", secret=b"", now=NOON
        ),
    ),
    (
        Operation.ASSIGN,
        lambda _, connection, person: worktrees.assign(
            connection, person, JOB, "Go on.", Options(), RULES, {}, secret=b"", now=NOON
        ),
    ),
    (Operation.ACCEPT_REPOSITORY, lambda _, connection, person: repositories.accept(connection, person, NAME)),
    (Operation.RENAME, lambda _, connection, person: jobs.rename(connection, person, JOB, "nans", NOON)),
    (Operation.CLEAN, lambda _, connection, person: jobs.clean(connection, person, JOB, NOON)),
    (Operation.LIFT, lambda _, connection, person: jobs.lift(connection, person, JOB, NOON)),
)

ONLY_READ = {Operation.HELP, Operation.STATUS, Operation.RESULTS}
"""They are commands, and nothing besides: `handlers.triggers.comments` checks the right to them."""

ELSEWHERE = {Operation.CANCEL, Operation.PAUSE, Operation.RESUME, Operation.TAKE_OVER, Operation.RELEASE}
"""They are told what they are about, which may be in another repository than the one in which a person has a role."""


async def find_wrong(folder: Path, acts: Iterable[tuple[Operation, Act]]) -> list[str]:
    """The operations that refuse somebody who may do them, or do not refuse somebody who may not."""
    async with open_database(folder) as database:
        context = Context(cast("Any", None), database, {}, {}, "", (), lambda: NOON, lambda: None)
        # Nothing can be written: who gets past the check fails at something else.
        async with database.read() as connection:
            return [
                f"{operation} {person}"
                for operation, act in acts
                for person in PEOPLE
                if await is_refused(act, context, connection, person) == may(person, operation)
            ]


async def is_refused(act: Act, context: Context, connection: AsyncConnection, person: Person) -> bool:
    try:
        await act(context, connection, person)
    except NotPermitted:
        return True
    except Exception:
        return False
    return False


@pytest.mark.slow
async def test_every_function_refuses_exactly_the_people_who_may_not(tmp_path: Path) -> None:
    assert {operation for operation, _ in ACTS} == RIGHTS.keys() - ONLY_READ
    assert await find_wrong(tmp_path, ACTS) == []


async def test_a_function_that_forgets_the_right_or_checks_another_one_is_found(tmp_path: Path) -> None:
    async def forget(context: Context, connection: AsyncConnection, person: Person) -> None:
        """Do it for everybody."""

    async def confuse(context: Context, connection: AsyncConnection, person: Person) -> None:
        person.require(Operation.START)

    for operation, act in product((Operation.CANCEL, Operation.RELEASE, Operation.REPLAY), (forget, confuse)):
        is_right = operation is Operation.CANCEL and act is confuse
        assert bool(await find_wrong(tmp_path, [(operation, act)])) is not is_right, (operation, act)


async def test_a_role_is_worth_nothing_in_another_repository(tmp_path: Path) -> None:
    stranger = Person("alice", Surface.THREAD, replace(RULES, name="octo/other"), Role.ADMIN)
    async with open_database(tmp_path) as database, database.read() as connection:
        context = Context(cast("Any", None), database, {}, {}, "", (), lambda: NOON, lambda: None)
        for operation, act in ACTS:
            if operation in ELSEWHERE:
                assert await is_refused(act, context, connection, stranger), operation


async def test_all_repositories_are_paused_only_by_operators_and_by_them_in_no_thread(tmp_path: Path) -> None:
    refused = [
        Person("alice", Surface.THREAD, RULES, Role.ADMIN, is_operator=True),
        Person("alice", Surface.PAGE, RULES, Role.ADMIN),
        Person("bob", Surface.PAGE),
    ]
    async with open_database(tmp_path) as database, database.write() as connection:
        for person in refused:
            with pytest.raises(NotPermitted):
                await pauses.pause(connection, person, EVERYWHERE, NOON)
        assert await pauses.pause(connection, Person("root", Surface.TERMINAL), EVERYWHERE, NOON)
        assert await pauses.resume(connection, Person("root", Surface.PAGE, is_operator=True), EVERYWHERE)


@pytest.mark.parametrize(
    ("surface", "signature", "mention"),
    [
        (Surface.THREAD, "alice", "@alice"),
        (Surface.PAGE, "alice", "@alice"),
        (Surface.TERMINAL, "the operator", "the operator"),
    ],
)
def test_no_account_at_the_terminal_is_taken_for_one_of_github(surface: Surface, signature: str, mention: str) -> None:
    person = Person("alice", surface)
    assert (person.signature, person.mention) == (signature, mention)
