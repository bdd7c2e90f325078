"""What it takes to read requests to models is bounded for each job, and is no matter of others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bot.gateway.proxy import MAX_REFUSALS, PENALTY_S, READING_THREADS
from bot.gateway.requests import LIGHT_BYTES, Asked, NotAllowed, RequestRule, read_request
from runner.model.job import Job
from tests.support.gateway import BODIES, Floor, open_floor
from tests.support.jobs import make_job
from tests.support.model_endpoint import Say

LONG = [{"role": "user", "content": "x" * LIGHT_BYTES}]


class Reader:
    """Reads requests slowly: none is done before `go`. The user named in a request says whose it is."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []
        self.at_once: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()

    def read(self, method: str, path: str, query: str, body: bytes, rule: RequestRule) -> Asked:
        user = json.loads(body)["metadata"]["user_id"]
        self.begun.append(user)
        self.at_once[user] += 1
        self.most_at_once |= self.at_once
        self.go.wait(30)
        self.at_once[user] -= 1
        return read_request(method, path, query, body, rule)

    async def wait_for(self, begun: list[str]) -> None:
        async with asyncio.timeout(10):
            while self.begun != begun:
                await asyncio.sleep(0.001)


async def ask(floor: Floor, job: Job, **changes: Any) -> int:
    async with floor.ask(job, "/v1/messages", metadata={"user_id": job.id}, **changes) as answer:
        await answer.read()
        return answer.status


async def test_one_long_request_of_a_job_is_read_at_a_time_and_others_do_not_wait_for_it(tmp_path: Path) -> None:
    reader, mine, other = Reader(), make_job(), make_job(id="aaaaaaaaaa", thread=8)
    async with open_floor(tmp_path, *[Say("Well")] * 6, read=reader.read) as floor:
        await floor.begin(mine)
        await floor.begin(other)
        many = [asyncio.create_task(ask(floor, mine, messages=LONG)) for _ in range(5)]
        await reader.wait_for([mine.id])
        one = asyncio.create_task(ask(floor, other, messages=LONG))
        await reader.wait_for([mine.id, other.id])
        # Whoever has no part in it has a thread all the same.
        await asyncio.wait_for(asyncio.to_thread(reader.go.is_set), 10)
        reader.go.set()
        assert {await one, *await asyncio.gather(*many)} == {200}
    assert reader.most_at_once == {mine.id: 1, other.id: 1}


async def test_who_hangs_up_while_its_request_is_read_does_not_have_another_one_read_beside_it(tmp_path: Path) -> None:
    reader, job, other = Reader(), make_job(), make_job(id="aaaaaaaaaa", thread=8)
    async with open_floor(tmp_path, Say("Well"), Say("Well"), read=reader.read) as floor:
        await floor.begin(job)
        await floor.begin(other)
        for _ in range(2 * READING_THREADS):
            gone = asyncio.create_task(ask(floor, job, messages=LONG))
            while not reader.begun:
                await asyncio.sleep(0.001)
            gone.cancel()
            await asyncio.wait([gone])
        stays = asyncio.create_task(ask(floor, job, messages=LONG))
        theirs = asyncio.create_task(ask(floor, other, messages=LONG))
        await reader.wait_for([job.id, other.id])
        reader.go.set()
        assert (await stays, await theirs) == (200, 200)
    assert reader.most_at_once == {job.id: 1, other.id: 1}


async def test_of_many_short_requests_one_is_read_in_a_turn_of_the_event_loop(tmp_path: Path) -> None:
    job, loop, turns, read_in = make_job(), asyncio.get_running_loop(), [0], list[int]()

    def count() -> None:
        turns[0] += 1
        loop.call_soon(count)

    def read(method: str, path: str, query: str, body: bytes, rule: RequestRule) -> Asked:
        read_in.append(turns[0])
        raise NotAllowed("not this one")

    async with open_floor(tmp_path, read=read) as floor:
        await floor.begin(job)
        access, body = floor.gateway.grant(job), json.dumps(BODIES["/v1/messages"]).encode()
        assert access
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {access.token}\r\n"
        ways = [await asyncio.open_unix_connection(floor.wire.paths[job.id]) for _ in range(30)]
        for _, writer in ways:
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:-1])
        await asyncio.sleep(0.1)
        count()
        for _, writer in ways:
            writer.write(body[-1:])
        for answer, _ in ways:
            assert b" 400 " in await answer.readline()
        for _, writer in ways:
            writer.close()
    assert len(set(read_in)) == len(read_in) == len(ways)


async def test_who_asks_on_and_on_waits_before_its_request_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, loop, read_at = make_job(), asyncio.get_running_loop(), list[float]()

    def read(method: str, path: str, query: str, body: bytes, rule: RequestRule) -> Asked:
        read_at.append(loop.time())
        raise NotAllowed("not this one")

    async with open_floor(tmp_path, read=read) as floor:
        await floor.begin(job)
        for _ in range(MAX_REFUSALS):
            assert await ask(floor, job) == 400
        began = loop.time()
        assert await ask(floor, job) == 400
    assert read_at[-1] - began > PENALTY_S / 2
    assert "".join(capsys.readouterr()).count("gateway.refused") == MAX_REFUSALS
