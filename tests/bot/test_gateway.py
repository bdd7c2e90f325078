"""The gateway between an agent and its model: over real connections, with a model that does what a test tells it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import cast

import aiohttp
import pytest
import structlog
from aiohttp import web

from bot.gateway.endpoints import ALWAYS, MAX_CONNECTIONS, MAX_TOGETHER, find_most
from bot.gateway.proxy import MAX_REFUSALS, Upstream
from bot.gateway.requests import RequestRule
from bot.github.session import OutboundSettings
from bot.github.session import Proxy as ForwardingProxy
from runner.line_limit import MAX_LINES
from runner.model.caps import Caps, Scope
from runner.model.job import Job
from runner.model.usage import NOTHING
from runner.rows.calls import MAX_CALLS, StoredUsage
from runner.transport.jobd_client import JobdClient
from tests.support.forward_proxy import ForwardProxy
from tests.support.gateway import BODIES, KEY, open_floor, serving
from tests.support.jobs import NOON, make_job
from tests.support.model_endpoint import Cut, Hang, Refuse, Say

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]
EACH_API = pytest.mark.parametrize("path", BODIES)


@pytest.fixture
def job() -> Job:
    return make_job()


@EACH_API
async def test_an_answer_passes_untouched_and_is_counted(tmp_path: Path, job: Job, path: str) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        account = await floor.begin(job)
        async with floor.ask(job, path) as answer:
            assert answer.status == 200
            passed = await answer.read()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{floor.model.url}{path}", json={**BODIES[path], "stream": True}) as direct,
        ):
            assert passed == await direct.read()
        await floor.wait_for([("settled", 1000, 100)])
        assert account.settled.cost_usd == pytest.approx(0.015)


@EACH_API
async def test_the_model_hears_the_operators_key_and_nothing_of_the_machine(
    tmp_path: Path, job: Job, path: str
) -> None:
    heard: list[web.Request] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(request)
        return web.json_response({"usage": {"input_tokens": 1, "output_tokens": 1}}, headers={"set-cookie": "a=b"})

    async with serving(listen) as url, open_floor(tmp_path, url=url) as floor:
        await floor.begin(job)
        own = {
            "cookie": "a=b",
            "x-forwarded-for": "10.0.0.5",
            "openai-organization": "theirs",
            "anthropic-beta": "effort-1,x",
        }
        async with floor.ask(job, path, headers=own, stream=False) as answer:
            assert answer.status == 200
            assert "set-cookie" not in answer.headers
        (request,) = heard
        names = {name.lower() for name in request.headers}
        assert not names & {"cookie", "x-forwarded-for", "openai-organization"}
        assert (request.headers["anthropic-beta"], request.headers["x-team"]) == ("effort-1", "widgets")
        assert KEY in (request.headers.get("x-api-key"), request.headers.get("authorization", "")[7:])
        access = floor.gateway.grant(job)
        assert access
        assert access.token not in str(request.headers)
        await floor.wait_for([("settled", 1, 1)])


@pytest.mark.parametrize("token", ["", "ptq-0123456789-" + "0" * 40, "ä", KEY])
async def test_another_token_opens_nothing(tmp_path: Path, job: Job, token: str) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages", token=token.encode().decode("latin-1")) as answer:
            assert answer.status == 401
        assert floor.model.requests == []


async def test_the_token_of_one_job_opens_nothing_by_the_relay_of_another(tmp_path: Path, job: Job) -> None:
    other = make_job(id="aaaaaaaaaa", thread=8)
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        await floor.begin(other)
        theirs = floor.gateway.grant(other)
        assert theirs
        async with floor.ask(job, "/v1/messages", token=theirs.token) as answer:
            assert answer.status == 401
        async with floor.ask(other, "/v1/messages") as answer:
            assert answer.status == 200
            await answer.read()


@EACH_API
async def test_at_a_cap_nothing_is_passed_on_and_the_answer_ends_the_agent(tmp_path: Path, job: Job, path: str) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        account = await floor.begin(job, cost_usd=0.02)  # Which 500 tokens at $50 a million are beyond.
        async with floor.ask(job, path) as answer:
            assert answer.status == 400
            said = (await answer.json())["error"]["message"]
        assert "its cap of $0.02" in said
        assert account.refusal == "its cap of $0.02 (the operator can raise it: caps.job.cost_usd in ptq.toml)"
        assert floor.model.requests == []
        assert await floor.rows() == []


async def test_a_job_cannot_count_tokens_without_end(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        account = await floor.begin(job)
        account.calls = MAX_CALLS - 1
        async with floor.ask(job, "/v1/messages/count_tokens") as answer:
            assert answer.status == 404  # This model does not know it.
        async with floor.ask(job, "/v1/messages/count_tokens") as answer:
            assert (answer.status, account.calls) == (400, MAX_CALLS)


async def test_a_model_that_nobody_has_priced_or_named_is_not_asked_where_money_is_capped(
    tmp_path: Path, job: Job
) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        account = await floor.begin(job, cost_usd=10.0, unpriced_turns=300)
        async with floor.ask(job, "/v1/responses", model="o1-pro") as answer:
            assert answer.status == 400
            said = (await answer.json())["error"]["message"]
        assert "the price of model o1-pro is unknown" in said
        assert "models of [agents.mine.gateway]" in said
        assert (floor.model.requests, await floor.rows(), account.refusal) == ([], [], None)
        async with floor.ask(job, "/v1/responses") as answer:
            assert answer.status == 200, "a model with a price is asked"


async def test_without_a_cap_on_money_every_model_is_asked(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job, tokens=10**6)
        async with floor.ask(job, "/v1/responses", model="o1-pro") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("rule", [RequestRule(own_models=("o1-pro",)), RequestRule(models=("*", "o1-*"))])
async def test_of_a_named_model_without_a_price_the_gateway_counts_turns_also_of_requests_side_by_side(
    tmp_path: Path, job: Job, rule: RequestRule
) -> None:
    async with open_floor(tmp_path, Say("Well"), rule=rule) as floor:
        account = await floor.begin(job, cost_usd=10.0, unpriced_turns=5)

        async def ask() -> int:
            async with floor.ask(job, "/v1/chat/completions", model="o1-pro", max_tokens=1_000_000) as answer:
                await answer.read()
                return answer.status

        statuses = await asyncio.gather(*(ask() for _ in range(12)))
        assert sorted(statuses) == [200] * 5 + [400] * 7
        assert len(floor.model.requests) == 5
        assert account.refusal
        assert account.refusal.startswith("its cap of 5 turns at unknown cost (the operator can raise it")


async def test_a_call_that_no_model_has_answered_costs_nothing_also_if_the_model_has_no_price(
    tmp_path: Path, job: Job
) -> None:
    rule = RequestRule(own_models=("no-such-model",))
    async with open_floor(tmp_path, Refuse(404), rule=rule) as floor:
        account = await floor.begin(job, cost_usd=10.0, unpriced_turns=300)
        async with floor.ask(job, "/v1/messages", model="no-such-model", tools=[{"name": "x"}]) as answer:
            assert answer.status == 404
        await floor.wait_for([("settled", 0, 0)])
        assert account.settled == NOTHING


async def test_a_request_that_is_not_allowed_is_refused_and_logged_without_its_words(
    tmp_path: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_floor(tmp_path, Say("Well"), rule=RequestRule(models=("cheap",))) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 400
        assert floor.model.requests == []
    logged = "".join(capsys.readouterr())
    assert "gateway.refused" in logged
    assert "the model m is not allowed" in logged
    assert "private words" not in logged


async def test_a_stream_that_the_model_breaks_off_is_broken_off_and_assumed(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Cut(after=3)) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages", tools=[{"name": "x"}]) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        async with asyncio.timeout(10):
            while not (rows := await floor.rows()) or rows[0][0] == "open":
                await asyncio.sleep(0.01)
        ((state, taken, given),) = rows
        assert (state, taken) == ("assumed", 1000)
        assert given == 500


async def test_an_agent_that_goes_away_ends_the_answer_at_the_model(tmp_path: Path, job: Job) -> None:
    left = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        try:
            await asyncio.sleep(60)
        finally:
            left.set()
        return response

    async with serving(hang) as url, open_floor(tmp_path, url=url) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages") as answer:
            await answer.content.readany()
            answer.close()
        async with asyncio.timeout(10):
            await left.wait()
        async with asyncio.timeout(10):
            while (rows := await floor.rows())[0][0] == "open":
                await asyncio.sleep(0.01)
        assert rows[0][0] == "assumed"


async def test_a_model_that_cannot_be_reached_takes_nothing(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, url="http://127.0.0.1:1") as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 502
        await floor.wait_for([("settled", 0, 0)])


async def test_a_model_that_the_proxy_does_not_reach_takes_nothing_and_the_proxys_credentials_are_not_logged(
    tmp_path: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ForwardProxy({}, "other:words") as proxy:
        way = OutboundSettings(proxy=ForwardingProxy(proxy.url, "robot:a-secret-word"))
        async with open_floor(tmp_path, url="https://model.invalid", way=way) as floor:
            await floor.begin(job)
            async with floor.ask(job, "/v1/messages") as answer:
                assert answer.status == 502
            await floor.wait_for([("settled", 0, 0)])
    assert proxy.asked == ["CONNECT model.invalid:443 HTTP/1.1"]
    logged = capsys.readouterr().out
    assert "the proxy answers 407" in logged
    assert "authorization" not in logged.lower()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "/v1/messages",
            b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 40}}}\n\n'
            b'event: message_delta\ndata: {"type": "message_delta", "usage": {"output_tokens": 7}}\n\n'
            b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
        ),
        (
            "/v1/responses",
            b'data: {"type": "response.completed", "response": {"usage": {"input_tokens": 40, "output_tokens": 7, '
            b'"input_tokens_details": {"cached_tokens": 0}}}}\n\n',
        ),
        (
            "/v1/chat/completions",
            b'data: {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 7}}\n\ndata: [DONE]\n\n',
        ),
    ],
)
async def test_an_agent_that_hangs_up_once_all_is_said_is_counted_by_what_was_said(
    tmp_path: Path, job: Job, path: str, said: bytes
) -> None:
    async def say_and_hold(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(said)
        await asyncio.sleep(60)
        return response

    async with serving(say_and_hold) as url, open_floor(tmp_path, url=url) as floor:
        await floor.begin(job)
        async with floor.ask(job, path) as answer:
            heard = b""
            while len(heard) < len(said):
                heard += await answer.content.readany()
            answer.close()
        await floor.wait_for([("settled", 40, 7)])


async def test_what_the_model_refuses_passes_and_takes_nothing(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Refuse(529)) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages", tools=[{"name": "x"}]) as answer:
            assert answer.status == 529
            assert (await answer.json())["error"]["type"] == "overloaded_error"
        await floor.wait_for([("settled", 0, 0)])


@pytest.mark.parametrize("status", [204, 408, 499, 502, 504, 524])
async def test_what_somebody_between_us_and_the_model_answers_may_have_taken_all(
    tmp_path: Path, job: Job, status: int
) -> None:
    async with open_floor(tmp_path, Refuse(status)) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages", tools=[{"name": "x"}]) as answer:
            assert answer.status == status
            await answer.read()
        async with asyncio.timeout(10):
            while [row[0] for row in await floor.rows()] != ["assumed"]:
                await asyncio.sleep(0.01)
        assert (await floor.rows())[0][2] == 500


@pytest.mark.parametrize("status", [401, 403])
async def test_that_the_model_refuses_the_key_is_the_operators_matter(
    tmp_path: Path, job: Job, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse_key(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": f"Incorrect API key provided: {KEY[:9]}"}}, status=status)

    async with serving(refuse_key) as url, open_floor(tmp_path, url=url) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/responses") as answer:
            assert answer.status == 400
            assert KEY[:9] not in await answer.text()
        await floor.wait_for([("settled", 0, 0)])
    assert "gateway.key_refused" in "".join(capsys.readouterr())


@pytest.mark.slow
async def test_a_long_conversation_passes_too(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        words = [{"role": "user", "content": "long " * 10_000} for _ in range(100)]
        async with floor.ask(job, "/v1/messages", messages=words) as answer:
            assert answer.status == 200
            await answer.read()
        assert floor.model.requests[0]["messages"] == words
        async with floor.ask(job, "/v1/messages", messages=words * 7) as answer:
            assert answer.status == 413


async def test_when_a_run_is_over_its_access_is(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        stopped = make_job(stopped_at=NOON)
        await floor.gateway.open(stopped, {}, StoredUsage())
        await floor.gateway.open(stopped, {}, StoredUsage())
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 400
            assert "the run is over" in (await answer.json())["error"]["message"]
        assert floor.model.requests == []


async def test_a_step_that_began_before_a_cancel_does_not_undo_it(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Hang()) as floor:
        await floor.begin(job)
        access = floor.gateway.grant(job)
        assert access
        reader, writer = await send_request(floor.wire.paths[job.id], access.token)
        await reader.readuntil(b"\r\n\r\n")
        floor.gateway.cut_off(job.id)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await floor.gateway.open(job, {}, StoredUsage())
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 400
        assert len(floor.model.requests) == 1


async def test_a_request_that_was_begun_before_the_end_of_a_run_is_not_passed_on_after_it(
    tmp_path: Path, job: Job
) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        access, body = floor.gateway.grant(job), json.dumps(BODIES["/v1/messages"]).encode()
        assert access
        reader, writer = await asyncio.open_unix_connection(floor.wire.paths[job.id])
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {access.token}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:-1])
        await asyncio.sleep(0.1)
        await floor.gateway.open(make_job(cancel_requested_at=NOON), {}, StoredUsage())
        writer.write(body[-1:])
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert floor.model.requests == []
        assert await floor.rows() == []


async def send_request(path: str, token: str) -> Opened:
    """A connection by which somebody has asked the model."""
    reader, writer = await asyncio.open_unix_connection(path)
    body = json.dumps({**BODIES["/v1/messages"], "stream": True}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.slow
async def test_of_one_job_no_more_connections_are_taken_than_agents_need(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Hang()) as floor:
        await floor.begin(job)
        path, access = floor.wire.paths[job.id], floor.gateway.grant(job)
        assert access
        opened = [await send_request(path, access.token) for _ in range(MAX_CONNECTIONS)]
        for reader, _ in opened:
            await reader.readuntil(b"\r\n\r\n")
        last = await asyncio.open_unix_connection(path)
        with suppress(ConnectionResetError):
            assert await last[0].read() == b""
        for _, writer in (*opened, last):
            writer.close()


def test_all_jobs_together_have_a_bounded_number_of_connections_and_each_has_a_place_for_some() -> None:
    jobs: list[int] = []
    for _ in range(20):
        jobs.append(0)
        while jobs[-1] < find_most(sum(jobs[:-1])):
            jobs[-1] += 1
    assert jobs[0] == MAX_CONNECTIONS
    assert min(jobs) == jobs[-1] == ALWAYS
    assert sum(jobs) <= MAX_TOGETHER + ALWAYS * len(jobs)


async def test_those_who_have_not_shown_the_token_make_room_for_others(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        path = floor.wire.paths[job.id]
        refused = await send_request(path, "wrong")
        assert b" 401 " in await refused[0].readuntil(b"\r\n\r\n")
        silent = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS - 1)]
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 200
            with suppress(ConnectionResetError):
                await refused[0].read()
            async with floor.ask(job, "/v1/messages") as another:
                assert another.status == 200
                await another.read()
            assert await answer.read()
        with suppress(ConnectionResetError):
            assert await silent[0][0].read() == b""
        for _, writer in (refused, *silent):
            writer.close()


async def test_those_without_the_token_do_not_use_up_the_lines_of_the_job(
    tmp_path: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_floor(tmp_path, Say("Well"), rule=RequestRule(models=("cheap",))) as floor:
        await floor.begin(job)
        for _ in range(MAX_REFUSALS):
            async with floor.ask(job, "/v1/messages", token="wrong") as answer:
                assert answer.status == 401
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 400
    logged = "".join(capsys.readouterr())
    assert logged.count("this token is not the job's") == MAX_REFUSALS
    assert logged.count("the model m is not allowed") == 1


async def test_what_is_compressed_is_not_unpacked(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        async with floor.ask(job, "/v1/messages", headers={"content-encoding": "gzip"}) as answer:
            assert answer.status == 400
            assert "compressed" in await answer.text()


async def test_what_is_under_way_at_the_end_of_a_job_is_broken_off_and_counted(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Hang()) as floor:
        account = await floor.begin(job)
        async with floor.ask(job, "/v1/messages", tools=[{"name": "x"}]) as answer:
            await answer.content.readany()
            await floor.gateway.close(job.id)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        assert account.open == {}
        assert (await floor.rows())[0][0] == "assumed"
        with pytest.raises(aiohttp.ClientConnectorError):
            async with floor.ask(job, "/v1/messages"):
                pass


async def test_a_way_that_is_gone_is_made_anew(tmp_path: Path, job: Job) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        first = floor.wire.paths[job.id]
        await floor.gateway.connect(job.id, cast(JobdClient, floor.wire))
        assert floor.wire.paths[job.id] == first, "while it lives, no other is made"
        floor.wire.ways[job.id].close()
        await floor.gateway.connect(job.id, cast(JobdClient, floor.wire))
        assert floor.wire.paths[job.id] != first
        async with floor.ask(job, "/v1/messages") as answer:
            assert answer.status == 200
            await answer.read()


async def test_requests_that_cannot_be_read_fill_no_log(
    tmp_path: Path, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        for _ in range(MAX_LINES + 7):
            reader, writer = await asyncio.open_unix_connection(floor.wire.paths[job.id])
            writer.write(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
        assert len([line for line in caplog.records if line.name == "aiohttp.server"]) == MAX_LINES
        with structlog.testing.capture_logs() as logged:
            await floor.gateway.close(job.id)
    assert [(line["event"], line["job"], line["count"]) for line in logged] == [("gateway.lines_left_out", job.id, 7)]


async def test_what_a_job_has_taken_counts_for_its_neighbours_until_its_meter_is_written(
    tmp_path: Path, job: Job
) -> None:
    other, caps = make_job(id="aaaaaaaaaa", thread=8), {Scope.REPOSITORY_DAY: Caps(cost_usd=0.05)}
    async with open_floor(tmp_path, Say("Well")) as floor:
        await floor.begin(job)
        await floor.begin(other)
        await floor.gateway.open(other, caps, StoredUsage({}, {job.id: NOTHING}))
        async with floor.ask(
            job, "/v1/messages"
        ) as answer:  # It takes $0.015, and the next may take at most some $0.03.
            await answer.read()
        async with floor.ask(other, "/v1/messages", max_tokens=100) as answer:
            assert answer.status == 200
            await answer.read()
        await floor.gateway.close(job.id)
        await floor.gateway.open(other, caps, StoredUsage({}, {job.id: NOTHING}))
        async with floor.ask(other, "/v1/messages") as answer:
            assert answer.status == 400
            assert "for this repository today" in await answer.text()
        assert {*floor.gateway.list_accounts()} == {job.id, other.id}
        floor.gateway.forget(job.id)
        assert [*floor.gateway.list_accounts()] == [other.id]


def test_no_key_is_in_what_is_shown_of_an_upstream() -> None:
    assert KEY not in repr(Upstream("https://x", KEY, {"a": KEY}, RequestRule()))
