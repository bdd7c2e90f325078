"""The rules for an agent's requests to models: parses a request, refuses or rewrites it, and bounds its tokens. Pure.

A request is refused if the vendor would do more than answer it: access the web, run code or MCP servers, read stored
data, or go on in the background. Of other requests, only known fields are passed on.
https://docs.anthropic.com/en/api/messages
https://platform.openai.com/docs/api-reference/responses/create · https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from bot.gateway.usage import Count, bound_tokens
from runner.agents.lines import part, parts, show
from runner.agents.prices import strip_edition
from runner.bounded_json import MAX_DIGITS, has_long_number, leave_out_texts

MAX_MODEL = 200
"""The most characters of a model's name."""


class Api(StrEnum):
    """The model APIs that the gateway supports."""

    MESSAGES = "messages"
    RESPONSES = "responses"
    CHAT = "chat"


PATHS: Mapping[str, Api] = {
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.MESSAGES,
    "/v1/responses": Api.RESPONSES,
    "/v1/chat/completions": Api.CHAT,
}
"""The paths that are passed on, each with its API."""

FREE = "/v1/messages/count_tokens"
"""The path of requests that only count tokens. They are free."""

QUERIES = ("", "beta=true")

PASSED: Mapping[Api, Collection[str]] = {
    Api.MESSAGES: (
        *("model", "messages", "system", "max_tokens", "metadata", "stop_sequences", "stream", "temperature"),
        *("thinking", "tool_choice", "tools", "top_k", "top_p", "service_tier", "output_config", "output_format"),
        *("cache_control", "context_management"),
    ),
    Api.RESPONSES: (
        *("model", "input", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key"),
        *("prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "stream", "stream_options"),
        *("temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user", "include", "client_metadata"),
    ),
    Api.CHAT: (
        *("model", "messages", "max_tokens", "max_completion_tokens", "n", "stop", "stream", "temperature", "top_p"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format", "seed", "user", "reasoning_effort"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "metadata", "prompt_cache_key"),
        *("prompt_cache_retention", "safety_identifier", "service_tier", "verbosity"),
    ),
}
"""The fields that are passed on. Vendors keep adding other fields. Some of these change the price, or make the vendor
do more than answer."""

BETAS = (
    *("claude-code-", "context-management-", "effort-", "extended-cache-ttl-"),
    *("fine-grained-tool-streaming-", "interleaved-thinking-", "mid-conversation-system-", "output-128k-"),
    *("prompt-caching-", "structured-outputs-", "thinking-token-count-", "token-efficient-tools-"),
)
"""Prefixes of the features that `anthropic-beta` can switch on."""

OWN_TOOLS: Mapping[Api, Collection[str]] = {
    Api.MESSAGES: ("", "custom", "bash", "text_editor", "computer", "memory"),
    Api.RESPONSES: ("function", "custom", "local_shell", "shell", "apply_patch"),
    Api.CHAT: ("function", "custom"),
}
"""Kinds of tools that the agent runs itself, on its machine. The vendor runs all others."""

SHELL = "shell"
"""A tool that the vendor can run as well. The agent runs it only if the tool's `environment` is of the type `local`."""

SEARCH = ("tool_search", "client")
"""The `type` and `execution` of the tool with which codex searches its own tools. The vendor must not run it."""

GROUP = "namespace"
"""A tool that contains other tools."""

REFERENCE = "item_reference"
"""An item that refers to one that the vendor has stored."""

OWN_ITEMS = (
    *("message", "reasoning", "compaction", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
    *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
    *("tool_search_call", "tool_search_output", "additional_tools"),
)
"""The items that a conversation in the Responses API can contain."""

ELSEWHERE: Mapping[str, str] = {
    "mcp_servers": "mcp",
    "container": "code_execution",
    "web_search_options": "web_search",
    "previous_response_id": "stored",
    "conversation": "stored",
    "prompt": "stored",
    "background": "background",
}
"""Fields that make the vendor do more than answer, each with the name in `server_tools` that allows it."""

OUTSIDE: Mapping[str, str] = {"file_id": "files", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}
SOURCES: Mapping[str, str] = {"url": "web_fetch", "file": "files"}
"""Fields and types of sources in a conversation that vendors fetch from elsewhere, or bill differently. Each has the
name in `server_tools` that allows it."""

BY_ADDRESS = "_url"
"""The suffix of fields that refer to an image or a file by URL."""

WILDCARDS = "*?"
"""A pattern of only these characters matches every model, and names none."""

SEARCHING = re.compile(r":online(:|$)|-search(-|$)|-deep-research", re.IGNORECASE)
"""Matches the names of models that search the web even without tools."""

IMAGE_TOKENS, DOCUMENT_TOKENS = 50_000, 1_000_000
"""The most tokens of an image, and of a document. The pages of a packed document cannot be counted here, but no model
reads more tokens than this at once. https://docs.anthropic.com/en/docs/build-with-claude/pdf-support
https://docs.anthropic.com/en/docs/build-with-claude/vision · https://platform.openai.com/docs/guides/images-vision"""

TOOL_TOKENS = 1_000
"""The most tokens of the text that a vendor adds for tools, and for each tool that it describes itself (`bash`).
https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/overview#pricing"""

HOUR = b'"1h"'
"""A request that contains this can write to a cache that lasts for an hour."""

NEWER = re.compile(r"(?:.*/)?(?:o\d|gpt-[5-9])")
"""Models that no longer accept `max_tokens` in the Chat API."""

INLINE = "data:"
"""The prefix of inline data."""

PACKED = re.compile(r"[A-Za-z0-9+/_=\s-]*")
"""Matches data in base64. Anything else that is not inline may be an address, in a spelling that a vendor accepts."""

MAX_PARTS = 250_000
"""The most parts of a request. A million tokens of the shortest tool calls have fewer. Parsing a part takes up to a
microsecond."""

FREE_PARTS, BYTES_PER_PART = 20_000, 10
"""A request can have `FREE_PARTS` parts, and one more per `BYTES_PER_PART` bytes. Conversations have about one part per
40 bytes."""

QUOTES_PER_PART = 4
"""The most quotation marks per part. JSON has at most two strings for each list, object and comma."""

LIGHT_BYTES, LIGHT_PARTS = 64 * 1024, 1_000
"""A request within both limits is parsed in one or two milliseconds."""

BOUNDS: Mapping[Api, Sequence[str]] = {
    Api.MESSAGES: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.CHAT: ("max_tokens", "max_completion_tokens"),
}
"""The fields that limit the length of an answer."""

EDIT = "clear_"
"""The prefix of the context edits that only remove something. Other edits call a model again."""

MAX_TOKENS, MAX_ANSWERS = 1_000_000, 8
"""The highest limit for the tokens of an answer, and the most answers to one request."""

MAX_REASON, MAX_NAMES, MAX_NAME = 300, 5, 40
"""The most characters of a refusal, the most names from the request that it quotes, and the most characters of a
name."""

TIERS = (None, "auto", "default", "standard_only", "flex")
"""The allowed values of `service_tier`. None of them costs more than the price list says."""


class NotAllowed(Exception):  # noqa: N818 - an answer to the agent
    """The request is not passed on. The message says why, and the agent sees it."""


@dataclass(frozen=True, slots=True)
class RequestRule:
    """The requests of an agent that the operator allows."""

    models: tuple[str, ...] = ("*",)
    """Patterns of model names, as in `fnmatch`."""
    own_models: tuple[str, ...] = ()
    """The agent's own models: the configured one, and those that `--model` can request."""
    server_tools: frozenset[str] = frozenset()
    """Allowed features that vendors run: `web_search`, `web_fetch`, `code_execution`, `mcp`, `files` and others."""
    max_output_tokens: int = 32_000
    """The limit for requests that do not set one."""

    def names(self, model: str) -> bool:
        """Whether the operator has named this model, with a pattern for some models or as one of the agent's own."""
        patterns = (pattern for pattern in self.models if pattern.strip(WILDCARDS))
        return any(fnmatchcase(model, pattern) for pattern in patterns) or any(
            is_request_for(own, model) for own in self.own_models
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that may be passed on."""

    api: Api
    target: str
    """Path and query."""
    body: bytes = field(repr=False)
    """The body, encoded again from the parsed fields. So the vendor cannot parse it differently from the gateway."""
    model: str
    most: Count
    """The most tokens that the request and its answer can use."""
    streams: bool
    is_free: bool


def is_request_for(named: str, asked: str) -> bool:
    """Whether `asked`, a model's name in a request, means the model that is called `named` in an agent's settings.

    pi's names begin with a provider, which its requests leave out. Claude Code replaces aliases such as `opus` with the
    name of the newest model. Names may have an edition.
    """
    names, given = {asked, strip_edition(asked)}, {named, strip_edition(named)}
    spelled = any(own == name or own.endswith(f"/{name}") for own in given for name in names)
    return spelled or any(asked.startswith(f"claude-{own}-") for own in given)


def find_api(path: str) -> Api:
    """The API of a path. For an unknown path, it is the API in whose format the request is refused."""
    return PATHS.get(path, Api.MESSAGES if "messages" in path else Api.RESPONSES)


def choose_betas(header: str) -> str:
    """The features in an `anthropic-beta` header that may be switched on."""
    named = (name.strip() for name in header.split(","))
    return ",".join(name for name in named if name.startswith(BETAS))


def read_request(method: str, path: str, query: str, body: bytes, rule: RequestRule) -> Asked:
    """Check a request and rewrite its body. Raises `NotAllowed`."""
    api = PATHS.get(path)
    if api is None or method != "POST" or query not in QUERIES:
        raise NotAllowed(f"this path is not passed on: POST {', '.join(PATHS)} are")
    asked = _parse(body)
    model = asked.get("model")
    if not isinstance(model, str) or len(model) > MAX_MODEL:
        raise NotAllowed("the request names no model")
    if not any(fnmatchcase(model, pattern) for pattern in rule.models):
        raise _refuse(f"the model {model[:MAX_NAME]} is not allowed: {', '.join(rule.models)}")
    if asked.get("service_tier") not in TIERS:
        raise NotAllowed("a service_tier of another price is not allowed")
    is_free = path == FREE
    bounds = {} if is_free else _read_bounds(api, asked, rule)
    most = max([*bounds.values(), *_read_budget(api, asked)]) * _read_answers(asked) if bounds else 0
    # This check comes last, because it visits every part of the conversation.
    if foreign := sorted({*_find_foreign(api, asked)} - rule.server_tools):
        named = ", ".join(name[:MAX_NAME] for name in foreign[:MAX_NAMES])
        raise _refuse(f"what the vendor would do beside answering is not allowed: {named}")
    passed = _rewrite(api, asked, bounds, rule)
    target = f"{path}?{query}" if query else path
    written = msgspec.json.encode(passed)
    count = _count_most(api, passed, written, most)
    return Asked(api, target, written, model, count, asked.get("stream") is True, is_free)


def _count_most(api: Api, passed: Mapping[str, Any], written: bytes, output_tokens: int) -> Count:
    """The most tokens that a rewritten request and its answer can use."""
    media = [*_find_media(passed)]
    in_text = bound_tokens(written) - sum(as_text for as_text, _ in media)
    tokens = max(in_text, 0) + sum(tokens for _, tokens in media) + _count_vendors_text(passed)
    # Vendors charge most for input tokens that they write into a cache, so all of them count as such.
    if api is Api.MESSAGES and HOUR in written:
        return Count(tokens, written_hour_tokens=tokens, output_tokens=output_tokens)
    return Count(tokens, written_tokens=tokens, output_tokens=output_tokens)


def _count_vendors_text(passed: Mapping[str, Any]) -> int:
    """The most tokens of the text that the vendor adds to a request with tools."""
    tools = [*parts(passed, "tools")]
    described = [tool for tool in tools if _read_kind(tool) not in ("", "custom", "function")]
    return TOOL_TOKENS * (len(described) + bool(tools))


def _refuse(reason: str) -> NotAllowed:
    return NotAllowed(reason[:MAX_REASON])


def is_light(body: bytes) -> bool:
    """Whether a request can be parsed on the event loop, because it does not block other tasks for long."""
    return len(body) <= LIGHT_BYTES and _count_signs(body) <= LIGHT_PARTS


def has_too_many_parts(body: bytes) -> bool:
    """Whether a request has more lists, objects and commas than a conversation of its size can have."""
    most = _bound_parts(body)
    if _count_signs(body) <= most:
        return False
    # These characters may be inside strings.
    outside = leave_out_texts(body, most * QUOTES_PER_PART)
    return outside is None or _count_signs(outside) > most


def _bound_parts(body: bytes) -> int:
    return min(FREE_PARTS + len(body) // BYTES_PER_PART, MAX_PARTS)


def _count_signs(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b",")


def _parse(body: bytes) -> Mapping[str, Any]:
    if has_too_many_parts(body):
        raise NotAllowed("the request has more parts than a conversation of its size")
    if has_long_number(body, _bound_parts(body) * QUOTES_PER_PART):
        raise NotAllowed(f"the request has a number of more than {MAX_DIGITS} digits")
    try:
        asked = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise NotAllowed("the request is no JSON object")
    return asked


def _rewrite(api: Api, asked: Mapping[str, Any], bounds: Mapping[str, int], rule: RequestRule) -> dict[str, Any]:
    """The fields to pass on.

    Allowed fields are kept. Added fields make the vendor respect the reserved limit and report the usage. Another one
    stops the Responses API from storing the conversation, unless `stored` is allowed.
    """
    allowed = {*PASSED[api], *(field for field, name in ELSEWHERE.items() if name in rule.server_tools)}
    passed: dict[str, Any] = {name: value for name, value in asked.items() if name in allowed}
    passed |= bounds
    edits = [
        edit for edit in parts(part(passed, "context_management"), "edits") if show(edit.get("type")).startswith(EDIT)
    ]
    passed.pop("context_management", None)
    if edits:
        passed["context_management"] = {"edits": edits}
    if api is Api.RESPONSES and "stored" not in rule.server_tools:
        passed["store"] = False
    if api is Api.CHAT and asked.get("stream") is True:
        passed["stream_options"] = {"include_usage": True}
    return passed


def _read_bounds(api: Api, asked: Mapping[str, Any], rule: RequestRule) -> dict[str, int]:
    """The fields that limit the output tokens of an answer. Raises `NotAllowed`.

    If the request has no such field, a default is set. If it has two, both are kept, because vendors differ in which
    one counts.
    """
    named = {name: _read_number(asked[name], MAX_TOKENS) for name in BOUNDS[api] if asked.get(name) is not None}
    is_newer = api is Api.CHAT and NEWER.match(asked["model"])
    return named or {BOUNDS[api][-1 if is_newer else 0]: rule.max_output_tokens}


def _read_budget(api: Api, asked: Mapping[str, Any]) -> list[int]:
    """The most thinking tokens that the request allows. An empty list if the request sets no limit for them.

    They can be more than `max_tokens` if the model thinks between tool calls. Then only the size of the model's context
    limits them (platform.claude.com/docs, "Extended thinking", interleaved thinking).
    """
    budget = part(asked, "thinking").get("budget_tokens") if api is Api.MESSAGES else None
    return [] if budget is None else [_read_number(budget, MAX_TOKENS)]


def _read_answers(asked: Mapping[str, Any]) -> int:
    return 1 if asked.get("n") is None else _read_number(asked["n"], MAX_ANSWERS)


def _read_number(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise NotAllowed(f"what bounds an answer must be a whole number from 1 to {most:,}")
    return value


def _find_foreign(api: Api, asked: Mapping[str, Any]) -> Iterator[str]:
    """The names of everything that the vendor would do besides answering."""
    yield from _find_foreign_tools(api, asked)
    yield from (name for field, name in ELSEWHERE.items() if asked.get(field))
    if SEARCHING.search(asked["model"]):
        yield "web_search"
    if api is Api.RESPONSES and not isinstance(asked.get("input"), str):
        for item in _read_objects(asked, "input"):
            kind = _read_kind(item) or _read_untyped(item)
            if kind not in OWN_ITEMS:
                yield "stored" if kind == REFERENCE else kind
            yield from _find_foreign_tools(api, item)
    for place in _walk(asked):
        yield from _find_fetched(place)


def _find_foreign_tools(api: Api, holder: Mapping[str, Any]) -> Iterator[str]:
    """The names of the tools in a request, or in a part of it, that the vendor would run."""
    tools = _read_objects(holder, "tools")
    while tools:
        tool = tools.pop()
        # The types of Anthropic's tools end with the date of their version.
        kind = re.sub(r"_\d{8}$", "", _read_kind(tool))
        if not isinstance(environment := tool.get("environment"), dict | None):
            raise NotAllowed("the environment of a tool must be an object")
        if kind == GROUP:
            tools.extend(_read_objects(tool, "tools"))
        elif kind not in OWN_TOOLS[api] and (kind, tool.get("execution")) != SEARCH:
            yield kind or "a tool without a type"
        elif (environment or kind == SHELL) and (environment or {}).get("type") != "local":
            yield "code_execution"


def _read_objects(holder: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of an optional list. Raises `NotAllowed` for any other value, because the vendor might accept it."""
    found = [] if holder.get(name) is None else holder[name]
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise NotAllowed(f"{name} must be a list of objects")
    return [*found]


def _read_kind(value: Mapping[str, Any]) -> str:
    """The `type` of an object. Empty if it has none. Raises `NotAllowed` if it is not a string."""
    kind = value.get("type")
    if kind is not None and not isinstance(kind, str):
        raise NotAllowed("a type must be text")
    return show(kind)


def _read_untyped(item: Mapping[str, Any]) -> str:
    """The type that the vendor assumes for an item without one: a stored item if it has an `id`, or else a message.

    Raises `NotAllowed` if it is neither.
    """
    if "id" in item:
        return REFERENCE
    if isinstance(item.get("role"), str) and isinstance(item.get("content"), str | list):
        return "message"
    raise NotAllowed("an item of the input has no type, and is no message with role and content")


def _walk(asked: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every object in a conversation. This is not recursive, because JSON can be nested deeply."""
    places = [asked.get(name) for name in ("messages", "input", "system", "instructions")]
    while places:
        place = places.pop()
        if isinstance(place, list):
            places.extend(place)
        elif isinstance(place, dict):
            for name, inner in place.items():
                # The `input` of a tool call is for the tool, and the vendor does not interpret it.
                if name != "input" and isinstance(inner, (dict, list)):
                    places.append(inner)
            yield place


def _find_fetched(place: Mapping[str, Any]) -> Iterator[str]:
    """The names in `server_tools` for the data of a part that the vendor would fetch, or bill differently."""
    for field_name, value in place.items():
        if field_name in OUTSIDE and value is not None:
            yield OUTSIDE[field_name]
        if field_name == "source" and isinstance(value, dict) and (name := SOURCES.get(show(value.get("type")))):
            yield name
        by_address = field_name.endswith(BY_ADDRESS) and _is_address(value)
        if by_address or (field_name == "file_data" and not _is_inline(show(value))):
            yield "web_fetch"


def _is_inline(data: str) -> bool:
    return data.startswith(INLINE) or PACKED.fullmatch(data) is not None


def _is_address(value: Any) -> bool:
    """Whether a value is a URL that is fetched. It is a string in the Responses API, and an object in the Chat API."""
    url = _find_url(value)
    return url is not None and not url.startswith(INLINE)


def _find_url(value: Any) -> str | None:
    url = value.get("url") if isinstance(value, dict) else value
    return url if isinstance(url, str) else None


def _find_media(asked: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """For each image and document: the bound for its data as text, and the most tokens that it has as media."""
    for place in _walk_content(asked):
        data = place.get("file_data") or part(place, "file").get("file_data")
        if data is not None:
            yield _measure(data), DOCUMENT_TOKENS
        if (url := _find_url(place.get("image_url"))) is not None:
            # Some servers also accept documents and sound here.
            yield _measure(url), IMAGE_TOKENS if url.startswith("data:image/") else DOCUMENT_TOKENS
        source = part(place, "source")
        if source.get("type") == "base64":
            is_image = show(source.get("media_type")).startswith("image/")
            yield _measure(source.get("data")), IMAGE_TOKENS if is_image else DOCUMENT_TOKENS


def _walk_content(asked: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of messages in which the APIs accept media. Elsewhere, such as in a tool's schema, an image is text."""
    places = [place for name in ("messages", "input") for place in parts(asked, name)]
    while places:
        place = places.pop()
        for name in ("content", "output", "source"):
            inner = [part(place, name)] if isinstance(place.get(name), dict) else [*parts(place, name)]
            places += inner
            yield from inner


def _measure(data: Any) -> int:
    return bound_tokens(data.encode(errors="replace")) if isinstance(data, str) else 0
