"""A forward proxy, as companies have one: it alone knows where the hosts are, and it may want to know who asks."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from contextlib import suppress

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(one: Ends, other: Ends) -> None:
    """Carry bytes both ways until both ends are done."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    await asyncio.gather(carry(one[0], other[1]), carry(other[0], one[1]))


class ForwardProxy:
    """`async with ForwardProxy({"host": port})` connects to these hosts, and to no other.

    `asked` has each request's line, in order, and `credentials` what a client has to say; empty takes anybody.
    """

    def __init__(self, hosts: Mapping[str, int], credentials: str = "") -> None:
        self.hosts = hosts
        self.credentials = credentials
        self.asked: list[str] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ForwardProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._lead(reader, writer, (await reader.readuntil(b"\r\n\r\n")).decode())
        writer.close()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        line, _, headers = head.partition("\r\n")
        self.asked.append(line)
        given = re.search(r"^proxy-authorization: basic (\S+)\r$", headers, re.IGNORECASE | re.MULTILINE)
        if self.credentials and not (given and base64.b64decode(given[1]).decode() == self.credentials):
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        method, target, _ = line.split(" ")
        found = re.fullmatch(r"(?:http://)?([a-z0-9.-]+)(?::([0-9]+))?(/.*)?", target)
        port = self.hosts.get(found[1]) if found else None
        if found is None or port is None:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        there = await asyncio.open_connection("127.0.0.1", port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            # One request a connection, without what was for us alone.
            kept = re.sub(r"(?im)^(proxy-authorization|connection):[^\n]*\n", "", headers)
            there[1].write(f"{method} {found[3] or '/'} HTTP/1.1\r\nConnection: close\r\n{kept}".encode())
        await join((reader, writer), there)
