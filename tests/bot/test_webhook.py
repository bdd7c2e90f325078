from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import structlog
from aiohttp import web
from gidgethub import sansio
from gidgethub.routing import Router
from sqlalchemy import func, select

from bot.web.auth.form_fields import MAX_FORM
from bot.webhook import MAX_BODY, PLACES, DeliveryRefused, Webhook, parse_body
from handlers.events import find_lane
from handlers.inbox.inbox import Inbox
from runner.db.database import Database
from runner.db.schema import deliveries
from runner.line_limit import MAX_LINES
from runner.steps.loops import Wakeup
from tests.support.clock import Clock
from tests.support.jobs import open_database

MAX_PENDING = 5
BODY_S = 2.0
SECRETS = ["current secret", "previous secret"]
PAYLOAD = json.dumps({"action": "opened", "repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}}).encode()


class Endpoint:
    def __init__(self, database: Database, url: str, session: aiohttp.ClientSession) -> None:
        self.database, self.url, self.session = database, url, session

    async def send(self, body: bytes = PAYLOAD, **changes: str | None) -> tuple[int, dict[str, Any]]:
        """Send a delivery; `changes` replace headers, None leaves one out."""
        headers: dict[str, str | None] = {
            "Content-Type": "application/json",
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "X-Hub-Signature-256": sign(body),
        }
        headers.update({name.replace("_", "-"): value for name, value in changes.items()})
        sent = {name: value for name, value in headers.items() if value is not None}
        async with self.session.post(self.url, data=io.BytesIO(body), headers=sent) as answer:
            text = await answer.text()
            assert "\n" not in text, "the answer is one line"
            return answer.status, json.loads(text)

    async def send_numbered(self, number: int) -> tuple[int, dict[str, Any]]:
        """Send a delivery with an id and a content of its own."""
        body = json.dumps({**json.loads(PAYLOAD), "number": number}).encode()
        return await self.send(body, X_GitHub_Delivery=f"id-{number}")

    async def stored(self) -> int:
        async with self.database.read() as connection:
            return (await connection.execute(select(func.count()).select_from(deliveries))).scalar_one()


def sign(body: bytes, secret: str = SECRETS[0], algorithm: str = "sha256") -> str:
    return f"{algorithm}={hmac.new(secret.encode(), body, getattr(hashlib, algorithm)).hexdigest()}"


async def work(_event: sansio.Event) -> None:
    return None


ROUTER = Router()
ROUTER.add(work, "issues", action="opened")
ROUTER.add(work, "issue_comment", action="created")


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    async with open_database(tmp_path) as database:
        inbox = Inbox(database, ROUTER, Clock(), max_pending=MAX_PENDING)
        webhook = Webhook(inbox, SECRETS, Wakeup(), body_s=BODY_S, now=Clock())
        application = web.Application(client_max_size=MAX_FORM)
        application.router.add_post("/webhook", webhook.handle)
        runner = web.AppRunner(application, auto_decompress=False)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            yield Endpoint(database, f"http://127.0.0.1:{port}/webhook", session)
        await runner.cleanup()


async def test_a_signed_delivery_is_stored_before_it_is_accepted(endpoint: Endpoint) -> None:
    assert (await endpoint.send())[0] == 202
    async with endpoint.database.read() as connection:
        row = (await connection.execute(select(deliveries))).one()
    assert (row.body, row.event, row.lane, row.state) == (PAYLOAD, "issues", "octo/widgets#7", "pending")


async def test_a_repeated_delivery_is_answered_200_and_changes_nothing(endpoint: Endpoint) -> None:
    await endpoint.send()
    assert (await endpoint.send())[0] == 200
    async with endpoint.database.read() as connection:
        assert (await connection.execute(select(deliveries.c.body))).scalar_one() == PAYLOAD


async def test_the_previous_secret_still_signs_while_secrets_are_rotated(endpoint: Endpoint) -> None:
    assert (await endpoint.send(X_Hub_Signature_256=sign(PAYLOAD, SECRETS[1])))[0] == 202


async def test_ping_is_answered_and_not_stored(endpoint: Endpoint) -> None:
    assert await endpoint.send(X_GitHub_Event="ping") == (200, {"message": "pong"})
    assert await endpoint.stored() == 0


def render_timed(**times: Any) -> bytes:
    """A comment's delivery, with these times of its issue and of the comment."""
    issue = {
        "number": 7,
        "created_at": "2019-05-15T15:20:18Z",
        "updated_at": times.get("issue", "2019-05-15T15:20:18Z"),
    }
    comment = {"body": "/ptq cancel", "created_at": "2019-05-15T15:20:18Z", "updated_at": times.get("comment")}
    payload = {"action": "created", "repository": {"full_name": "octo/widgets"}, "issue": issue, "comment": comment}
    return json.dumps(payload).encode()


@pytest.mark.parametrize(
    ("times", "status"),
    [
        ({"issue": "2026-02-26T11:59:59Z"}, 422),
        ({"issue": "2026-02-26T12:00:00Z"}, 202),
        ({"comment": "2026-02-26T11:59:59Z"}, 422),
        ({"comment": "2026-02-26T12:00:00Z"}, 202),
        ({"comment": "2026-02-26T13:59:59+02:00"}, 422),
        ({"comment": "2026-02-26T14:00:00+02:00"}, 202),
        ({"comment": ["2026-02-26"], "issue": 5}, 422),
    ],
)
async def test_an_event_that_is_older_than_github_can_send_is_refused(
    endpoint: Endpoint, times: dict[str, Any], status: int
) -> None:
    body = render_timed(**times)
    with structlog.testing.capture_logs() as lines:
        answered, answer = await endpoint.send(body, X_GitHub_Event="issue_comment")
    assert answered == status
    assert await endpoint.stored() == (status == 202)
    if status == 422:
        assert "GitHub sends nothing older than 3 days" in answer["error"]
        assert [line["event"] for line in lines] == ["delivery.refused"]


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        ("brand_new_event", {}),
        ("issue_comment", {}),
        ("issue_comment", {"action": "created"}),
        ("issues", {"action": "transferred"}),
        ("issues", {"action": ["opened"]}),
        ("issues", {"action": None}),
        ("issues", {"issue": 5}),
        ("issues", {"issue": None, "pull_request": {"number": 7}}),
        ("issues", {"comment": {"body": "/ptq fix"}}),
    ],
)
async def test_what_no_handler_works_is_answered_and_takes_no_place(
    endpoint: Endpoint, event: str, changes: dict[str, Any]
) -> None:
    """No signature covers the event's name, so one signed body may come under any number of names."""
    body = json.dumps({**json.loads(PAYLOAD), **changes}).encode()
    status, answer = await endpoint.send(body, X_GitHub_Event=event)
    assert (status, answer["message"]) == (200, "no handler for this event")
    assert await endpoint.stored() == 0


