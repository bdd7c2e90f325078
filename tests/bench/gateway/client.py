"""The agent of the bench: asks the model directly and by the gateway, in turn, and writes down how long it waited.

Started with the model's address. It stands alone, for it runs on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

FIRST_BYTES = 1000
"""Requests one after the other, each way."""
STREAMS = 100
EVENTS, INTERVAL_S = 60, 0.05
ROUNDS = 3
WORDS = "The tests fail in the same place again. " * 500
"""20 KB of a conversation: what an agent sends grows to some hundred."""


class Way:
    """One way to the model, over connections that stay open, as agents' libraries keep them."""

    def __init__(self, url: str, token: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.host, self.port, self.token = host, int(port), token
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, events: int) -> tuple[float, float, float]:
        """When it was asked, and when the first and the last byte of the answer's body came: `time.perf_counter`."""
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection(self.host, self.port)
        body = {"model": "m", "max_tokens": events, "stream": True, "messages": [{"role": "user", "content": WORDS}]}
        sent = json.dumps(body).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {self.token}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
        began = time.perf_counter()
        writer.write(head.encode() + sent)
        status = await reader.readline()
        assert b" 200 " in status, status
        while await reader.readline() != b"\r\n":
            pass
        size = int(await reader.readline(), 16)
        first = time.perf_counter()
        while size:
            await reader.readexactly(size + 2)
            size = int(await reader.readline(), 16)
        await reader.readline()
        self.idle.append((reader, writer))
        return began, first, time.perf_counter()


Asked = tuple[float, float, float]


async def measure(direct: Way, gateway: Way, output: Path) -> dict[str, tuple[list[Asked], list[Asked]]]:
    """For each way: requests one at a time; and streams, 100 at a time."""
    ways = {"direct": direct, "gateway": gateway}
    found: dict[str, tuple[list[Asked], list[Asked]]] = {name: ([], []) for name in ways}
    for way in ways.values():
        await asyncio.gather(*(way.ask(1) for _ in range(STREAMS)))
    for _ in range(FIRST_BYTES):
        for name, way in ways.items():
            found[name][0].append(await way.ask(1))
    for number in range(ROUNDS):
        for name, way in ways.items():
            (output / f"{name}-{number}").touch()
            found[name][1].extend(await asyncio.gather(*(way.ask(EVENTS) for _ in range(STREAMS))))
    return found


async def main() -> None:
    """Measure, write it down, and stay until somebody has read it."""
    output = Path(os.environ["PTQ_OUTPUT_DIR"])
    gateway = Way(os.environ["PTQ_GATEWAY_URL"], os.environ["PTQ_GATEWAY_TOKEN"])
    found = await measure(Way(sys.argv[1], ""), gateway, output)
    (output / "found.part").write_text(json.dumps(found))
    (output / "found.part").rename(output / "found.json")
    (output / "report.md").write_text("Measured.\n")
    await asyncio.sleep(30)


if __name__ == "__main__":
    asyncio.run(main())
