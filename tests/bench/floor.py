"""The least that a server can do: read a request, answer 202. What the load gets out of it is the load's own limit."""

from __future__ import annotations

import asyncio
import sys

ANSWER = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"


class Floor(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.missing = transport, 0

    def data_received(self, data: bytes) -> None:
        if not self.missing:
            head, _, _ = data.partition(b"\r\n\r\n")
            _, _, rest = head.partition(b"Content-Length: ")
            self.missing = len(head) + 4 + int(rest.split(b"\r\n", 1)[0])
        self.missing -= len(data)
        if not self.missing:
            self.transport.write(ANSWER)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Floor, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
