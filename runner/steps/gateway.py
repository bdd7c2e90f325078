"""The interface of the gateway for the runner: a job's account, and the connection from its machine.

The gateway itself is in `bot.gateway`. Each step of a job opens the job's account again. So after a restart, or on
another replica, the usage so far is read again, and the connection from the machine is opened again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from runner.agents import Launch
from runner.model.caps import Caps, Scope
from runner.model.job import Job
from runner.rows.calls import Account, StoredUsage
from runner.transport.jobd_client import JobdClient


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """How an agent reaches models through the gateway."""

    token: str
    url: str
    """The address of the gateway. Empty if a relay on the machine forwards to the gateway."""

    def fill_in(self, launch: Launch) -> Launch:
        """Fill the gateway's address into a launch. If a relay is used, only the machine knows the address."""
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
    """What fetches a repository: a job, or the refresh of a base. A refresh has an id, but no row."""

    id: str
    repository: str
    private: bool
    clone_url: str

    @classmethod
    def of(cls, job: Job) -> Fetcher:
        """The fetcher for a job."""
        return cls(job.id, job.repository, job.private, job.clone_url)


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """How programs on a machine reach private repositories or hosts of packages through the gateway."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables that point programs to the gateway. Empty if the programs do not need it.

    If a relay is used, the machine fills in the relay's address.
    """
    by_relay: bool = False


class Gateway(Protocol):
    """Passes requests of machines on to models, GitHub and package hosts. Does nothing for jobs that do not need it."""

    def grant(self, job: Job) -> ModelAccess | None:
        """How the job's agent reaches models. None if the agent does not use the gateway."""

    def list_accounts(self) -> Collection[str]:
        """The ids of the jobs that have an account."""

    async def open(self, job: Job, caps: Mapping[Scope, Caps], stored: StoredUsage) -> Account | None:
        """Open the job's account, or update it with the current values. None if the agent does not use the gateway."""

    def cut_off(self, job_id: str) -> None:
        """Refuse the job's requests from now on, and break off those in progress. Does not wait. Idempotent.

        A later `open` does not undo this, because its caller may have read the job before the job was cancelled.
        """

    async def connect(self, job_id: str, client: JobdClient) -> None:
        """Open the connection from the job's machine, unless it is open. Raises `HostError` and `JobdError`."""

    async def open_git_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        """Open the route by which a machine fetches private repositories, and return it.

        The route is empty if it is not needed. Raises `HostError` and `JobdError`.
        """

    async def open_package_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        """Open the route by which a sealed agent reaches hosts of packages. Otherwise like `open_git_route`."""

    async def close(self, job_id: str) -> None:
        """Stop answering the job. Requests in progress are broken off, and counted. Idempotent.

        The account still counts towards the caps of other jobs until `forget`, because the job's meter is stored later.
        """

    def forget(self, job_id: str) -> None:
        """Drop the account of a job that this replica no longer follows. Its meter is stored by now. Idempotent."""
