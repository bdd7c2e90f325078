"""Decides who sees what. GitHub is asked for roles, as for commands in threads, and its answers are cached briefly.

Somebody about whom GitHub does not answer counts as having no role.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from cachetools import TTLCache

from bot.github.limits import ListLeft
from bot.web.auth.page_budget import (
    CALLS_OF_PERSON,
    CALLS_PER_REPOSITORY,
    REFRESH_S,
    PageBudget,
    find_refresh_s,
)
from bot.web.auth.sessions import Visitor
from handlers.commands.rights import Right
from handlers.context import Context
from handlers.ports import GitHubError, GitHubUnavailable
from handlers.rules import RepositoryRules, Role
from runner.model.job import Job
from runner.single_flight import SingleFlight

log = structlog.get_logger()

LASTS_S = 30.0
"""How long a role is cached for reading, in seconds. The time is short, so that a lost right ends soon. Before anything
is done, GitHub is asked again."""

NONE_LASTS_S = 300.0
"""How long it is cached that somebody has no role, in seconds. With a shorter time, strangers could make the service
ask GitHub about each repository all the time."""

HELD_RIGHT_LASTS_S = 86_400.0
"""How long a person's forms count as the service's own work after a form of theirs was allowed, in seconds."""

KEPT = 10_000

NOT_ASKED = (
    "ptq-bot has asked GitHub very often in this hour, so it cannot ask about your access now. Until the hour is over, "
    "you may see only what is public."
)


_Question = tuple[str, str]
"""A login and a repository, both in lower case."""


@dataclass(frozen=True, slots=True)
class VisibleJobs:
    """The jobs that a list may show. Names of repositories are in lower case."""

    everything: bool = False
    public: bool = False
    """Whether all jobs are shown that belong to an issue and are not private."""
    read: frozenset[str] = frozenset()
    """The repositories whose jobs are shown if they belong to an issue."""
    start: frozenset[str] = frozenset()
    """The repositories whose jobs are shown even if they belong to no issue."""
    private: frozenset[str] = frozenset()
    """The repositories of `read` and `start` whose private jobs are shown as well."""


class Visibility:
    """Decides what a visitor may see."""

    def __init__(
        self,
        context: Context,
        *,
        public: bool,
        by_address: bool,
        lasts_s: float = LASTS_S,
        none_lasts_s: float = NONE_LASTS_S,
        list_left: ListLeft = tuple,
        calls_of_person: int | None = None,
    ) -> None:
        """`public` shows jobs of public repositories to everybody.

        `by_address` shows a job to anyone who has its address, unless its repository is private: an address has 40
        random bits, which is not enough to guard a private repository's code for years. `list_left` says what is left
        of GitHub's rate limits, by account.
        """
        self._context = context
        self._public = public
        self._by_address = by_address
        self._roles: TTLCache[_Question, Role] = TTLCache(KEPT, lasts_s)
        self._strangers: TTLCache[_Question, Role] = TTLCache(KEPT, none_lasts_s)
        self._allowed: TTLCache[_Question, bool] = TTLCache(KEPT, HELD_RIGHT_LASTS_S)
        self._questions = SingleFlight[_Question, Role]()
        # If a repository becomes public, everybody can read it, and its private jobs must be closed to them soon. If it
        # becomes private, its readers can wait longer until its private jobs are open to them.
        self._known_private: TTLCache[str, bool] = TTLCache(KEPT, lasts_s)
        self._known_public: TTLCache[str, bool] = TTLCache(KEPT, none_lasts_s)
        self._repositories = SingleFlight[str, bool]()
        usual = CALLS_OF_PERSON + CALLS_PER_REPOSITORY * len(context.repositories)
        calls = usual if calls_of_person is None else calls_of_person
        self._budget = PageBudget(list_left, context.now, calls_of_person=calls)
        self._refresh_s = find_refresh_s(len(context.repositories), calls)

    def is_open(self, visitor: Visitor) -> bool:
        """Whether a visitor may open the pages with lists."""
        return self._public or visitor.login is not None

    async def sees_machines(self, visitor: Visitor) -> bool:
        """Whether a visitor may see the machines and their troubles.

        If lists are not public, only people who can start jobs in some repository may. To be signed in is not enough,
        because everybody can sign in with GitHub. To read a repository is not enough, because everybody can read a
        public one.
        """
        if self._public:
            return True
        scope = await self.find_scope(visitor)
        return scope.everything or bool(scope.start)

    async def sees(self, visitor: Visitor, job: Job) -> bool:
        """Whether a visitor may see a job whose address they have."""
        if visitor.is_operator or (not job.private and (self._by_address or self._public)):
            return True
        return await self._may_read(visitor, job, Role.READ if job.thread is not None else self._find_least(job))

    async def reads_log(self, visitor: Visitor, job: Job) -> bool:
        """Whether a visitor who sees a job may read the logs of its preparation, its agent and its collection."""
        if visitor.is_operator or self._context.opens_log(job):
            return True
        return await self._may_read(visitor, job, self._find_least(job))

    async def _may_read(self, visitor: Visitor, job: Job, least: Role) -> bool:
        """Whether a visitor has at least this role in a job's repository, and more if a private job needs more.

        Everybody can read a repository that has become public. So its private jobs need write access.
        """
        if visitor.login is None:
            return False
        role = await self.find_role(visitor.login, job.repository)
        return role >= least and (not job.private or await self._reads_private(visitor.login, role, job.repository))

    async def _reads_private(self, login: str, role: Role, repository: str) -> bool:
        """Whether somebody with this role may read the private jobs of a repository."""
        return role >= Role.WRITE or (role >= Role.READ and await self._is_private(login, repository))

    async def _is_private(self, login: str, repository: str) -> bool:
        """Whether a repository is private, according to a recent answer of GitHub.

        False if GitHub does not answer, or if the budget does not allow the question.
        """
        key = repository.lower()
        for kept in (self._known_private, self._known_public):
            if (known := kept.get(key)) is not None:
                return known
        if not self._repositories.is_open(key) and not self._budget.take(login, repository.partition("/")[0]):
            return False
        try:
            return await self._repositories.join(key, lambda: self._look_up(repository))
        except (GitHubError, GitHubUnavailable) as error:
            log.warning("dashboard.repository_unknown", repository=repository, reason=str(error))
            return False

    async def _look_up(self, repository: str) -> bool:
        private = (await self._context.github.fetch_repository(repository)).private
        kept = self._known_private if private else self._known_public
        kept[repository.lower()] = private
        return private

    def explain_no_log(self, visitor: Visitor, job: Job) -> str:
        """Why a visitor who sees a job may not read its log, and what they can do, in sentences."""
        access = f"{self._find_least(job).word} access to {job.repository}"
        if self.explain_not_asked(visitor):
            return NOT_ASKED
        if visitor.login:
            return f"You need {access} to see the log."
        if visitor.may_sign_in:
            return f"Sign in to see the log: you need {access}."
        return "This service shows no logs without sign-in: ask its operator."

    def _find_least(self, job: Job) -> Role:
        """The lowest role that lets somebody start jobs in a job's repository. It is needed to read the job's log."""
        return Right.START.find_role(self._find_rules(job.repository))

    async def find_scope(self, visitor: Visitor) -> VisibleJobs:
        """The jobs that lists show to a visitor."""
        if visitor.is_operator:
            return VisibleJobs(everything=True)
        login = visitor.login
        if login is None:
            return VisibleJobs(public=self._public)
        every = list(self._context.repositories.values())
        roles = await asyncio.gather(*(self.find_role(login, rules.name) for rules in every))
        found = list(zip(every, roles, strict=True))
        private = await asyncio.gather(*(self._reads_private(login, role, rules.name) for rules, role in found))
        return VisibleJobs(
            public=self._public,
            read=frozenset(rules.name.lower() for rules, role in found if role >= Role.READ),
            start=frozenset(rules.name.lower() for rules, role in found if role >= rules.who_may_start),
            private=frozenset(rules.name.lower() for rules, reads in zip(every, private, strict=True) if reads),
        )

    def find_refresh_s(self, visitor: Visitor) -> int:
        """The seconds between two refreshes of a visitor's open list. They can be more if each refresh asks GitHub."""
        return REFRESH_S if visitor.login is None or visitor.is_operator else self._refresh_s

    def explain_not_asked(self, visitor: Visitor) -> str:
        """Why a visitor may not see everything that they have access to, in sentences. Empty if they may.

        Every page shows this text, even the page for a job that does not exist. So it says nothing about any job.
        """
        if visitor.login is None or visitor.is_operator:
            return ""
        return NOT_ASKED if self._budget.is_spent(visitor.login) else ""

    def may_send_form(self, login: str, repository: str) -> bool:
        """Whether the service may ask GitHub for the rights of somebody who sends a form.

        Forms of people who have a right are the service's own work, so only the person's own limit applies. Forms of
        other people also share the limit of pages, because a stranger can send any number of forms.
        """
        if (login.casefold(), repository.lower()) in self._allowed:
            return self._budget.take_of_person(login)
        return self._budget.take(login, repository.partition("/")[0])

    def note_allowed(self, login: str, repository: str) -> None:
        """Note that a person had the right to a form that they sent."""
        self._allowed[login.casefold(), repository.lower()] = True

    def has_known_role(self, login: str, repository: str) -> bool:
        """Whether a cached answer of GitHub says that somebody may read a repository, or had the right to a form."""
        question = (login.casefold(), repository.lower())
        return question in self._allowed or self._roles.get(question, Role.NONE) >= Role.READ

    async def find_role(self, login: str, repository: str) -> Role:
        """The role of somebody in a repository, according to a recent answer of GitHub.

        No role if GitHub does not answer, or if the budget does not allow the question.
        """
        question = (login.casefold(), repository.lower())
        for kept in (self._roles, self._strangers):
            if (known := kept.get(question)) is not None:
                return known
        if not self._questions.is_open(question) and not self._budget.take(login, repository.partition("/")[0]):
            return Role.NONE
        try:
            return await self._questions.join(question, lambda: self._ask(question, login, repository))
        except (GitHubError, GitHubUnavailable) as error:
            log.warning("dashboard.role_unknown", repository=repository, reason=str(error))
            return Role.NONE

    async def _ask(self, question: _Question, login: str, repository: str) -> Role:
        role = await self._context.github.fetch_role(repository, login)
        kept = self._strangers if role is Role.NONE else self._roles
        kept[question] = role
        return role

    def _find_rules(self, repository: str) -> RepositoryRules:
        # For a repository that is no longer in the configuration, the strictest rules apply.
        gone = RepositoryRules(repository, agent="", who_may_start=Role.ADMIN)
        return self._context.rules_for(repository) or gone
