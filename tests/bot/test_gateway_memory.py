"""What one job sends takes a bounded part of the service's memory, and leaves room for its neighbours."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bot.gateway.endpoints import MAX_FIELD, MAX_HEADERS
from bot.gateway.requests import MAX_PARTS, NotAllowed, RequestRule, read_request
from bot.gateway.room import ALWAYS, MemoryFull, Room
from bot.gateway.usage import AnswerReader
from runner.model.job import Job
from tests.support.gateway import BODIES, Floor, open_floor, serving
from tests.support.jobs import make_job
from tests.support.model_endpoint import Hang, Say

MIB = 1024 * 1024
PIECE = b"x" * (256 * 1024)
JOB, NEIGHBOUR = make_job(), make_job(id="aaaaaaaaaa", thread=8)


def make_head(floor: Floor, job: Job, more: str) -> bytes:
    access = floor.gateway.grant(job)
    assert access
    return f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {access.token}\r\n{more}\r\n\r\n".encode()


def measure_memory() -> int:
    """Bytes of this process."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


async def send_slowly(floor: Floor, size: int, *, chunked: bool = False) -> None:
    """Send a request of so many bytes, but the last one."""
    _, writer = await asyncio.open_unix_connection(floor.wire.paths[JOB.id])
    try:
        head = make_head(floor, JOB, "transfer-encoding: chunked" if chunked else f"content-length: {size}")
        writer.write(head + b'%x\r\n{"model":"' % size if chunked else head + b'{"model":"')
        for _ in range(size // len(PIECE) - 1):
            writer.write(PIECE)
            await writer.drain()
            await asyncio.sleep(0.001)
        await asyncio.sleep(60)
    finally:
        writer.close()


@asynccontextmanager
async def sending(floor: Floor, **how: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(send_slowly(floor, 31 * MIB, **how)) for _ in range(16)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
async def test_many_large_requests_of_one_job_take_a_bounded_part_of_the_memory_and_a_neighbours_request_passes(
    tmp_path: Path, chunked: bool
) -> None:
    room = Room()
    async with open_floor(tmp_path, *[Say("Well")] * 9, room=room) as floor:
        await floor.begin(JOB)
        await floor.begin(NEIGHBOUR)
        gc.collect()
        before, most = measure_memory(), 0
        async with sending(floor, chunked=chunked):
            for _ in range(8):
                await asyncio.sleep(0.25)
                most = max(most, measure_memory())
                words = [{"role": "user", "content": "x" * 200_000}]
                async with floor.ask(NEIGHBOUR, "/v1/messages", messages=words) as answer:
                    assert answer.status == 200
                    await answer.read()
            assert 30 * MIB < room.held < 64 * MIB, "one of them has arrived by then"
        assert most - before < 128 * MIB


@pytest.mark.slow
async def test_large_requests_that_wait_for_their_answers_are_bounded_too(tmp_path: Path) -> None:
    room, go = Room(wait_s=0.2), asyncio.Event()

    async def answer_late(_: web.Request) -> web.Response:
        await go.wait()
        return web.json_response({"usage": {"input_tokens": 1, "output_tokens": 1}})

    async with serving(answer_late) as url, open_floor(tmp_path, url=url, room=room) as floor:
        await floor.begin(JOB)
        asking = [asyncio.create_task(ask_large(floor, "x" * 20 * MIB)) for _ in range(5)]
        async with asyncio.timeout(60):
            while sum(task.done() for task in asking) < 2:
                await asyncio.sleep(0.01)
                assert room.held < 64 * MIB
        go.set()
        assert sorted(await asyncio.gather(*asking)) == [200, 200, 200, 503, 503]
    assert room.held == 0


async def test_large_requests_of_one_job_do_not_block_each_other(tmp_path: Path) -> None:
    size = 6 * MIB
    async with open_floor(tmp_path, *[Say("Well")] * 2, room=Room(20 * MIB, wait_s=2.0)) as floor:
        await floor.begin(JOB)
        body = json.dumps(BODIES["/v1/messages"] | {"system": "x" * size}).encode()
        reader, writer = await asyncio.open_unix_connection(floor.wire.paths[JOB.id])
        writer.write(make_head(floor, JOB, f"content-length: {len(body)}") + body[: 5 * MIB])
        await writer.drain()
        asking = asyncio.create_task(ask_large(floor, "x" * size))
        await asyncio.sleep(0.5)
        writer.write(body[5 * MIB :])
        assert b" 200 " in await reader.readline()
        writer.close()
        assert await asking == 200


async def ask_large(floor: Floor, text: str) -> int:
    async with floor.ask(JOB, "/v1/messages", system=text) as answer:
        return answer.status


async def test_a_request_without_room_is_refused_for_now_in_the_models_own_words(tmp_path: Path) -> None:
    async with open_floor(tmp_path, Say("Well"), room=Room(4 * ALWAYS, wait_s=0.05)) as floor:
        await floor.begin(JOB)
        words = [{"role": "user", "content": "x" * 3 * ALWAYS}]
        async with floor.ask(JOB, "/v1/messages", messages=words) as answer:
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert (await answer.json())["error"]["type"] == "overloaded_error"
        async with floor.ask(JOB, "/v1/messages") as answer:
            assert answer.status == 200


async def test_what_was_sent_counts_until_the_answer_begins(tmp_path: Path) -> None:
    room = Room()
    async with open_floor(tmp_path, Say("Well"), Hang(), room=room) as floor:
        await floor.begin(JOB)
        words = [{"role": "user", "content": "x" * MIB}]
        held: list[int] = []
        floor.model.on_request = lambda _: held.append(room.held)
        async with floor.ask(JOB, "/v1/messages", messages=words, tools=[{"name": "x"}]) as answer:
            assert answer.status == 200
            assert held[0] > MIB
            await answer.content.readany()
            assert room.held < ALWAYS
        assert room.held == 0


async def test_a_job_may_hold_as_much_as_it_leaves_to_others() -> None:
    room = Room(16 * MIB, wait_s=0.01)
    with room.hold("one") as first, room.hold("one") as second, room.hold("two") as third:
        assert first.resize(8 * MIB)
        assert not second.resize(MIB)
        assert second.resize(ALWAYS), "so much has room always"
        with pytest.raises(MemoryFull):
            await second.grow(MIB)
        assert third.resize(3 * MIB)
        first.drop()
        await second.grow(MIB)
    assert room.held == 0


async def test_a_request_that_waits_for_room_goes_on_once_another_gives_it_back() -> None:
    room = Room(16 * MIB)
    with room.hold("one") as first, room.hold("one") as second:
        assert first.resize(8 * MIB)
        waiting = asyncio.create_task(second.grow(8 * MIB))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        first.drop()
        await waiting


async def test_a_line_of_an_answer_for_which_there_is_no_room_is_not_read(tmp_path: Path) -> None:
    reader = AnswerReader(streams=True)
    reader.feed(b'data: {"usage": {"input_tokens": 7}, "text": "' + PIECE)
    assert reader.unread > len(PIECE)
    reader.skip()
    assert reader.unread < 10
    reader.feed(b'"}\ndata: {"usage": {"input_tokens": 4, "output_tokens": 1}}\n')
    assert (reader.count.input_tokens, reader.is_final) == (4, True)


SMALL_PARTS = {"model": "m", "max_tokens": 5, "messages": [], "metadata": [{"a": 1}] * (MAX_PARTS // 3)}
TEXTS = {
    "of plain letters": ("x" * 8 * MIB, 4),
    "with one wide letter": ("x" * 8 * MIB + "😀", 10),
    "of wide letters": ("😀" * 2 * MIB, 10),
    "of escapes": ("\x01" * MIB, 4),
    "of quotes and commas": ('[",' * 2 * MIB, 10),
}
"""What a request may consist of, and how many times its size reading it takes at most."""


def measure_reading(body: bytes) -> int:
    """The most bytes that reading a request takes beside its body."""
    tracemalloc.start()
    try:
        with suppress(NotAllowed):
            read_request("POST", "/v1/messages", "", body, RequestRule())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("text", "times"), TEXTS.values(), ids=TEXTS)
def test_reading_a_request_takes_at_most_ten_times_its_size(text: str, times: int) -> None:
    body = json.dumps(BODIES["/v1/messages"] | {"system": text}, ensure_ascii=False).encode()
    assert measure_reading(body) < times * len(body)


def test_reading_a_request_of_many_parts_takes_a_bounded_amount() -> None:
    assert measure_reading(json.dumps(SMALL_PARTS).encode()) < 64 * MIB


async def test_a_connection_that_sends_requests_ahead_is_ended(tmp_path: Path) -> None:
    async with open_floor(tmp_path, Hang()) as floor:
        await floor.begin(JOB)
        reader, writer = await asyncio.open_unix_connection(floor.wire.paths[JOB.id])
        body = json.dumps(BODIES["/v1/messages"] | {"stream": True, "tools": [{"name": "x"}]}).encode()
        writer.write(make_head(floor, JOB, f"content-length: {len(body)}") + body)
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(4):
                writer.write(make_head(floor, JOB, "content-length: 0"))
                await writer.drain()
            async with asyncio.timeout(10):
                while await reader.read(MIB):
                    pass
        writer.close()
        async with asyncio.timeout(10):
            while floor.gateway._endpoints[JOB.id].answering:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("more", ["a: " + "x" * (MAX_FIELD + 100), "\r\n".join(f"a{n}: b" for n in range(MAX_HEADERS))])
async def test_a_request_with_more_headers_than_agents_send_is_refused(tmp_path: Path, more: str) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(JOB)
        reader, writer = await asyncio.open_unix_connection(floor.wire.paths[JOB.id])
        writer.write(make_head(floor, JOB, more))
        said = await reader.read()
        assert said.startswith(b"HTTP/1.0 400 ")
        assert b"ptq-bot" not in said, "it came no further than its head"
        writer.close()