async def test_nobody_keeps_a_delivery_out_by_using_its_id_first(endpoint: Endpoint) -> None:
    assert (await endpoint.send())[0] == 202
    later = json.dumps({**json.loads(PAYLOAD), "issue": {"number": 8}}).encode()
    assert (await endpoint.send(later))[0] == 202, "another content is another delivery"
    assert (await endpoint.send(later))[0] == 200
    async with endpoint.database.read() as connection:
        rows = (await connection.execute(select(deliveries).order_by(deliveries.c.sequence))).all()
    assert [row.body for row in rows] == [PAYLOAD, later]
    assert rows[1].id.startswith(f"{rows[0].id}+")
    assert (await endpoint.send(X_GitHub_Delivery=rows[1].id))[0] == 400, "nobody can use that id"


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"X_Hub_Signature_256": None}, 401, "X-Hub-Signature-256"),
        ({"X_Hub_Signature_256": None, "X_Hub_Signature": sign(PAYLOAD, algorithm="sha1")}, 401, "SHA-1"),
        ({"X_Hub_Signature_256": sign(PAYLOAD, "a guess")}, 401, "does not match"),
        ({"X_Hub_Signature_256": sign(PAYLOAD).removeprefix("sha256=")}, 401, "does not match"),
        ({"X_Hub_Signature_256": "sha256=é"}, 401, "ASCII"),
        ({"X_GitHub_Event": None}, 400, "X-GitHub-Event"),
        ({"X_GitHub_Event": "issues\u00fc"}, 400, "X-GitHub-Event"),
        ({"X_GitHub_Event": "e" * 101}, 400, "X-GitHub-Event"),
        ({"X_GitHub_Delivery": None}, 400, "X-GitHub-Delivery"),
        ({"X_GitHub_Delivery": "\u2603"}, 400, "X-GitHub-Delivery"),
        ({"X_GitHub_Delivery": "../deliveries/X"}, 400, "X-GitHub-Delivery"),
        ({"X_GitHub_Delivery": ".."}, 400, "X-GitHub-Delivery"),
        ({"X_GitHub_Delivery": "a+b"}, 400, "X-GitHub-Delivery"),
        ({"X_GitHub_Delivery": "a" * 81}, 400, "X-GitHub-Delivery"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"Content_Encoding": "gzip"}, 415, "compressed"),
        ({"Content_Encoding": "br"}, 415, "compressed"),
    ],
)
async def test_a_bad_request_is_refused_with_the_reason_and_never_stored(
    endpoint: Endpoint, changes: dict[str, str | None], status: int, says: str
) -> None:
    answered, answer = await endpoint.send(b"{}", **changes)
    assert answered == status
    assert says in answer["error"]
    assert await endpoint.stored() == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(endpoint: Endpoint, body: bytes, says: str) -> None:
    status, answer = await endpoint.send(body, X_Hub_Signature_256=sign(body))
    assert status == 400
    assert says in answer["error"]
    assert await endpoint.stored() == 0


