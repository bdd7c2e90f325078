"""Where requests come in, and how it closes."""

from __future__ import annotations

import asyncio
import gc
import io
import socket
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
import structlog
from aiohttp import web
from yarl import URL

from bot.listener import PIECE_BYTES, SETTLED_S, HttpListener, find_size
from tests.support.cpu_time import no_garbage_collection

PATIENCE_S = 20.0
STALL_S = 0.4
LARGE = 8_000_000


async def _hello(_: web.Request) -> web.Response:
    await asyncio.sleep(0.2)
    return web.Response(text="hello")


async def _read(request: web.Request) -> web.Response:
    return web.Response(text=f"{len(await request.read())} bytes")


def _make_listener(
    max_connections: int | None = None, head_s: float = 10.0, settled_s: float = SETTLED_S
) -> HttpListener:
    application = web.Application()
    application.router.add_get("/", _hello)
    application.router.add_post("/", _read)
    return HttpListener(application, grace_s=5.0, max_connections=max_connections, head_s=head_s, settled_s=settled_s)


def _make_large_listener(folder: Path, max_connections: int | None = None) -> HttpListener:
    """One whose answers are larger than what the sockets hold."""
    application, file = web.Application(), folder / "large"
    file.write_bytes(b"x" * LARGE)

    async def send_text(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * LARGE)

    async def send_file(_: web.Request) -> web.FileResponse:
        return web.FileResponse(file)

    application.router.add_get("/", _hello)
    application.router.add_get("/text", send_text)
    application.router.add_get("/file", send_file)
    return HttpListener(application, grace_s=5.0, max_connections=max_connections, stall_s=STALL_S)


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_it_closes_is_not_leaked(turns: int) -> None:
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    with socket.create_connection((url.host, url.port)):
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        gc.collect()


