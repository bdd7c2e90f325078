"""A service whose agents have keys of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runner.model.caps import Caps, Scope
from runner.model.job import Job
from runner.rows.calls import Account, StoredUsage
from runner.steps.gateway import Fetcher, GatewayRoute, ModelAccess
from runner.transport.jobd_client import JobdClient


class NoGateway:
    def grant(self, job: Job) -> ModelAccess | None:
        return None

    def list_accounts(self) -> Collection[str]:
        return ()

    async def open(self, job: Job, caps: Mapping[Scope, Caps], stored: StoredUsage) -> Account | None:
        return None

    def cut_off(self, job_id: str) -> None:
        pass

    async def connect(self, job_id: str, client: JobdClient) -> None:
        raise AssertionError("nobody asks for it")

    async def open_git_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        return GatewayRoute()

    async def open_package_route(self, fetcher: Fetcher, client: JobdClient) -> GatewayRoute:
        return GatewayRoute()

    async def close(self, job_id: str) -> None:
        pass

    def forget(self, job_id: str) -> None:
        pass
