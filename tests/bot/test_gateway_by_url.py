"""The gateway by its own address, where no relay leads to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from bot.gateway.doors import MAX_CONNECTIONS
from runner.job import Job
from tests.support.gateway import BODIES, open_floor, serving
from tests.support.jobs import make_job
from tests.support.model_endpoint import Say


@pytest.fixture
def job() -> Job:
    return make_job()


async def test_by_a_url_the_token_says_whose_request_it_is(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well"), own_url="https://ptq.example/gateway") as floor:
        await floor.begin(job)
        assert floor.wire.paths == {}, "nobody listens on the machine"
        async with serving(floor.gateway.answer_by_url) as url, aiohttp.ClientSession() as session:
            access = floor.gateway.grant(job)
            assert access
            other = access.token[:-1] + ("1" if access.token.endswith("0") else "0")
            for token, status in ((access.token, 200), (other, 401), (f"{access.token}0", 401), ("", 401)):
                headers = {"x-api-key": token}
                body = {**BODIES["/v1/messages"], "stream": True}
                async with session.post(f"{url}/gateway/v1/messages", json=body, headers=headers) as answer:
                    assert answer.status == status
                    await answer.read()
        await floor.gateway.close(job.id)
        assert [row[0] for row in await floor.rows()] == ["settled"]


async def test_who_has_no_token_takes_none_of_a_jobs_connections(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well"), own_url="https://ptq.example/gateway") as floor:
        await floor.begin(job)
        async with serving(floor.gateway.answer_by_url) as url, aiohttp.ClientSession() as session:
            access = floor.gateway.grant(job)
            assert access
            asks = f"POST /gateway/v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: ptq-{job.id}-{'0' * 40}\r\n"
            strangers = []
            for _ in range(MAX_CONNECTIONS):
                reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
                writer.write(f"{asks}content-length: 30000000\r\n\r\n".encode())
                assert b"401" in await reader.readline()
                strangers.append(writer)
            body, headers = {**BODIES["/v1/messages"], "stream": True}, {"x-api-key": access.token}
            async with session.post(f"{url}/gateway/v1/messages", json=body, headers=headers) as answer:
                assert answer.status == 200
                await answer.read()
            for writer in strangers:
                writer.close()
        await floor.gateway.close(job.id)