async def test_a_request_in_hand_is_answered_before_it_is_closed() -> None:
    listener = _make_listener()
    url = await listener.open("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.get(url))
        await asyncio.sleep(0.1)
        await listener.close()
        assert await (await asking).text() == "hello"
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_connection_whose_first_head_does_not_come_is_ended(sent: bytes) -> None:
    listener = _make_listener(head_s=0.1)
    url = URL(await listener.open("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(sent)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    await listener.close()


async def test_a_head_may_come_in_any_pieces() -> None:
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for byte in b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"hello")
    writer.close()
    await listener.close()


async def test_connections_beyond_the_limit_are_told_so_and_free_ones_are_taken_again() -> None:
    listener = _make_listener(max_connections=2, settled_s=PATIENCE_S)
    url = URL(await listener.open("127.0.0.1", 0))
    with structlog.testing.capture_logs() as logged:
        waiting = [await asyncio.open_connection(url.host, url.port) for _ in range(2)]
        for _ in range(2):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 5" in answer
            writer.close()
        assert [entry["event"] for entry in logged] == ["listener.full"]
    for _, writer in waiting:
        writer.close()
        await writer.wait_closed()
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        while (answered := await session.get(url)).status == 503:
            answered.release()
        assert await answered.text() == "hello"
    await listener.close()


async def _ask(url: URL) -> tuple[bytes, asyncio.StreamWriter]:
    """What a new connection that stays open is answered."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    return head, writer


async def test_a_connection_that_waits_for_its_next_request_gives_its_place_to_a_new_one() -> None:
    listener = _make_listener(max_connections=2)
    url = URL(await listener.open("127.0.0.1", 0))
    async with asyncio.timeout(PATIENCE_S):
        silent, silent_writer = await asyncio.open_connection(url.host, url.port)
        silent_writer.write(b"\r\n\r\n")  # Empty lines are no request.
        _, writer = await _ask(url)
        writers = [silent_writer, writer]
        for _ in range(3):
            while (asked := await _ask(url))[0].startswith(b"HTTP/1.1 503 "):
                asked[1].close()
            assert asked[0].startswith(b"HTTP/1.1 200 ")
            writers.append(asked[1])
        with suppress(ConnectionResetError):
            assert await silent.read() == b"", "the connection that was idle for the longest goes first"
    for writer in writers:
        writer.close()
    await listener.close()


@pytest.mark.parametrize(
    ("sent", "rest"),
    [
        (b"GET / HTTP/1.1\r\nHost: x", b"\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"12345678"),
    ],
)
async def test_the_connection_whose_request_arrives_the_slowest_gives_its_place_to_a_new_one(
    sent: bytes, rest: bytes
) -> None:
    listener = _make_listener(max_connections=3)
    url = URL(await listener.open("127.0.0.1", 0))
    async with asyncio.timeout(PATIENCE_S):
        slow = []
        for _ in range(3):
            slow.append(await asyncio.open_connection(url.host, url.port))
            slow[-1][1].write(sent)
            await asyncio.sleep(0.05)
        await asyncio.sleep(2 * SETTLED_S)
        head, writer = await _ask(url)
        assert head.startswith(b"HTTP/1.1 200 ")
        with suppress(ConnectionResetError):
            assert await slow[0][0].read() == b""
        slow[2][1].write(rest)
        assert (await slow[2][0].readline()).startswith(b"HTTP/1.1 200 "), "the others keep their places"
    for opened in (writer, *(one for _, one in slow)):
        opened.close()
    await listener.close()


async def test_a_request_that_has_arrived_keeps_its_connection_however_slowly_it_is_answered() -> None:
    listener = _make_listener(max_connections=1, settled_s=0.0)
    url = URL(await listener.open("127.0.0.1", 0))
    async with asyncio.timeout(PATIENCE_S):
        asking = asyncio.create_task(_ask(url))
        await asyncio.sleep(0.1)
        turned_away, writer = await _ask(url)
        assert turned_away.startswith(b"HTTP/1.1 503 ")
        writer.close()
        head, writer = await asking
        assert head.startswith(b"HTTP/1.1 200 ")
        writer.close()
    await listener.close()


def _open_small(url: URL) -> socket.socket:
    """A connection whose client takes little before it reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((url.host, url.port))
    connection.setblocking(False)
    return connection


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux ends such connections")
@pytest.mark.parametrize("path", ["/text", "/file"])
async def test_a_client_that_reads_nothing_loses_its_place(path: str, tmp_path: Path) -> None:
    listener = _make_large_listener(tmp_path, max_connections=1)
    url = URL(await listener.open("127.0.0.1", 0))
    with _open_small(url) as connection:
        connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 100)
        async with asyncio.timeout(PATIENCE_S):
            while (asked := await _ask(url))[0].startswith(b"HTTP/1.1 200 "):
                asked[1].close()  # Its requests are not in hand yet.
                await asked[1].wait_closed()
            while asked[0].startswith(b"HTTP/1.1 503 "):
                asked[1].close()
                asked = await _ask(url)
        assert asked[0].startswith(b"HTTP/1.1 200 ")
        asked[1].close()
    await listener.close()


@pytest.mark.parametrize("path", ["/text", "/file"])
async def test_a_client_that_reads_slowly_keeps_its_place(path: str, tmp_path: Path) -> None:
    listener = _make_large_listener(tmp_path)
    url = URL(await listener.open("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    with _open_small(url) as connection:
        connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        read, began_at = 0, loop.time()
        async with asyncio.timeout(PATIENCE_S):
            while piece := await loop.sock_recv(connection, LARGE // 10):
                read += len(piece)
                if loop.time() < began_at + 3 * STALL_S:
                    await asyncio.sleep(STALL_S / 10)
        assert read > LARGE
    await listener.close()


async def test_a_request_in_hand_keeps_its_connection_however_many_come() -> None:
    listener = _make_listener(max_connections=2)
    url = URL(await listener.open("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        asking = [asyncio.create_task(session.get(url)) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused = await session.get(url)
        assert refused.status == 503
        assert [await (await one).text() for one in asking] == ["hello", "hello"]
    await listener.close()


async def test_a_connection_that_sends_requests_ahead_is_ended() -> None:
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head * 2)
        for _ in range(2):
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(head)
        await asyncio.sleep(0.1)
        writer.write(head * 3)
        with suppress(ConnectionResetError):
            assert b"hello" not in await reader.read()
        writer.close()
    await listener.close()


async def test_it_says_its_address_as_it_is_written_in_a_url_and_closes_twice() -> None:
    listener = _make_listener()
    url = URL(await listener.open("::1", 0))
    assert url.host == "::1"
    await listener.close()
    await listener.close()


async def test_what_never_listened_can_be_closed_and_a_taken_address_is_an_error() -> None:
    await _make_listener().close()
    first, second = _make_listener(), _make_listener()
    port = URL(await first.open("127.0.0.1", 0)).port
    with pytest.raises(OSError, match="in use"):
        await second.open("127.0.0.1", port or 0)
    await first.close()
    await second.close()


CHUNKS = b"1\r\na\r\n" * 30_000
"""A body of 30,000 bytes in chunks of one byte."""

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


async def _send(url: URL, *parts: bytes) -> bytes:
    """All that a new connection is answered, until it ends."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    with suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
    answer = b""
    with suppress(ConnectionError):
        while more := await asyncio.wait_for(reader.read(65_536), PATIENCE_S):
            answer += more
    writer.close()
    return answer


@pytest.mark.parametrize("head", [b"POST / HTTP/1.1\r\nHost: x\r\n", b"GET /nothing HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 150000\r\n\r\n" + b"x" * 150_000,
    ],
)
async def test_a_body_in_chunks_is_refused(head: bytes, before: bytes) -> None:
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    answer = await _send(url, before + head + CHUNKED + b"1\r\na\r\n0\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == bool(before)
    assert answer.count(b"HTTP/1.1 411 ") == 1
    await listener.close()


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 150000\r\n\r\n" + b"x" * 150_000,
        b"GET /nothing HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
    ids=["alone", "behind a body that waits to be read", "behind an upgrade"],
)
async def test_the_chunks_of_a_refused_body_are_not_read(before: bytes) -> None:
    """They would take a hundred times as long as a body that has a length."""
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    head = before + b"POST /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"

    async def measure(more: bytes) -> float:
        began = time.process_time()
        for _ in range(10):
            await _send(url, head + more + CHUNKS)
        return time.process_time() - began

    with no_garbage_collection():
        for _ in range(5):
            plain = await measure(b"Content-Length: %d\r\n\r\n" % len(CHUNKS))
            if await measure(CHUNKED) < 3 * plain:
                break
        else:
            pytest.fail("the chunks are read")
    await listener.close()


async def test_a_large_body_arrives_whole_and_so_does_the_next_one() -> None:
    listener = _make_listener()
    url = await listener.open("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        for size in (LARGE // 10, 0, LARGE // 10):
            async with session.post(url, data=io.BytesIO(b"x" * size)) as answer:
                assert await answer.text() == f"{size} bytes"
    await listener.close()


@pytest.mark.parametrize(
    ("unparsed", "missing", "size"),
    [
        (b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 0, 18),
        (b"POST / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n{", 0, 41),
        (b"x" * 9001, 9000, 9000),
        (b"GET / HTTP/1.1\r\nX: y", 0, PIECE_BYTES),
        (b"x" * PIECE_BYTES + b"\r\n\r\n", 0, PIECE_BYTES),
        (b"\r\n" * 9000, 0, PIECE_BYTES),
        (b"\r\n" * 9000, 9000, 9000),
    ],
)
def test_aiohttp_gets_one_head_or_one_body_at_once(unparsed: bytes, missing: int, size: int) -> None:
    assert find_size(bytearray(unparsed), missing) == size


async def test_a_request_for_a_tunnel_is_answered_like_any_other_unknown_one() -> None:
    listener = _make_listener()
    url = URL(await listener.open("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 404 ")
    writer.close()
    await listener.close()