async def test_forged_deliveries_fill_no_log(endpoint: Endpoint) -> None:
    with structlog.testing.capture_logs() as lines:
        for _ in range(MAX_LINES + 5):
            status, _ = await endpoint.send(X_Hub_Signature_256="sha256=0")
            assert status == 401
    assert [line["event"] for line in lines] == ["delivery.refused"] * MAX_LINES


async def test_a_really_compressed_body_is_refused_unread(endpoint: Endpoint) -> None:
    body = gzip.compress(PAYLOAD)
    status, _ = await endpoint.send(body, X_Hub_Signature_256=sign(body), Content_Encoding="gzip")
    assert status == 415


@pytest.mark.slow
async def test_a_body_of_25_mb_is_taken_and_one_byte_more_is_not(endpoint: Endpoint) -> None:
    start = PAYLOAD[:-1] + b', "padding": "'
    body = start + b"x" * (MAX_BODY - len(start) - 2) + b'"}'
    assert len(body) == MAX_BODY
    assert (await endpoint.send(body, X_Hub_Signature_256=sign(body)))[0] == 202
    body += b" "
    assert (await endpoint.send(body, X_Hub_Signature_256=sign(body), X_GitHub_Delivery="another"))[0] == 413
    assert await endpoint.stored() == 1


async def test_an_oversized_body_without_a_length_is_refused_too(endpoint: Endpoint) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(27):
            yield b"x" * 1024 * 1024

    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": "streamed",
        "X-Hub-Signature-256": "sha256=0",
    }
    async with endpoint.session.post(endpoint.url, data=stream(), headers=headers) as answer:
        assert answer.status == 413


