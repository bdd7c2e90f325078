"""The dependencies of all handlers: ports and rules, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cachetools import TTLCache

from handlers.addresses import find_page, find_page_root
from handlers.ports import GitHub
from handlers.rules import PRESETS, Preset, RepositoryRules
from runner.agents import AgentSpec
from runner.agents.skills import Skill
from runner.db.database import Database
from runner.model.job import Job, JobRequest
from runner.model.machines import Machine, eligible

KEPT_STRANGERS, STRANGER_S = 10_000, 3600.0
"""How many refused people are in memory, and for how many seconds after their last question to GitHub."""


@dataclass(frozen=True, slots=True)
class Context:
    """Created by the composition root. Handlers have no other access to the outside."""

    github: GitHub
    db: Database
    repositories: Mapping[str, RepositoryRules]
    """Full name in lower case -> rules. GitHub's names ignore case."""
    agents: Mapping[str, AgentSpec]
    """By name."""
    public_url: str
    secrets: Collection[str] = field(repr=False)
    """Values that must never be posted."""
    now: Callable[[], datetime]
    notify: Callable[[], None]
    """Wakes the loops that carry out what a handler has stored."""
    skills: Sequence[Skill] = ()
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)
    """Name -> preset, including the operator's own."""
    machines: Mapping[str, Machine] = field(default_factory=dict)
    """By name."""
    signs_in: bool = False
    """Whether people can sign in to the pages, which then show the SSH command to a hold's person."""

    public_logs: bool = False
    """Whether everybody who can see a job of a public repository may read its log."""

    public_pages: bool = True
    """Whether people see jobs of public repositories without sign-in."""

    strangers: MutableMapping[tuple[str, str], tuple[int, datetime]] = field(
        default_factory=lambda: TTLCache(KEPT_STRANGERS, STRANGER_S)
    )
    """Login and repository, in lower case -> how often GitHub said that they have no right there, and the time until
    which it is not asked again (`handlers.commands.permissions`)."""

    def opens_page(self, job: Job) -> bool:
        """Whether everybody who has the address of a job's page can open it."""
        return not job.private and (self.public_pages or not self.signs_in)

    def opens_log(self, job: Job) -> bool:
        """Whether everybody who can see a job may read its log. If not, only people who can start jobs there may."""
        return self.public_logs and not job.private and not job.confidential

    def rules_for(self, repository: str) -> RepositoryRules | None:
        """The rules of a repository, or None if it is not configured."""
        return self.repositories.get(repository.lower())

    def machines_for(self, rules: RepositoryRules, *, private: bool) -> list[str]:
        """The names of the machines for jobs of a repository."""
        return [machine.name for machine in eligible(self.machines.values(), rules.requires, private=private)]

    def find_page_root(self, job: JobRequest) -> str:
        """The root of the address of the job's page; empty if it has none."""
        return find_page_root(job, self.public_url, signs_in=self.signs_in)

    def find_page(self, job: Job) -> str | None:
        """The address of a job's page, if it has one."""
        return find_page(job, self.public_url, signs_in=self.signs_in)

    def model_of(self, job: Job) -> str | None:
        """The model that a job requests, which is named wherever its result is shown. None: the agent chooses, or a
        person works.
        """
        if job.by_hand:
            return None
        spec = self.agents.get(job.agent)
        return job.model or (spec.model if spec else None)

    def caps_unpriced(self, job: Job) -> bool:
        """Whether turns and time are capped where the cost of the repository's runs is unknown."""
        rules = self.rules_for(job.repository)
        return rules is not None and any(caps.unpriced_turns or caps.unpriced_run_s for caps in rules.caps.values())

    def leaves_key(self, job: Job) -> bool:
        """Whether the job's agent has left its own key on the machine."""
        spec = self.agents.get(job.agent)
        return spec is not None and spec.key_on_machines and job.started_at is not None and not job.by_hand
