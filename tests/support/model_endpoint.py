"""A scripted model on loopback: speaks Messages, Responses and Chat, and does what a test tells it.

Which step of the script comes next is counted from the tool results in the request, so that a client that retries, or
resumes its session, gets the same answer again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

TOKENS_IN, TOKENS_OUT = 1000, 100
"""What every answer claims to have taken."""

FOREVER = 10**9

Sse = tuple[str, dict[str, Any]]
"""A server-sent event: its name, empty where the protocol has none, and its data."""


@dataclass(frozen=True)
class Run:
    """The model asks for a shell command."""

    command: str


@dataclass(frozen=True)
class Say:
    """The model says this, and is done; what comes behind it is for a later run of the same session."""

    text: str
    times: int = FOREVER


@dataclass(frozen=True)
class Refuse:
    """The endpoint answers with an error, this many times."""

    status: int
    times: int = FOREVER


@dataclass(frozen=True)
class Hang:
    """The answer begins, and never ends, this many times."""

    times: int = FOREVER


@dataclass(frozen=True)
class Cut:
    """The answer begins, and the connection is cut, this many times, after this many events."""

    times: int = FOREVER
    after: int = 1


Step = Run | Say | Refuse | Hang | Cut


class ModelEndpoint:
    def __init__(self, *script: Step) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self.on_request: Callable[[int], None] = lambda number: None
        """Called before each answer, with the number of the request."""
        self._spent: dict[int, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ModelEndpoint]:
        application = web.Application(client_max_size=2**26)
        application.router.add_post("/v1/messages", self._messages)
        application.router.add_post("/v1/responses", self._responses)
        application.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        try:
            yield self
        finally:
            await runner.cleanup()

    def _choose(self, results: int) -> Step:
        """The step after this many tool results; one that is spent is passed over."""
        done = 0
        for index, step in enumerate(self.script):
            if isinstance(step, Say | Refuse | Hang | Cut) and self._spent.get(index, 0) >= step.times:
                continue
            if isinstance(step, Run) and done < results:
                done += 1
                continue
            self._spent[index] = self._spent.get(index, 0) + 1
            return step
        return Say("There is nothing more to do.")

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        contents = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
        results = sum(block["type"] == "tool_result" for blocks in contents for block in blocks)
        step = self._choose(results) if body.get("tools") else Say("A title")
        kind = "overloaded_error" if isinstance(step, Refuse) and step.status == 529 else "invalid_request_error"
        error = {"type": "error", "error": {"type": kind, "message": "scripted"}}
        if not body.get("stream") and not isinstance(step, Refuse | Hang | Cut):
            return web.json_response(whole_message(step, body["model"], results))
        return await _answer(request, step, messages_events(step, body["model"], results), error)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        results = sum(item.get("type", "").endswith("_call_output") for item in body["input"])
        step = self._choose(results)
        error = {"error": {"message": "scripted", "type": "server_error", "code": "scripted"}}
        tools = [tool.get("name") for tool in body.get("tools", [])]
        return await _answer(request, step, responses_events(step, tools, results), error)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        results = sum(message["role"] == "tool" for message in body["messages"])
        step = self._choose(results)
        error = {"error": {"message": "scripted", "type": "server_error"}}
        return await _answer(request, step, chat_events(step, body["model"], results), error)

    async def _read(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.requests.append(body)
        self.on_request(len(self.requests))
        return body


async def _answer(request: web.Request, step: Step, events: Iterator[Sse], error: dict[str, Any]) -> web.StreamResponse:
    if isinstance(step, Refuse):
        return web.json_response(error, status=step.status)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for count, (name, data) in enumerate(events, 1):
        line = f"event: {name}\n" if name else ""
        await response.write(f"{line}data: {json.dumps(data)}\n\n".encode())
        if isinstance(step, Hang):
            await asyncio.Event().wait()
        if isinstance(step, Cut) and count >= step.after:
            assert request.transport
            request.transport.abort()
            return response
    if not name:
        await response.write(b"data: [DONE]\n\n")
    return response


def whole_message(step: Step, model: str, number: int) -> dict[str, Any]:
    """The same without a stream: claude asks so when a stream was cut."""
    block: dict[str, Any] = {"type": "text", "text": step.text if isinstance(step, Say) else "Well"}
    if isinstance(step, Run):
        arguments = {"command": step.command, "description": "scripted"}
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": arguments}
    stop = {"stop_reason": "tool_use" if isinstance(step, Run) else "end_turn", "stop_sequence": None}
    usage = {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT}
    usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
    return {**head, "content": [block], **stop, "usage": usage}


def messages_events(step: Step, model: str, number: int) -> Iterator[Sse]:
    usage = {"input_tokens": TOKENS_IN, "output_tokens": 1}
    usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": []}
    message = {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": step.text if isinstance(step, Say) else "Well"}
    if isinstance(step, Run):
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {}}
        arguments = {"command": step.command, "description": "scripted"}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    stop = {"stop_reason": "tool_use" if isinstance(step, Run) else "end_turn", "stop_sequence": None}
    for kind, fields in (
        ("message_start", {"message": message}),
        ("content_block_start", {"index": 0, "content_block": block}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": stop, "usage": {"output_tokens": TOKENS_OUT}}),
        ("message_stop", {}),
    ):
        yield kind, {"type": kind, **fields}


def responses_events(step: Step, tools: Sequence[str], number: int) -> Iterator[Sse]:
    response = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
    text = step.text if isinstance(step, Say) else "Well"
    item: dict[str, Any] = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
    item["content"] = [{"type": "output_text", "text": text}]
    if isinstance(step, Run):
        name = next(tool for tool in tools if tool in ("exec_command", "shell_command"))
        arguments = json.dumps({"cmd" if name == "exec_command" else "command": step.command})
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
        item = {**call, "name": name, "arguments": arguments}
    usage: dict[str, Any] = {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": TOKENS_IN + TOKENS_OUT}
    usage |= {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT}
    whole = {**response, "status": "completed", "output": [item], "usage": usage}
    for kind, fields in (
        ("response.created", {"response": response}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": whole}),
    ):
        yield kind, {"type": kind, **fields}


def chat_events(step: Step, model: str, number: int) -> Iterator[Sse]:
    head = {"id": f"chat_{number}", "object": "chat.completion.chunk", "model": model, "created": 0}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Sse:
        return "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    if isinstance(step, Run):
        function = {"name": "bash", "arguments": json.dumps({"command": step.command})}
        yield chunk({"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]})
        yield chunk({}, "tool_calls")
    else:
        yield chunk({"content": step.text if isinstance(step, Say) else "Well"})
        yield chunk({}, "stop")
    usage = {"prompt_tokens": TOKENS_IN, "completion_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT}
    yield "", {**head, "choices": [], "usage": usage}
