"""The model of the bench: says `max_tokens` words, each an event, at the pace of a fast model. Started with a port."""

from __future__ import annotations

import asyncio
import json
import sys

from tests.bench.gateway.client import INTERVAL_S

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def render(kind: str, **fields: object) -> bytes:
    """An event, as a chunk."""
    event = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


START = render("message_start", message={"usage": {"input_tokens": 5000, "output_tokens": 1}})
WORD = render("content_block_delta", index=0, delta={"type": "text_delta", "text": " word"})
END = render("message_delta", delta={}, usage={"output_tokens": 100}) + b"0\r\n\r\n"


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Of the next request; empty when there is none."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        return b""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    while head := await read_head(reader):
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = json.loads(await reader.readexactly(int(lines[b"content-length"])))
        writer.write(HEAD + START)
        for _ in range(body["max_tokens"] - 1):
            await asyncio.sleep(INTERVAL_S)
            writer.write(WORD)
        writer.write(END)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
