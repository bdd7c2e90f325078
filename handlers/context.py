"""What every handler is given: the ports and the rules, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from handlers.ports import GitHub
from handlers.rules import RepositoryRules
from runner.db import Database


@dataclass(frozen=True, slots=True)
class Context:
    """The composition root makes one; handlers reach the world through it and through nothing else."""

    github: GitHub
    db: Database
    repositories: Mapping[str, RepositoryRules]
    """By full name in lower case: GitHub's names do not tell cases apart."""
    models: Mapping[str, str | None]
    """The model of each agent, by the agent's name: disclosed wherever its work is shown."""
    public_url: str
    secrets: Collection[str] = field(repr=False)
    """Values that must never be posted."""
    now: Callable[[], datetime]
    ring: Callable[[], None]
    """Wakes the loops that carry out what a handler has written down."""

    def rules_for(self, repository: str) -> RepositoryRules | None:
        """The configuration of a repository, or None when the operator named none."""
        return self.repositories.get(repository.lower())