@pytest.mark.parametrize(
    "payload", [{"repository": 5}, {"repository": {"full_name": ["x"]}}, {"issue": {"number": {}}}, {"more": "\ud800"}]
)
async def test_a_signed_payload_of_any_shape_is_stored(endpoint: Endpoint, payload: dict[str, Any]) -> None:
    body = json.dumps({**json.loads(PAYLOAD), **payload}).encode()
    assert (await endpoint.send(body, X_Hub_Signature_256=sign(body)))[0] == 202


async def send_raw(endpoint: Endpoint, *more_headers: str, body: bytes, cut: bool = False) -> bytes:
    """The answer to a request of exactly these bytes; `cut` hangs up behind them."""
    address = urlsplit(endpoint.url)
    lines = [
        "POST /webhook HTTP/1.1",
        f"Host: {address.netloc}",
        "Content-Type: application/json",
        "X-GitHub-Event: issues",
        "X-GitHub-Delivery: raw",
        f"X-Hub-Signature-256: {sign(PAYLOAD)}",
        "Connection: close",
        *more_headers,
    ]
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    if cut:
        await asyncio.sleep(0.1)  # It has to be waiting for the body by then.
        writer.write_eof()
        answer = await reader.read()
    else:
        # aiohttp keeps the connection for 10 seconds after a request that was not read to its end.
        answer = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"(?i)^content-length: (\d+)", answer, re.MULTILINE):
            answer += await reader.readexactly(int(length[1]))
    writer.close()
    return answer


async def test_a_header_sent_twice_is_refused(endpoint: Endpoint) -> None:
    length = f"Content-Length: {len(PAYLOAD)}"
    assert (await send_raw(endpoint, length, body=PAYLOAD)).startswith(b"HTTP/1.1 202")
    answer = await send_raw(endpoint, length, "X-GitHub-Event: ping", body=PAYLOAD)
    assert answer.startswith(b"HTTP/1.1 400")
    assert await endpoint.stored() == 1


@pytest.mark.parametrize(
    ("header", "body"), [("Content-Length: 9999", PAYLOAD), ("Transfer-Encoding: chunked", b"59\r\n" + PAYLOAD)]
)
async def test_a_body_that_never_ends_is_refused_in_time(endpoint: Endpoint, header: str, body: bytes) -> None:
    async with asyncio.timeout(10 * BODY_S):
        answer = await send_raw(endpoint, header, body=body)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"the body did not arrive within 2 seconds"' in answer
    assert await endpoint.stored() == 0


