"""aiohttp's side of a connection from a machine: what is said arrives whole, in order, and ends when it should."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from bot.gateway.transport import StreamTransport
from runner.transport.listening import LocalStream
from runner.transport.paced import BURST_S, PIECE_BYTES, SHARE, LoopShare

LARGE = bytes(range(256)) * 20_000


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    if request.path == "/echo":
        return web.Response(body=await request.read())
    if request.path == "/waits":
        await asyncio.sleep(60)
    return web.Response(body=LARGE)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Task[None]]]:
    """What an agent has of the connection, and the service's work on it."""
    ours, theirs = socket.socketpair()
    server = web.Server(answer, access_log=None, handler_cancellation=True)
    stream = LocalStream(*await asyncio.open_unix_connection(sock=ours))
    work = asyncio.create_task(StreamTransport(stream, server(), LoopShare()).run())
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    try:
        yield reader, writer, work
    finally:
        writer.close()
        await asyncio.wait_for(work, 10)
        await server.shutdown(5)


async def read_body(reader: asyncio.StreamReader, piece: int = 65_536) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    body = b""
    while len(body) < size:
        body += await reader.read(min(piece, size - len(body)))
    return body


async def test_a_large_answer_arrives_whole_at_whoever_reads_slowly_and_the_connection_stays() -> None:
    async with serving() as (reader, writer, work):
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.2)
            assert await read_body(reader, 10_000) == LARGE
        assert not work.done()


async def test_a_large_request_arrives_whole() -> None:
    async with serving() as (reader, writer, _):
        writer.write(f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {1_000_000}\r\n\r\n".encode())
        for _ in range(10):
            writer.write(LARGE[:100_000])
            await asyncio.sleep(0.01)
        assert await read_body(reader) == LARGE[:100_000] * 10


async def test_an_answer_that_is_the_last_arrives_whole_and_then_the_end() -> None:
    async with serving() as (reader, writer, work):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert await read_body(reader, 10_000) == LARGE
        assert await reader.read() == b""
        writer.close()
        await asyncio.wait_for(work, 10)


async def test_whoever_goes_away_ends_the_work_for_it() -> None:
    async with serving() as (_, writer, work):
        writer.write(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.transport.abort()
        await asyncio.wait_for(work, 10)


class Deaf:
    """A connection on which nothing comes any more, and nothing goes."""

    async def read(self) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def write(self, data: bytes) -> None:
        raise ConnectionResetError

    async def end(self) -> None:
        raise ConnectionResetError

    def abort(self) -> None:
        pass


class Talker(asyncio.Protocol):
    lost_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, StreamTransport)
        transport.write(b"anybody?")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_at = asyncio.get_running_loop().time()


async def test_a_connection_that_breaks_while_something_is_sent_is_over_at_once() -> None:
    talker = Talker()
    async with asyncio.timeout(3):  # Not as long as one that is still listened to is waited for.
        await StreamTransport(Deaf(), talker, LoopShare()).run()
    assert talker.lost_at


class Flood:
    """A stream on which 400 kB have arrived already, so that reading never waits."""

    def __init__(self) -> None:
        self.data = [b"x" * 100_000] * 4

    async def read(self) -> bytes:
        return self.data.pop() if self.data else b""

    async def write(self, data: bytes) -> None:
        pass

    async def end(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Worker(asyncio.Protocol):
    """Each byte costs 1 µs of work. Its clock is the sum of work and of rests."""

    worked_s = 0.0
    longest_s = 0.0
    """The most work without a pass of the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.in_pass_s = 0.0

    def read_clock(self) -> float:
        return self.loop.time() + self.worked_s

    def data_received(self, data: bytes) -> None:
        assert len(data) <= PIECE_BYTES
        if not self.in_pass_s:
            self.loop.call_soon(self.end_pass)
        self.worked_s += len(data) * 1e-6
        self.in_pass_s += len(data) * 1e-6
        self.longest_s = max(self.longest_s, self.in_pass_s)

    def end_pass(self) -> None:
        self.in_pass_s = 0.0


async def test_data_that_takes_long_to_read_holds_up_nothing_else_on_any_number_of_connections_of_a_job() -> None:
    worker = Worker()
    share = LoopShare(clock=worker.read_clock, work=lambda: worker.worked_s)
    began = worker.read_clock()
    async with asyncio.timeout(60):
        await asyncio.gather(*(StreamTransport(Flood(), worker, share).run() for _ in range(3)))
    assert worker.worked_s == pytest.approx(1.2)
    assert worker.longest_s < BURST_S / (1 - SHARE) + 2 * PIECE_BYTES * 1e-6
    assert worker.read_clock() - began > (worker.worked_s - BURST_S) / SHARE * 0.9
