"""The gateway as the runner sees it: a job's account with it, and the way there. The gateway itself is in `bot`.

Each step of a job opens its account again (the steps are level-triggered). After a restart, or on another replica,
what was counted so far is read again, and the way from the machine is opened again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from runner.agents import Launch
from runner.model.caps import Caps, Scope
from runner.model.job import Job
from runner.model.usage import Usage
from runner.rows.calls import Account
from runner.transport.jobd_client import JobdClient


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """How an agent asks models."""

    token: str
    url: str
    """Where the gateway is; empty where a relay on the machine leads there."""

    def fill_in(self, launch: Launch) -> Launch:
        """A launch that says where the gateway is, unless only the machine knows."""
        if not self.url:
            return launch
        return replace(
            launch,
            argv=tuple(self._fill_in(word) for word in launch.argv),
            env={name: self._fill_in(value) for name, value in launch.env.items()},
            settings={path: self._fill_in(text) for path, text in launch.settings.items()},
        )

    def _fill_in(self, text: str) -> str:
        return text.replace("{gateway}", self.url)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Who fetches a repository: a job, or the refresh of a base, which has an id and no row."""

    id: str
    repository: str
    private: bool
    clone_url: str

    @classmethod
    def of(cls, job: Job) -> Fetcher:
        """The job as one."""
        return cls(job.id, job.repository, job.private, job.clone_url)


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """How programs on a machine come to what only the service may: git to private repositories, others to hosts."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """With it they ask the gateway, where the relay's address is to be filled in; empty: they need no gateway."""
    by_relay: bool = False


class Gateway(Protocol):
    """What asks models and GitHub for machines. It does nothing where these have means of their own."""

    def grant(self, job: Job) -> ModelAccess | None:
        """How the job's agent asks; None when it has a key of its own."""

    def list_accounts(self) -> Collection[str]:
        """The jobs that have an account."""

    async def open(
        self, job: Job, caps: Mapping[Scope, Caps], others: Mapping[Scope, Usage], stored: Mapping[str, Usage]
    ) -> Account | None:
        """The job's account, with what may be taken from now on; None when it has none.

        `others` is what is written down of all that belongs together with the job, without the job. `stored` is what
        is written down of each job that had an account by then, out of the same reading of the database.
        """

    def cut_off(self, job_id: str) -> None:
        """Refuse the job's requests from now on, and break off what is under way. It waits for nothing. Idempotent.

        No later `open` undoes it, because its caller may have read the job before it was cancelled.
        """

    async def connect(self, job: Job, client: JobdClient) -> None:
        """Have the way from the job's machine be there, unless it is. Raises `HostError` and `JobdError`."""

    async def open_git_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        """Have the way be there by which a machine fetches a private repository. Raises `HostError` and `JobdError`."""

    async def open_package_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        """Have the way be there by which a sealed agent comes to hosts of packages. Raises as `open_git_route`."""

    async def close(self, job_id: str) -> None:
        """Answer the job no more; what was under way is broken off, and counted. Idempotent.

        Its account counts for others until `forget`, because the job's meter is written after this.
        """

    def forget(self, job_id: str) -> None:
        """Drop the account of a job that nobody looks after here any more: its meter is written. Idempotent."""
