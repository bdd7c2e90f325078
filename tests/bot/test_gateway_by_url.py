"""The gateway where machines come to the service's own address: what there is to each request is its token."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from bot.gateway.endpoints import MAX_CONNECTIONS
from bot.listener import HttpListener
from runner.model.job import Job, JobState
from runner.rows import job_rows
from tests.support.gateway import BODIES, open_floor, serving
from tests.support.jobs import NOON, make_job
from tests.support.model_endpoint import Hang, Say

OWN_URL = "https://ptq.example/gateway"


@pytest.fixture
def job() -> Job:
    return make_job()


async def test_by_a_url_the_token_says_whose_request_it_is(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well"), own_url=OWN_URL) as floor:
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


async def test_by_a_url_who_has_a_token_is_told_to_wait_while_its_run_goes_on_and_to_end_once_that_is_over(
    tmp_path: Path, job: Job
) -> None:
    running = make_job(state=JobState.RUNNING)
    async with open_floor(tmp_path, Say("Well"), own_url=OWN_URL) as floor:
        await floor.begin(running)
        await floor.gateway.close(job.id)
        access = floor.gateway.grant(job)
        assert access
        async with serving(floor.gateway.answer_by_url) as url, aiohttp.ClientSession() as session:
            asking = partial(session.post, f"{url}/gateway/v1/messages", headers={"x-api-key": access.token})
            async with asking() as answer:
                assert answer.status == 503, "its service was restarted, and will be there"
            async with floor.db.write() as connection:
                await job_rows.move_job(connection, running, JobState.LOST, NOON, "gone")
            async with asking() as answer:
                assert answer.status == 400
                assert "the run is over" in (await answer.json())["error"]["message"]
        assert floor.model.requests == []


async def test_by_a_url_what_is_under_way_at_the_end_of_a_job_is_broken_off_and_counted(
    tmp_path: Path, job: Job
) -> None:
    application = web.Application()
    async with open_floor(tmp_path, Hang(), own_url=OWN_URL) as floor:
        account, access = await floor.begin(job), floor.gateway.grant(job)
        application.router.add_post("/gateway/v1/messages", floor.gateway.answer_by_url)
        listener = HttpListener(application, 5.0)
        url = await listener.open("127.0.0.1", 0)
        assert access
        headers, body = (
            {"x-api-key": access.token},
            {**BODIES["/v1/messages"], "stream": True, "tools": [{"name": "x"}]},
        )
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/gateway/v1/messages", json=body, headers=headers) as answer,
        ):
            await answer.content.readany()
            await floor.gateway.close(job.id)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        await listener.close()
        assert account.open == {}
        assert (await floor.rows())[0][0] == "assumed"


async def test_who_has_no_token_takes_none_of_a_jobs_connections(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well"), own_url=OWN_URL) as floor:
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
