"""What agents may ask of models: everything else is refused with a reason, and what is passed on is what was read."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.gateway.fetches import NotFetched, read_fetch
from bot.gateway.packages import NoHello, NotConnected, read_hello, read_wanted
from bot.gateway.requests import NotAllowed, RequestRule, choose_betas, is_light, read_request
from runner.agents.prices import PRICES, Price
from tests.support.cpu_time import takes_at_most
from tests.support.gateway import Pieces

PLAIN: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"model": "m", "max_output_tokens": 500, "input": [{"role": "user", "content": "hello"}]},
    "/v1/chat/completions": {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "hello"}]},
}
URL = "https://evil.example/x.png"
HEADERS = st.sampled_from(["accept", "git-protocol", "content-encoding"])


ANYTHING = RequestRule()


def read(path: str, rule: RequestRule = ANYTHING, **changes: Any) -> Any:
    return read_request("POST", path, "", json.dumps({**PLAIN[path], **changes}).encode(), rule)


@pytest.mark.parametrize("path", PLAIN)
def test_a_plain_request_is_passed_on_with_its_own_maximum(path: str) -> None:
    asked = read(path, stream=True)
    assert (asked.model, asked.most.output_tokens, asked.streams, asked.is_free) == ("m", 500, True, False)
    written: dict[str, Any] = {
        "/v1/responses": {"store": False},
        "/v1/chat/completions": {"stream_options": {"include_usage": True}},
    }
    assert json.loads(asked.body) == {**PLAIN[path], "stream": True, **written.get(path, {})}
    assert asked.most.input_tokens >= len(asked.body) // 4


def test_of_a_name_that_stands_twice_the_vendor_gets_the_one_that_was_checked() -> None:
    body = b'{"model": "dear", "model": "cheap", "input": "hello"}'
    asked = read_request("POST", "/v1/responses", "", body, RequestRule(models=("cheap",)))
    assert json.loads(asked.body, object_pairs_hook=list)[:2] == [("model", "cheap"), ("input", "hello")]


@pytest.mark.parametrize("path", PLAIN)
def test_where_a_request_names_no_maximum_the_operators_counts(path: str) -> None:
    body = {name: value for name, value in PLAIN[path].items() if not name.startswith("max")}
    asked = read_request("POST", path, "", json.dumps({**body, "n": 3}).encode(), RequestRule(max_output_tokens=1000))
    assert asked.most.output_tokens == 3000
    assert 1000 in json.loads(asked.body).values(), "and the vendor is told"


@pytest.mark.parametrize("path", PLAIN)
@pytest.mark.parametrize("most", [0, -1, 2**63, 1.5, 500.0, "500", True, [], {}])
def test_a_maximum_that_is_none_is_refused(path: str, most: Any) -> None:
    name = next(name for name in PLAIN[path] if name.startswith("max"))
    with pytest.raises(NotAllowed, match="whole number"):
        read(path, ANYTHING, **{name: most})
    with pytest.raises(NotAllowed, match="whole number"):
        read(path, n=most)


def test_of_two_maxima_the_larger_one_is_reserved() -> None:
    for less, more in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        asked = read("/v1/chat/completions", ANYTHING, **{less: 1, more: 900})
        assert asked.most.output_tokens == 900
        with pytest.raises(NotAllowed, match="whole number"):
            read("/v1/chat/completions", ANYTHING, **{less: 1, more: "900"})


def test_thinking_that_may_be_longer_than_the_answer_is_reserved() -> None:
    for budget, most in ((400, 500), (501, 501), (900_000, 900_000)):
        thinking = {"type": "enabled", "budget_tokens": budget}
        asked = read("/v1/messages", thinking=thinking)
        assert asked.most.output_tokens == most
        assert json.loads(asked.body)["thinking"] == thinking
    body = json.dumps({**PLAIN["/v1/messages"], "thinking": thinking}).encode()
    assert read_request("POST", "/v1/messages/count_tokens", "", body, ANYTHING).most.output_tokens == 0, "it is free"
    junks: tuple[Any, ...] = (0, -1, 1_000_001, "900", 1e6, [])
    for junk in junks:
        with pytest.raises(NotAllowed, match="whole number"):
            read("/v1/messages", thinking={"type": "enabled", "budget_tokens": junk})


def test_a_maximum_of_another_api_is_none() -> None:
    asked = read("/v1/responses", RequestRule(max_output_tokens=1000), max_output_tokens=None, max_tokens=1)
    assert asked.most.output_tokens == 1000


@pytest.mark.parametrize("path", PLAIN)
@pytest.mark.parametrize(
    "field",
    ["speed", "inference_geo", "fallbacks", "plugins", "models", "Tools", "MCP_servers", "store", "a\u0000b", "betas"],
)
def test_fields_that_nobody_knows_are_left_out(path: str, field: str) -> None:
    asked = read(path, ANYTHING, **{field: [{"model": "dear"}]})
    assert json.loads(asked.body).get(field) in (None, False)


def test_what_asks_a_model_once_more_is_left_out() -> None:
    clear, compact = {"type": "clear_thinking_20251015", "keep": "all"}, {"type": "compact_20260112"}
    for wanted, kept in (
        ({"edits": [clear]}, {"edits": [clear]}),
        ({"edits": [clear, compact], "more": 1}, {"edits": [clear]}),
        ({"edits": [compact]}, None),
        ({"edits": compact}, None),
        ([compact], None),
    ):
        assert json.loads(read("/v1/messages", context_management=wanted).body).get("context_management") == kept


def test_only_known_features_are_switched_on() -> None:
    known = "claude-code-20250219,interleaved-thinking-2025-05-14"
    assert choose_betas(f"{known}, mcp-client-2025-04-04,fast-mode-2026-02-01") == known


def test_a_refusal_is_short_whatever_was_asked() -> None:
    tools = [{"type": f"{'x' * 1000}{number}"} for number in range(1000)]
    for changes in ({"tools": tools}, {"model": "m" * 199}):
        with pytest.raises(NotAllowed) as refusal:
            read("/v1/messages", RequestRule(models=("cheap",) if "model" in changes else ("*",)), **changes)
        assert len(str(refusal.value)) <= 300


@pytest.mark.parametrize(
    ("start", "part", "number"),
    [
        (b'{"messages": [', b"{},", 87_300),
        (b'{"messages": [', b"[],", 300_000),
        (b'{"messages": [', b"1,", 200_000),
        (b'{"system": "\\"', b'",{"a":"', 50_000),
        (b'{"system": "\\\\",', b'"a":{"\\"":[', 50_000),
        (b'{"system": "' + b"x" * 3_000_000 + b'", "messages": [', b'{"a":"b"},', 150_000),
    ],
)
def test_a_request_of_too_many_parts_is_refused_before_it_is_read(start: bytes, part: bytes, number: int) -> None:
    """None of them is JSON: code that parsed it first would say so."""
    with pytest.raises(NotAllowed, match="more parts"):
        read_request("POST", "/v1/messages", "", start + part * number, ANYTHING)


def test_signs_in_texts_are_no_parts() -> None:
    text = '{"a": [1, 2, 3], "b\\": "c"},\n' * 20_000
    assert json.loads(read("/v1/messages", system=text).body)["system"] == text


@pytest.mark.slow
def test_the_longest_conversation_of_short_calls_passes() -> None:
    """A million tokens: nothing shorter than a call of a tool, with its answer, has more parts for its tokens."""
    call = {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "Bash", "input": {"command": "ls src"}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "a.py\nb.py"}]}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert read("/v1/messages", messages=turns * 9_000).most.input_tokens > 1_000_000


@pytest.mark.parametrize("text", [b"m\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800"])
def test_what_is_no_text_is_refused(text: bytes) -> None:
    with pytest.raises(NotAllowed, match="no JSON object"):
        read_request("POST", "/v1/messages", "", b'{"model": "%s"}' % text, ANYTHING)


@pytest.mark.parametrize("number", ["1" * 400, "-" + "9" * 30, "1e400", "1" * 5000])
def test_a_number_of_any_size_is_passed_on_or_refused(number: str) -> None:
    body = b'{"model": "m", "max_tokens": 5, "messages": [], "top_k": %s}' % number.encode()
    with suppress(NotAllowed):
        assert json.loads(read_request("POST", "/v1/messages", "", body, ANYTHING).body)["top_k"]


@pytest.mark.parametrize("start", ["", "-", "0.", "1e-", '"\\\\", ', '"a\\"b", '])
def test_a_long_number_is_refused_before_it_is_converted(start: str) -> None:
    """The end is not JSON: code that parsed it first would say so."""
    for digits, words in (("12" * 20, "no JSON"), ("12" * 20 + "3", "more than 40 digits")):
        with pytest.raises(NotAllowed, match=words):
            read_request("POST", "/v1/messages", "", f'{{"a": [{start}{digits}, nothing'.encode(), ANYTHING)


def test_digits_in_texts_are_no_numbers() -> None:
    text = "1234567890" * 5_000 + '\\" "' + "1" * 41
    assert json.loads(read("/v1/messages", system=text).body)["system"] == text


def test_long_numbers_of_a_refused_request_take_hardly_longer_than_its_texts() -> None:
    """Converting them would hold up every other thread for seconds."""
    numbers, texts = (b'{"a": [' + b",".join([part] * 1_000) for part in (b"9" * 4_299, b'"%s"' % (b"9" * 4_297)))

    def refuse(body: bytes) -> None:
        with pytest.raises(NotAllowed):
            read_request("POST", "/v1/messages", "", body, ANYTHING)

    assert takes_at_most(3, partial(refuse, texts), partial(refuse, numbers))


def test_what_is_cheap_to_check_is_checked_before_the_conversation_is_looked_through() -> None:
    foreign = {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]}]}
    for changes, words in (({"service_tier": "priority"}, "service_tier"), ({"max_tokens": 0}, "whole number")):
        with pytest.raises(NotAllowed, match=words):
            read("/v1/messages", ANYTHING, **foreign, **changes)


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"{}", True), (b"[" * 1_001, False), (b" " * 64 * 1024, True), (b" " * 64 * 1024 + b"{}", False)],
)
def test_only_what_is_short_and_has_few_parts_is_light(body: bytes, expected: bool) -> None:
    assert is_light(body) is expected


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/v1/messages", ""),
        ("POST", "/v1/messages/batches", ""),
        ("POST", "/v1/files", ""),
        ("GET", "/v1/models", ""),
        ("POST", "/v1/responses/../files", ""),
        ("POST", "/v1/messages", "x=1"),
        ("DELETE", "/v1/responses/resp_1", ""),
    ],
)
def test_other_paths_are_refused(method: str, path: str, query: str) -> None:
    with pytest.raises(NotAllowed, match="not passed on"):
        read_request(method, path, query, b"{}", RequestRule())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":' * 10**5, b'{"model": 3}', b"{}"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(NotAllowed):
        read_request("POST", "/v1/messages", "beta=true", body, RequestRule())


def test_other_models_are_refused() -> None:
    rule = RequestRule(models=("claude-opus-*", "claude-haiku-4-5"))
    for model in ("claude-opus-5-5", "claude-haiku-4-5"):
        read("/v1/messages", rule, model=model)
    for model in ("claude-fable-5", "claude-haiku-4-5-evil", ""):
        with pytest.raises(NotAllowed, match="is not allowed"):
            read("/v1/messages", rule, model=model)


@pytest.mark.parametrize(
    ("asked", "own"),
    [
        ("gpt-9", "gpt-9"),
        ("gpt-9-2026-11-01", "gpt-9"),
        ("gpt-9", "gateway/gpt-9"),
        ("anthropic/claude-opus-9", "openrouter/anthropic/claude-opus-9"),
        ("claude-opus-9-20261101", "claude-opus-9[1m]"),
        ("claude-opus-9", "opus"),
        ("claude-opus-9-20261101", "opus[1m]"),
    ],
)
def test_a_model_is_named_by_each_name_under_which_a_command_line_asks_for_it(asked: str, own: str) -> None:
    assert RequestRule(own_models=("other", own)).names(asked)
    assert not RequestRule(own_models=("other",)).names(asked)
    assert RequestRule(models=("*", "gpt-9*", "*claude-*")).names(asked)
    assert not RequestRule(models=("*", "?*")).names(asked), "every model is allowed, and none is named"


@pytest.mark.parametrize(
    ("asked", "own"), [("gpt-9-pro", "gpt-9"), ("pt-9", "gpt-9"), ("claude-opus-9", "claude-opus"), ("", "opus")]
)
def test_another_model_with_a_similar_name_is_not_named(asked: str, own: str) -> None:
    assert not RequestRule(own_models=(own,)).names(asked)


def content(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


FOREIGN = [
    ("/v1/messages", "web_search", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("/v1/messages", "web_fetch", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
    ("/v1/messages", "code_execution", {"tools": [{"type": "code_execution_20250825", "name": "x"}]}),
    ("/v1/messages", "mcp", {"mcp_servers": [{"type": "url", "url": URL}]}),
    ("/v1/messages", "code_execution", {"container": "c"}),
    ("/v1/messages", "web_fetch", {"messages": content({"type": "image", "source": {"type": "url", "url": URL}})}),
    ("/v1/messages", "files", {"messages": content({"type": "document", "source": {"type": "file", "file_id": "f"}})}),
    ("/v1/responses", "web_fetch", {"instructions": content({"type": "input_image", "image_url": URL})}),
    (
        "/v1/messages",
        "web_fetch",
        {"messages": content({"type": "tool_result", "content": [{"type": "image", "source": {"type": "url"}}]})},
    ),
    ("/v1/responses", "web_search", {"tools": [{"type": "web_search"}]}),
    ("/v1/responses", "mcp", {"tools": [{"type": "mcp", "server_url": URL}]}),
    ("/v1/responses", "tool_search", {"tools": [{"type": "tool_search", "execution": "server"}]}),
    ("/v1/responses", "mcp", {"tools": [{"type": "namespace", "tools": [{"type": "mcp", "server_url": URL}]}]}),
    ("/v1/responses", "web_search", {"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]}),
    (
        "/v1/responses",
        "mcp",
        {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp", "server_url": URL}]}]},
    ),
    ("/v1/responses", "stored", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("/v1/responses", "code_execution", {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
    ("/v1/responses", "code_execution", {"tools": [{"type": "shell"}]}),
    ("/v1/responses", "code_execution", {"tools": [{"type": "shell", "environment": None}]}),
    ("/v1/responses", "code_execution", {"tools": [{"type": "shell", "environment": {}}]}),
    ("/v1/responses", "stored", {"previous_response_id": "resp_1"}),
    ("/v1/responses", "stored", {"prompt": {"id": "pmpt_1"}}),
    ("/v1/responses", "background", {"background": True}),
    ("/v1/responses", "web_fetch", {"input": content({"type": "input_image", "image_url": URL})}),
    ("/v1/responses", "web_fetch", {"input": content({"type": "input_file", "file_url": URL})}),
    ("/v1/responses", "web_fetch", {"input": content({"type": "input_file", "file_data": URL})}),
    ("/v1/responses", "web_fetch", {"input": content({"type": "input_file", "file_data": " " * 200 + URL})}),
    ("/v1/responses", "web_fetch", {"input": content({"type": "input_file", "file_data": "https:/example.org/x"})}),
    ("/v1/responses", "web_search", {"model": "o3-deep-research"}),
    ("/v1/responses", "web_search", {"model": "gpt-5-search"}),
    ("/v1/chat/completions", "web_search", {"web_search_options": {"x": 1}}),
    ("/v1/chat/completions", "web_search", {"model": "gpt-5-search-api"}),
    ("/v1/chat/completions", "web_search", {"model": "openai/gpt-5:online"}),
    ("/v1/chat/completions", "web_search", {"model": "openai/gpt-5:Online:nitro"}),
    ("/v1/chat/completions", "video", {"messages": content({"type": "video_url", "video_url": {"url": "data:"}})}),
    ("/v1/chat/completions", "audio", {"messages": content({"type": "input_audio", "input_audio": {"data": ""}})}),
    ("/v1/chat/completions", "web_fetch", {"messages": content({"type": "image_url", "image_url": {"url": URL}})}),
]


@pytest.mark.parametrize(("path", "name", "changes"), FOREIGN, ids=lambda value: str(value)[:40])
def test_what_the_vendor_would_do_beside_answering_is_refused_unless_the_operator_allows_it(
    path: str, name: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(NotAllowed, match=name):
        read(path, **changes)
    everything = {name for _, name, _ in FOREIGN}
    read(path, RequestRule(server_tools=frozenset(everything)), **changes)
    with pytest.raises(NotAllowed, match=name):
        read(path, RequestRule(server_tools=frozenset(everything - {name})), **changes)


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/v1/messages", {"tools": [{"name": "Bash", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]}),
        ("/v1/messages", {"messages": content({"type": "image", "source": {"type": "base64", "data": ""}})}),
        # What the model gave one of the agent's own tools is no request of ours.
        ("/v1/messages", {"messages": content({"type": "tool_use", "input": {"file_id": "x", "image_url": URL}})}),
        ("/v1/responses", {"tools": [{"type": "tool_search", "execution": "client"}, {"type": "function"}]}),
        ("/v1/responses", {"tools": [{"type": "namespace", "tools": [{"type": "function"}]}]}),
        ("/v1/responses", {"input": content({"type": "input_image", "image_url": "data:image/png;base64,"})}),
    ],
    ids=str,
)
def test_an_agents_own_tools_and_images_are_passed_on(path: str, changes: dict[str, Any]) -> None:
    assert json.loads(read(path, **changes).body).items() >= changes.items()


PICTURE = "iVBORw0KGgo" * 10_000


def test_what_a_vendor_says_about_its_own_tools_is_reserved() -> None:
    own, typed = {"name": "own"}, [{"type": f"{kind}_20250124", "name": kind} for kind in ("bash", "text_editor")]
    bare, one, three = (read("/v1/messages", tools=tools).most.input_tokens for tools in ([], [own], [own, *typed]))
    assert one - bare >= 1000
    assert three - one >= 2000


@pytest.mark.parametrize(
    ("path", "block", "tokens"),
    [
        ("/v1/messages", {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}, 50_000),
        ("/v1/messages", {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}, 10**6),
        ("/v1/responses", {"type": "input_image", "image_url": "data:image/png;base64," + PICTURE}, 50_000),
        ("/v1/responses", {"type": "input_image", "image_url": "data:video/mp4;base64," + PICTURE}, 1_000_000),
        ("/v1/responses", {"type": "input_file", "file_data": "data:application/pdf;base64," + PICTURE}, 10**6),
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "data:image/png;" + PICTURE}}, 50_000),
        ("/v1/chat/completions", {"type": "file", "file": {"file_data": PICTURE}}, 10**6),
    ],
    ids=lambda value: str(value)[:40],
)
def test_pictures_and_documents_are_reserved_at_what_they_take_at_most_and_not_by_their_bytes(
    path: str, block: dict[str, Any], tokens: int
) -> None:
    if "source" in block:
        block = {**block, "source": {**block["source"], "data": PICTURE}}
    name = "input" if path == "/v1/responses" else "messages"
    nested = [
        block,
        {"type": "tool_result", "content": [block]},
        {"type": "document", "source": {"type": "content", "content": [block]}},
    ]
    assert 0 <= read(path, ANYTHING, **{name: content(*nested)}).most.input_tokens - 3 * tokens < 1000


@pytest.mark.parametrize("path", PLAIN)
@pytest.mark.parametrize("field", ["messages", "input", "system"])
def test_pictures_in_what_is_not_passed_on_reserve_nothing_and_hide_no_text(path: str, field: str) -> None:
    if field in PLAIN[path] or (path, field) == ("/v1/messages", "system"):
        return
    picture = {"image_url": "data:image/png;base64," + PICTURE}
    assert read(path, ANYTHING, **{field: [picture]}).most == read(path).most


LONG_TEXT = "word " * 40_000


@pytest.mark.parametrize(
    "hidden",
    [{"type": "base64", "media_type": "image/png"}, {"type": "x"}],
    ids=["as a source", "as an address"],
)
def test_a_picture_in_a_tools_schema_is_reserved_as_text(hidden: dict[str, Any]) -> None:
    schema = {
        "properties": {"x": {"default": {**hidden, "data": LONG_TEXT, "image_url": f"data:image/png;{LONG_TEXT}"}}}
    }
    item = {"type": "additional_tools", "tools": [{"type": "function", "name": "f", "parameters": schema}]}
    assert read("/v1/responses", ANYTHING, input=[item]).most.input_tokens > 100_000


def test_what_fills_a_cache_for_an_hour_is_reserved_at_its_price() -> None:
    price = Price(input=1.0, output=0.0, cached=0.1)
    text = {"type": "text", "text": "x" * 2_000_000}
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    costs = [read("/v1/messages", messages=content(block)).most.take(price).cost_usd for block in (text, text | hour)]
    assert costs == [pytest.approx(1.5, rel=0.01), pytest.approx(2.4, rel=0.01)]


def test_a_long_prompt_is_reserved_at_its_price_and_as_written_into_a_cache() -> None:
    most = read("/v1/responses", ANYTHING, input="x" * 1_000_000, max_output_tokens=1).most
    assert most.take(PRICES["gpt-5.6"]).cost_usd == pytest.approx(0.6 * 4.0 * 2 * 1.25, rel=0.01)
    assert most.take(PRICES["gpt-5"]).cost_usd == pytest.approx(0.6 * 1.25, rel=0.01)


@pytest.mark.parametrize(
    ("letters", "tokens_for_each"),
    [("abcdefghijklmnopqrstuvwxyz ", 0.6), ("ABC0123!#", 1), ("\x80\x9f", 2), ("ԱԲԳ", 2), ("\ue000\uf8ff", 3)],
)
def test_a_text_reserves_all_the_tokens_that_it_can_take(letters: str, tokens_for_each: float) -> None:
    count = 10_000
    text = "".join(random.Random(1).choices(letters, k=count))  # A tokenizer finds no words in it.
    assert read("/v1/messages", messages=content({"type": "text", "text": text})).most.input_tokens == pytest.approx(
        tokens_for_each * count, abs=200
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(
            ("gpt-5.5", "max_completion_tokens"),
            ("openai/gpt-5", "max_completion_tokens"),
            ("o3", "max_completion_tokens"),
        ),
        *(("gpt-4.1", "max_tokens"), ("qwen3-coder", "max_tokens"), ("ollama/o-model", "max_tokens")),
    ],
)
def test_a_maximum_is_written_under_the_name_that_the_model_knows(model: str, name: str) -> None:
    body = json.dumps({"model": model, "messages": []}).encode()
    asked = read_request("POST", "/v1/chat/completions", "", body, RequestRule(max_output_tokens=1000))
    assert json.loads(asked.body) == {"model": model, "messages": [], name: 1000}


def test_what_costs_more_than_the_price_list_says_is_refused() -> None:
    with pytest.raises(NotAllowed, match="service_tier"):
        read("/v1/responses", service_tier="priority")


MALFORMED: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/responses", "stored", {"input": [{"id": "msg_1"}]}),
    ("/v1/responses", "stored", {"input": [{"type": None, "id": "rs_1"}]}),
    ("/v1/responses", "stored", {"input": [{"id": "msg_1", "role": "user", "content": "hello"}]}),
    ("/v1/responses", "no type", {"input": [{"role": "user"}]}),
    ("/v1/responses", "no type", {"input": [{"content": "hello"}]}),
    ("/v1/responses", "no type", {"input": [{}]}),
    ("/v1/responses", "type must be text", {"input": [{"type": ["item_reference"], "id": "msg_1"}]}),
    ("/v1/responses", "type must be text", {"tools": [{"type": ["web_search"]}]}),
    ("/v1/messages", "type must be text", {"tools": [{"type": {"x": "web_search_20250305"}}]}),
    ("/v1/responses", "input must be a list", {"input": {"type": "item_reference", "id": "msg_1"}}),
    ("/v1/responses", "input must be a list", {"input": ["hello"]}),
    ("/v1/responses", "tools must be a list", {"tools": {"type": "web_search"}}),
    ("/v1/responses", "tools must be a list", {"tools": ["web_search"]}),
    ("/v1/responses", "tools must be a list", {"tools": [{"type": "namespace", "tools": {"type": "mcp"}}]}),
    ("/v1/responses", "tools must be a list", {"input": [{"type": "additional_tools", "tools": "web_search"}]}),
    ("/v1/responses", "environment", {"tools": [{"type": "shell", "environment": "container_auto"}]}),
    ("/v1/responses", "environment", {"tools": [{"type": "shell", "environment": [{"type": "container_auto"}]}]}),
    ("/v1/responses", "environment", {"tools": [{"type": "function", "environment": 0}]}),
    ("/v1/responses", "code_execution", {"tools": [{"type": "shell", "environment": {"type": ["local"]}}]}),
]
"""What we would read otherwise than the vendor may."""


@pytest.mark.parametrize(("path", "words", "changes"), MALFORMED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_read_for_certain_is_refused(path: str, words: str, changes: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed, match=words):
        read(path, **changes)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "local_shell"},
        {"type": "apply_patch", "environment": None},
    ],
)
def test_a_tool_that_runs_where_the_agent_is_is_passed_on(tool: dict[str, Any]) -> None:
    tools = [tool]
    assert json.loads(read("/v1/responses", tools=tools).body)["tools"] == tools


NAMES = [
    *("type", "source", "image_url", "url", "tools", "content", "file_id", "file_data", "n", "role", "id", "input"),
    *("environment", "execution", "edits", "media_type", "data", "model", "max_tokens", "output", "text"),
]
WORDS = [
    *("message", "function", "namespace", "tool_search", "shell", "item_reference", "additional_tools", "local"),
    *("container_auto", "base64", "url", "image/png", "user", "client", "clear_thinking_20251015", "web_search", URL),
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    # Words of the interfaces get deeper than any that are made up.
    | st.sampled_from(WORDS)
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
objects = st.lists(st.dictionaries(st.sampled_from(NAMES), values, max_size=4), max_size=3)
FIELDS = ["messages", "input", "tools", "system", "service_tier", "n", "max_tokens", "model", "context_management"]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(FIELDS), values | objects, max_size=3), st.sampled_from(sorted(PLAIN)))
def test_any_request_is_read_or_refused(changes: dict[str, Any], path: str) -> None:
    try:
        asked = read(path, **changes)
    except NotAllowed:
        return
    assert asked.most.output_tokens > 0
    assert "item_reference" not in {item.get("type") for item in items_of(json.loads(asked.body))}


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body.get("input")
    return given if isinstance(given, list) else []


@given(st.binary(max_size=200) | st.text().map(lambda text: json.dumps({"model": text}).encode()))
@example(b"[" * 100_000)
@example(b'{"model": "m", "messages": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'{"model": "m", "messages": ' + b"9" * 5_000 + b"}")
@example(b'{"model": "\\ud800"}')
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for path in PLAIN:
        with suppress(NotAllowed):
            asked = read_request("POST", path, "", body, ANYTHING)
            assert json.loads(asked.body)["model"] == asked.model


@given(st.sampled_from(["GET", "POST"]), st.text(), st.text(), st.dictionaries(HEADERS, st.text()))
def test_any_request_of_git_is_read_or_refused(method: str, path: str, query: str, headers: dict[str, str]) -> None:
    for asked in (path, f"/git/octo/widgets.git/{path}", "/git/octo/widgets/info/refs"):
        with suppress(NotFetched):
            fetch = read_fetch(method, asked, query, headers, ["octo/widgets"])
            assert (fetch.repository == "octo/widgets") >= fetch.is_granted
            assert ".." not in fetch.target


@given(st.binary(max_size=100), st.binary(max_size=100))
async def test_any_first_bytes_of_a_connection_are_read_or_refused(words: bytes, credentials: bytes) -> None:
    heads = [words, b"CONNECT " + words, b"CONNECT a:1 HTTP/1.1\r\nProxy-Authorization: Basic " + credentials]
    for head in heads:
        with suppress(NotConnected):
            assert read_wanted(head).port <= 65_535
    for hello in (words, b"\x16\x03\x01" + len(words).to_bytes(2, "big") + words):
        with pytest.raises(NoHello):
            await read_hello("pypi.org", Pieces([]), hello)
