"""What every handler is given: the ports and the rules, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from handlers.addresses import find_page, find_page_root
from handlers.ports import GitHub
from handlers.rules import PRESETS, Preset, RepositoryRules
from runner.agents import AgentSpec
from runner.agents.skills import Skill
from runner.db.database import Database
from runner.model.caps import Caps, Scope
from runner.model.job import Job, JobRequest
from runner.model.machines import Machine, eligible


@dataclass(frozen=True, slots=True)
class Context:
    """The composition root makes one; handlers reach the world through it and through nothing else."""

    github: GitHub
    db: Database
    repositories: Mapping[str, RepositoryRules]
    """By full name in lower case: GitHub's names do not tell cases apart."""
    agents: Mapping[str, AgentSpec]
    """By name."""
    public_url: str
    secrets: Collection[str] = field(repr=False)
    """Values that must never be posted."""
    now: Callable[[], datetime]
    ring: Callable[[], None]
    """Wakes the loops that carry out what a handler has written down."""
    skills: Sequence[Skill] = ()
    caps: Mapping[str, Mapping[Scope, Caps]] = field(default_factory=dict)
    """What may be taken, by the repository's full name in lower case."""
    presets: Mapping[str, Preset] = field(default_factory=lambda: PRESETS)
    """Ours and the operator's own, by name."""
    machines: Mapping[str, Machine] = field(default_factory=dict)
    """By name."""
    signs_in: bool = False
    """Whether people can sign in to the pages, where a job's holder then reads the way in."""

    public_logs: bool = False
    """Whether everyone who sees a job of a public repository may read its log."""

    def opens_log(self, job: Job) -> bool:
        """Whether everyone who sees a job may read its log. If not, only people who can start jobs there may."""
        return self.public_logs and not job.private

    def rules_for(self, repository: str) -> RepositoryRules | None:
        """The configuration of a repository, or None when the operator named none."""
        return self.repositories.get(repository.lower())

    def caps_for(self, repository: str) -> Mapping[Scope, Caps]:
        """What may be taken in a repository."""
        return self.caps.get(repository.lower(), {})

    def machines_for(self, rules: RepositoryRules, *, private: bool) -> list[str]:
        """The names of the machines that jobs of a repository may run on."""
        return [machine.name for machine in eligible(self.machines.values(), rules.requires, private=private)]

    def find_page_root(self, job: JobRequest) -> str:
        """Below which address a job has its page; empty where it has none."""
        return find_page_root(job, self.public_url, signs_in=self.signs_in)

    def find_page(self, job: Job) -> str | None:
        """The address of a job's page, if it has one."""
        return find_page(job, self.public_url, signs_in=self.signs_in)

    def model_of(self, job: Job) -> str | None:
        """The model that a job asks for: disclosed wherever its work is shown. None leaves it to the agent.

        Where a person works by hand there is none.
        """
        if job.by_hand:
            return None
        spec = self.agents.get(job.agent)
        return job.model or (spec.model if spec else None)

    def leaves_key(self, job: Job) -> bool:
        """Whether the job's agent has a key of its own on the machine, as far as it ever came there."""
        spec = self.agents.get(job.agent)
        return spec is not None and spec.key_on_machines and job.started_at is not None and not job.by_hand