async def test_a_body_that_is_cut_off_is_no_accident(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with structlog.testing.capture_logs() as lines:
        await send_raw(endpoint, "Content-Length: 9999", body=PAYLOAD, cut=True)
        async with asyncio.timeout(10):
            while not lines:
                await asyncio.sleep(0.01)
    assert [(line["event"], line["reason"]) for line in lines] == [("delivery.refused", "the body was cut off")]
    assert caplog.records == []
    assert await endpoint.stored() == 0


@pytest.mark.slow
async def test_a_delivery_that_the_database_does_not_take_is_answered_503_on_one_line(endpoint: Endpoint) -> None:
    async with endpoint.database.write() as connection:
        await connection.exec_driver_sql("ALTER TABLE deliveries RENAME TO elsewhere")
    status, answer = await endpoint.send()
    assert status == 503
    assert "the database could not store the delivery" in answer["error"]
    async with endpoint.database.write() as connection:
        await connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO deliveries")
    assert (await endpoint.send())[0] == 202, "the same delivery, sent again"


async def test_a_full_inbox_is_answered_503_and_keeps_what_it_has(endpoint: Endpoint) -> None:
    answers = [await endpoint.send_numbered(number) for number in range(MAX_PENDING + 1)]
    assert [status for status, _ in answers] == [202] * MAX_PENDING + [503]
    assert "the inbox is full" in answers[-1][1]["error"]
    assert await endpoint.stored() == MAX_PENDING


async def test_copies_under_other_ids_take_no_place_in_the_inbox(endpoint: Endpoint) -> None:
    copies = [endpoint.send(X_GitHub_Delivery=f"copy-{number}") for number in range(3 * MAX_PENDING)]
    answers = await asyncio.gather(*copies)
    assert sorted(status for status, _ in answers) == [200] * (3 * MAX_PENDING - 1) + [202]
    assert (await endpoint.send_numbered(1))[0] == 202
    assert await endpoint.stored() == 2


async def test_large_bodies_are_read_few_at_once(endpoint: Endpoint) -> None:
    (size, count), _ = PLACES
    slow = [asyncio.create_task(send_raw(endpoint, f"Content-Length: {size + 1}", body=b"{")) for _ in range(count)]
    body = PAYLOAD[:-1] + b', "padding": "' + b"x" * size + b'"}'
    async with asyncio.timeout(10 * BODY_S):
        await asyncio.sleep(0.2)  # They have to be reading by then.
        large = asyncio.create_task(endpoint.send(body, X_GitHub_Delivery="large"))
        await asyncio.wait([large], timeout=BODY_S / 4)
        assert not large.done(), "it waits until somebody has run out of time"
        assert (await endpoint.send())[0] == 202, "small ones need no place"
        assert (await large)[0] == 202
        assert {(await one)[:12] for one in slow} == {b"HTTP/1.1 408"}


async def test_deliveries_that_come_at_once_are_each_answered_and_stored(endpoint: Endpoint) -> None:
    answers = await asyncio.gather(*(endpoint.send_numbered(n % 3) for n in range(MAX_PENDING)))
    assert sorted(status for status, _ in answers) == [200, 200, 202, 202, 202]
    assert await endpoint.stored() == 3


@pytest.mark.parametrize(
    ("body", "lane"),
    [
        ("/ptq cancel", "octo/widgets#7/cancel"),
        ("please\n/PTQ   Cancel.", "octo/widgets#7/cancel"),
        ("> /ptq cancel", "octo/widgets#7/cancel"),
        ("/ptq fix", "octo/widgets#7"),
        ("cancel it", "octo/widgets#7"),
        (None, "octo/widgets#7"),
        (["/ptq cancel"], "octo/widgets#7"),
    ],
)
def test_a_comment_that_may_cancel_has_a_lane_beside_its_issue(body: Any, lane: str) -> None:
    comment = {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}, "comment": {"body": body}}
    assert find_lane(comment) == lane


def test_no_payload_gives_a_lane_that_a_database_cannot_take() -> None:
    lane = find_lane({"repository": {"full_name": "a\0\ud800" + "x" * 1000}, "comment": {"body": "/ptq cancel"}})
    assert len(lane) <= 300
    assert "\0" not in lane
    lane.encode()


@pytest.mark.parametrize(
    "payload",
    [
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}, "comment": {"body": "hello"}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}, "comment": {"body": "/PTQ  cancel"}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}, "comment": {"body": None}},
        {"repository": {"full_name": "octo/widgets"}, "pull_request": {"number": 8}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {}, "pull_request": {"number": 8}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": "7"}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7.0}},
        {"repository": {"full_name": "octo/widgets"}, "issue": {"number": 10**30}},
        {"repository": {"full_name": "half \ud83d of a pair"}, "issue": {"number": 7}},
        {"repository": "octo/widgets", "issue": [7]},
        {},
    ],
)
def test_a_parsed_body_gives_the_lane_of_its_payload(payload: dict[str, Any]) -> None:
    assert find_lane(parse_body(json.dumps(payload).encode())) == find_lane(payload)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"issue": {"number": 7}} more', b'{"a": "\xff"}', b'{"a": 01}', b'{"a": "\x01"}', b'{"a" 1}'],
)
def test_what_is_no_json_object_has_no_lane(body: bytes) -> None:
    whole = b'{"repository": {"full_name": "octo/widgets"}, "issue": {"number": 7}, "z": %b}'
    for one in (body, whole % (body or b"?")) if body != b"[]" else (body,):
        with pytest.raises(DeliveryRefused):
            parse_body(one)
