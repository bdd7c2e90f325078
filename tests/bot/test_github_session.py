"""A GitHub whose certificate is signed by somebody whom the system does not know is trusted by `ca_file` alone; and
where the only way out is a proxy, requests go by it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from bot.config.settings import describe_problems
from bot.config.tables import ProxyTable
from bot.github.session import OutboundSettings, Proxy, check_authorities, describe_failure, open_session
from tests.support.certificates import COMPANY, encrypt, make_certificate
from tests.support.forward_proxy import ForwardProxy

CREDENTIALS = "ptq:s3cret-s3cret"


@asynccontextmanager
async def serve() -> AsyncIterator[int]:
    """A port where everybody is told with which headers they came."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({name.lower(): text for name, text in request.headers.items()})

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        assert server.port
        yield server.port


async def test_a_company_s_own_authority_is_trusted_where_it_is_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with serve() as port, encrypt(port, certificate, key) as encrypted:
        url = f"https://127.0.0.1:{encrypted}/"
        async with open_session(OutboundSettings(certificate)) as session, session.get(url) as answer:
            assert answer.status == 200
        async with open_session(OutboundSettings()) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(url)


def test_a_file_without_certificates_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        check_authorities(tmp_path / "ca.pem")
    (tmp_path / "ca.pem").write_text("no PEM")
    with pytest.raises(ValueError, match="holds no certificates"):
        check_authorities(tmp_path / "ca.pem")


async def test_requests_go_by_the_proxy_and_nobody_behind_it_learns_its_credentials(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with (
        serve() as port,
        encrypt(port, certificate, key) as encrypted,
        ForwardProxy({COMPANY: encrypted, "models.example": port}, CREDENTIALS) as proxy,
        open_session(OutboundSettings(certificate, Proxy(proxy.url, CREDENTIALS))) as session,
    ):
        for url in (f"https://{COMPANY}/", "http://models.example/", "http://models.example/"):
            async with session.get(url) as answer:
                headers = await answer.json()
                assert (answer.status, "proxy-authorization" in headers) == (200, False)
    line = f"CONNECT {COMPANY}:443 HTTP/1.1"
    assert proxy.asked == [line, *["GET http://models.example/ HTTP/1.1"] * 2]


async def test_this_host_and_those_of_no_proxy_are_asked_directly() -> None:
    proxy = Proxy("http://127.0.0.1:9", no_proxy=(".inside.example", "git.example"))
    direct = ("127.0.0.1", "localhost", "::1", "inside.example", "a.b.inside.example", "GIT.example.", "my.git.example")
    assert [host for host in direct if proxy.leads_to(host)] == []
    led = ("outside.example", "notgit.example", "10.0.0.5", "git.example.org")
    assert [host for host in led if not proxy.leads_to(host)] == []
    async with (
        serve() as port,
        open_session(OutboundSettings(None, proxy)) as session,
        session.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize(
    ("credentials", "host", "words"),
    [("", COMPANY, "the proxy answers 407"), ("ptq:wr0ng-wr0ng", COMPANY, "answers 407"), (CREDENTIALS, "x.y", "502")],
)
async def test_why_a_proxy_leads_nowhere_is_told_without_credentials(
    credentials: str, host: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ForwardProxy({COMPANY: 9}, CREDENTIALS) as proxy:
        way = OutboundSettings(None, Proxy(proxy.url, credentials))
        assert "s3cret" not in repr(way)
        async with open_session(way) as session:
            with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
                await session.get(f"https://{host}/")
    assert words in describe_failure(caught.value)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("host", "words"), [("127.0.0.1", "connection refused"), ("no-such.invalid", "name")])
async def test_what_the_system_says_of_a_failure_is_told_and_nothing_of_the_request(
    host: str, words: str, unused_tcp_port: int
) -> None:
    async with open_session(OutboundSettings(None)) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.get(f"http://{host}:{unused_tcp_port}/s3cret")
    told = describe_failure(caught.value)
    assert words in told.lower()
    assert "s3cret" not in told


async def test_a_proxy_that_is_away_is_told(unused_tcp_port: int) -> None:
    async with open_session(OutboundSettings(None, Proxy(f"http://127.0.0.1:{unused_tcp_port}"))) as session:
        with pytest.raises(aiohttp.ClientProxyConnectionError) as caught:
            await session.get(f"https://{COMPANY}/")
    assert describe_failure(caught.value) == "the proxy cannot be reached"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "https://proxy.example.org:3128"}, "url: must be like http://"),
        ({"url": "http://ptq:hunter2@proxy.example.org:3128"}, "url: must be like http://"),
        ({"url": "http://proxy.example.org"}, "url: must be like http://"),
        ({"url": "http://p.example:1", "credentials": "hunter2"}, "credentials: must be like user:password"),
        ({"credentials": "ptq:hunter2"}, "need a url"),
    ],
)
def test_a_proxy_that_cannot_be_is_named_without_its_credentials(values: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ProxyTable.model_validate(values)
    (found,) = describe_problems(caught.value)
    assert words in found
    assert "hunter2" not in f"{found}{caught.value}"


async def test_the_environment_leads_nobody_astray() -> None:
    """Neither its proxies count, nor what ~/.netrc would add to a request."""
    async with open_session(OutboundSettings()) as session:
        assert not session.trust_env


def test_nothing_asks_by_another_way_than_this_one() -> None:
    """Whatever opened a session of its own would know neither `ca_file` nor `[proxy]`."""
    sources = Path(open_session.__code__.co_filename).parents[1]
    opening = {
        str(path.relative_to(sources))
        for path in sources.rglob("*.py")
        if "ClientSession(" in path.read_text() and "demo" not in path.parts
    }
    assert opening == {"github/session.py"}
