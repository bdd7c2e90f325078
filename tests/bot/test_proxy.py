"""An installation whose only way to its company's GitHub, and to models, is a proxy that wants to know who asks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from bot.config.settings import load_settings
from bot.demo.playground import APP_ID
from bot.demo.repository import NAME
from bot.doctor.examination import examine
from bot.doctor.findings import DoctorVerdict, Finding
from bot.setup.answers import App, Place
from bot.setup.github_app import NotMade, list_installed
from tests.support.certificates import COMPANY, encrypt, make_certificate
from tests.support.forward_proxy import ForwardProxy
from tests.support.world import World, open_world

pytestmark = pytest.mark.slow

CREDENTIALS = "ptq:s3cret-s3cret"
MODELS = '[agents.models]\nkind = "claude"\ngateway = { url = "http://models.example", key = "k3y-k3y-k3y" }\n\n'


async def refuse(request: web.Request) -> web.Response:
    return web.Response(status=401)


def move_away(world: World, proxy: str, certificate: Path) -> None:
    """Let the configuration say that GitHub and models are where the proxy alone leads."""
    config = world.playground.config
    (config.parent / "proxy-credentials").write_text(f"{CREDENTIALS}\n")
    way = f'[proxy]\nurl = "{proxy}"\ncredentials_file = "proxy-credentials"\n\n'
    text = config.read_text().replace(world.playground.github.api_url, f"https://{COMPANY}/api/v3")
    text = text.replace("[server]", f'ca_file = "{certificate}"\n\n{way}[server]', 1)
    config.write_text(text.replace("[agents.script]", f"{MODELS}[agents.script]", 1))


def pick(findings: list[Finding], about: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if finding.about == about}


async def test_service_doctor_and_set_up_reach_github_by_the_proxy_alone(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    models = web.Application()
    models.router.add_get("/v1/models", refuse)
    async with open_world(tmp_path) as world, TestServer(models) as server:
        github = URL(world.playground.github.url).port
        assert github
        assert server.port
        async with (
            encrypt(github, certificate, key) as port,
            ForwardProxy({COMPANY: port, "models.example": server.port}, CREDENTIALS) as proxy,
        ):
            await world.playground.stop_service()
            move_away(world, proxy.url, certificate)
            await world.playground.start_service()
            await world.open_issue()
            await world.comment("/ptq help")
            await world.wait_for_reply("/ptq fix")
            findings = await examine(world.playground.config)
            assert pick(findings, "GitHub App")["permissions"].verdict is DoctorVerdict.OK
            assert pick(findings, f"repository {NAME}")["labels"].verdict is DoctorVerdict.OK
            assert pick(findings, "service")["running"].verdict is DoctorVerdict.OK, "this host is asked directly"
            assert "rejected the key (401)" in pick(findings, "agent models")["models"].words
            asked = set(proxy.asked)
            assert asked == {f"CONNECT {COMPANY}:443 HTTP/1.1", "GET http://models.example/v1/models HTTP/1.1"}
            await expect_set_up_to_ask(world, proxy, certificate)
            await expect_the_doctor_to_name_it(world, proxy)


async def expect_set_up_to_ask(world: World, proxy: ForwardProxy, certificate: Path) -> None:
    web_url = f"https://{COMPANY}"
    place = Place(web_url, f"{web_url}/api/v3", str(certificate), proxy=proxy.url, proxy_credentials=CREDENTIALS)
    app = App(APP_ID, "", "", (world.playground.folder / "app.pem").read_text(), "secret")
    assert [found.name for found in await list_installed(place, app, lambda: datetime.now(UTC))] == [NAME]
    without = Place(web_url, f"{web_url}/api/v3", str(certificate))
    with pytest.raises(NotMade):
        await list_installed(without, app, lambda: datetime.now(UTC))


async def expect_the_doctor_to_name_it(world: World, proxy: ForwardProxy) -> None:
    proxy.credentials = "ptq:an0ther-an0ther"
    findings = await examine(world.playground.config)
    found = pick(findings, "GitHub App")["reachable"]
    assert (found.verdict, "the proxy answers 407" in found.words, "[proxy]" in found.fix) == (
        DoctorVerdict.FAILED,
        True,
        True,
    )
    assert "s3cret" not in str(findings)
    assert {CREDENTIALS, "s3cret-s3cret"} <= load_settings(world.playground.config).secret_values()
