"""Who sees what: asked of GitHub as for commands in threads, kept for moments, and closed where GitHub says nothing."""

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
"""How long a role is good for looking, in seconds: a right that is lost is lost soon. Before anything is done GitHub is
asked again."""

NONE_LASTS_S = 300.0
"""The same where somebody has no role: strangers would have GitHub asked about each repository all the time."""

HELD_RIGHT_LASTS_S = 86_400.0
"""For how long after a form that was allowed a person's forms count as the service's own work."""

KEPT = 10_000

NOT_ASKED = (
    "ptq-bot has asked GitHub very often in this hour, so it cannot ask about your access now. Until the hour is over, "
    "you may see only what is public."
)


_Question = tuple[str, str]
"""A login and a repository, in small letters."""


@dataclass(frozen=True, slots=True)
class VisibleJobs:
    """Which jobs a list may show."""

    everything: bool = False
    public: bool = False
    """Those of public repositories' issues."""
    read: frozenset[str] = frozenset()
    """Repositories whose issues' jobs are shown, in lower case."""
    start: frozenset[str] = frozenset()
    """Repositories of which those are shown too that belong to no issue."""
    private: frozenset[str] = frozenset()
    """Repositories whose private jobs are among the shown ones."""


class Visibility:
    """Answers what somebody may see."""

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
        # What was public may be shown late to its readers; what was private must not be shown late to everybody.
        self._known_private: TTLCache[str, bool] = TTLCache(KEPT, lasts_s)
        self._known_public: TTLCache[str, bool] = TTLCache(KEPT, none_lasts_s)
        self._repositories = SingleFlight[str, bool]()
        usual = CALLS_OF_PERSON + CALLS_PER_REPOSITORY * len(context.repositories)
        calls = usual if calls_of_person is None else calls_of_person
        self._budget = PageBudget(list_left, context.now, calls_of_person=calls)
        self._refresh_s = find_refresh_s(len(context.repositories), calls)

    def is_open(self, visitor: Visitor) -> bool:
        """Whether lists and machines are shown to them at all."""
        return self._public or visitor.login is not None

    async def sees_machines(self, visitor: Visitor) -> bool:
        """Whether they are shown machines, and what is wrong with them.

        Where lists are not public, people who cannot start jobs in any repository are not: GitHub lets everybody sign
        in, and everybody can read a public repository.
        """
        if self._public:
            return True
        scope = await self.find_scope(visitor)
        return scope.everything or bool(scope.start)

    async def sees(self, visitor: Visitor, job: Job) -> bool:
        """Whether they may look at a job of which they have the address."""
        if visitor.is_operator or (not job.private and (self._by_address or self._public)):
            return True
        return await self._may_read(visitor, job, Role.READ if job.thread is not None else self._find_least(job))

    async def reads_log(self, visitor: Visitor, job: Job) -> bool:
        """Whether somebody who sees a job may read what its preparation, its agent and its collection print."""
        if visitor.is_operator or self._context.opens_log(job):
            return True
        return await self._may_read(visitor, job, self._find_least(job))

    async def _may_read(self, visitor: Visitor, job: Job, least: Role) -> bool:
        """Whether somebody has this role. Everybody can read a repository that has become public, so its private jobs
        need more."""
        if visitor.login is None:
            return False
        role = await self.find_role(visitor.login, job.repository)
        return role >= least and (not job.private or await self._reads_private(visitor.login, role, job.repository))

    async def _reads_private(self, login: str, role: Role, repository: str) -> bool:
        """Whether a role lets somebody read the private jobs of a repository."""
        return role >= Role.WRITE or (role >= Role.READ and await self._is_private(login, repository))

    async def _is_private(self, login: str, repository: str) -> bool:
        """Whether a repository is private, as of moments ago; False where GitHub does not say, or is not asked."""
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
        """Why somebody who sees a job may not read its log, and what they can do, as a sentence."""
        access = f"{self._find_least(job).word} access to {job.repository}"
        if self.explain_not_asked(visitor):
            return NOT_ASKED
        if visitor.login:
            return f"You need {access} to see the log."
        if visitor.may_sign_in:
            return f"Sign in to see the log: you need {access}."
        return "This service shows no logs without sign-in: ask its operator."

    def _find_least(self, job: Job) -> Role:
        """The least that somebody has to be in a job's repository to start such a job there, and to read its log."""
        return Right.START.find_role(self._find_rules(job.repository))

    async def find_scope(self, visitor: Visitor) -> VisibleJobs:
        """What lists show them."""
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
        """How often an open list of theirs is refreshed, in seconds: rarely where GitHub is asked each time."""
        return REFRESH_S if visitor.login is None or visitor.is_operator else self._refresh_s

    def explain_not_asked(self, visitor: Visitor) -> str:
        """Why somebody may not see all that they have access to, as sentences; empty where they do.

        Every page has it, also one that does not exist: it says nothing about any job.
        """
        if visitor.login is None or visitor.is_operator:
            return ""
        return NOT_ASKED if self._budget.is_spent(visitor.login) else ""

    def may_send_form(self, login: str, repository: str) -> bool:
        """Whether GitHub is asked what somebody who sends a form may do.

        What people with a right do is the service's own work. Forms of others share the limit of pages: a stranger can
        send any number of them.
        """
        if (login.casefold(), repository.lower()) in self._allowed:
            return self._budget.take_of_person(login)
        return self._budget.take(login, repository.partition("/")[0])

    def note_allowed(self, login: str, repository: str) -> None:
        """A form of theirs was allowed."""
        self._allowed[login.casefold(), repository.lower()] = True

    def has_known_role(self, login: str, repository: str) -> bool:
        """Whether GitHub has said, not long ago, that somebody may read a repository."""
        question = (login.casefold(), repository.lower())
        return question in self._allowed or self._roles.get(question, Role.NONE) >= Role.READ

    async def find_role(self, login: str, repository: str) -> Role:
        """What somebody is in a repository, as of moments ago; nobody where GitHub does not say, or is not asked."""
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
        # One that is gone from the configuration is judged as strictly as can be.
        gone = RepositoryRules(repository, agent="", who_may_start=Role.ADMIN)
        return self._context.rules_for(repository) or gone
