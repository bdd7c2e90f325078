"""Who gets in, and what no other site can do to them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, make_mocked_request
from multidict import CIMultiDict
from yarl import URL

from bot.web.auth.auth_config import AuthConfig
from bot.web.auth.clients import find_client
from bot.web.auth.cookies import CookieCipher
from bot.web.auth.form_fields import MAX_FORM
from bot.web.auth.oauth import GitHubOAuth, OAuthApp
from bot.web.auth.page_queue import AT_ONCE_FOR_ONE, PATIENCE_S
from bot.web.auth.sessions import LASTS, Sessions
from bot.web.dashboard.deps import DashboardDeps
from bot.web.dashboard.sign_in import SignIn
from github_standin.standin import CLIENT_ID, CLIENT_SECRET
from tests.support.dashboard import Browser, Dashboard, open_dashboard
from tests.support.jobs import NOON


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Dashboard]:
    async with open_dashboard(tmp_path) as dashboard:
        yield dashboard


def who(browser: Browser) -> str | None:
    """As whom the last page knows somebody."""
    _, _, rest = browser.page.html.partition("<span>@")
    return rest.partition("<")[0] or None


async def test_somebody_signs_in_by_github_and_comes_back_to_where_they_were(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        page = await browser.visit("/jobs?state=running")
        assert who(browser) is None
        link = next(link for link in page.links() if link.startswith("/sign-in"))
        asked = await browser.visit(link)
        await browser.choose(asked, "alice")
        assert (who(browser), browser.path) == ("alice", "/jobs?state=running")
        await browser.fill_in("/sign-out")
        assert who(browser) is None
        assert browser.cookies() == {}


async def test_no_token_of_a_persons_outlives_their_signing_in(dashboard: Dashboard) -> None:
    async with dashboard.browser("alice") as browser:
        assert who(browser) == "alice"
    kinds = [(exchange.method, exchange.path, exchange.status) for exchange in dashboard.github.exchanges]
    assert ("GET", "/user", 200) in kinds
    assert [(method, status) for method, path, status in kinds if path.startswith("/applications/")] == [
        ("DELETE", 204)
    ]
    async with dashboard.database.read() as connection:
        rows = str((await connection.exec_driver_sql("SELECT * FROM ptq_bot")).all())
    assert "ghu_" not in rows + str(browser.cookies())


async def test_cookies_are_for_this_host_and_for_no_script(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        await browser.visit("/sign-in", follow=False)
        asked = await browser.visit(browser.page.headers["Location"])
        back = (await browser.choose(asked, "alice", follow=False)).headers["Location"]
        await browser.visit(back, follow=False)
        session = next(cookie for cookie in browser.set_cookies if cookie.startswith("ptq-session="))
        assert {"HttpOnly", "Path=/", "SameSite=Lax", f"Max-Age={int(LASTS.total_seconds())}"} <= set(
            session.split("; ")
        )
        assert "alice" not in session
        assert "Secure" not in session, "a browser would not keep it on http, which nobody hears on loopback"


def test_on_https_a_cookie_is_for_https_and_no_neighbour() -> None:
    sessions = Sessions(CookieCipher(b"secret", lambda: NOON), "https://ptq.example", (), may_sign_in=True)
    answer = web.Response()
    sessions.begin(answer, "alice")
    (cookie,) = answer.cookies.values()
    assert (cookie.key, cookie["secure"], cookie["path"], cookie["domain"]) == ("__Host-ptq-session", True, "/", "")


async def test_somebody_stays_signed_in_for_eight_hours(dashboard: Dashboard) -> None:
    async with dashboard.browser("alice") as browser:
        dashboard.clock.forward(LASTS.total_seconds() - 1)
        await browser.visit("/jobs")
        assert who(browser) == "alice"
        dashboard.clock.forward(2)
        await browser.visit("/jobs")
        assert who(browser) is None


async def go_to_github_and_back(browser: Browser, login: str) -> str:
    """The address to which GitHub sends somebody back, which they have not opened yet."""
    await browser.visit("/sign-in", follow=False)
    asked = await browser.visit(browser.page.headers["Location"])
    return (await browser.choose(asked, login, follow=False)).headers["Location"]


async def test_a_sign_in_that_was_begun_elsewhere_ends_here(dashboard: Dashboard) -> None:
    """Or else somebody could be made to act, and to write, in an attacker's name."""
    async with dashboard.browser() as attacker, dashboard.browser() as victim:
        back = await go_to_github_and_back(attacker, "bob")
        assert (await victim.visit(back)).status == 403
        await victim.visit("/sign-in", follow=False)
        assert (await victim.visit(back)).status == 403, "its own trip has another state"
        await victim.visit("/jobs")
        assert who(victim) is None


async def test_the_state_of_a_sign_in_must_fit(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        back = await go_to_github_and_back(browser, "alice")
        state = parse_qs(urlsplit(back).query)["state"][0]
        for wrong in ("", "x" * len(state), "\u00e9"):
            assert (await browser.visit(back.replace(state, wrong))).status == 403
        await browser.visit("/jobs")
        assert who(browser) is None


async def test_a_code_signs_in_once(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser, dashboard.browser() as other:
        back = await go_to_github_and_back(browser, "alice")
        trip = browser.cookies()
        await browser.visit(back)
        assert who(browser) == "alice"
        other.session.cookie_jar.update_cookies(trip)
        assert (await other.visit(back)).status == 403
        assert "already used" in other.page.text
        await other.visit("/jobs")
        assert who(other) is None


async def test_a_sign_in_that_failed_is_used_up_also_for_a_good_code(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        back = await go_to_github_and_back(browser, "alice")
        trip, wrong = browser.cookies(), re.sub("code=[^&]+", "code=junk", back)
        for address in (wrong, wrong, back):
            browser.session.cookie_jar.update_cookies(trip)
            assert (await browser.visit(address)).status == 403
        assert "This sign-in was already used" in browser.page.text


@dataclass
class SlowGitHub:
    """A GitHub that answers no sign-in until `go` is set, and pages that ask it."""

    session: aiohttp.ClientSession
    url: URL
    go: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    most: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.go.wait()
        self.waiting -= 1
        return web.json_response({"error": "bad_verification_code"})

    async def come_back(self, client: str = "192.0.2.1", **changes: str) -> int:
        """Begin a sign-in and come back from it with a junk code; the status of the answer."""
        async with self.session.get(self.url / "sign-in", allow_redirects=False) as begun:
            cookies = {name: morsel.value for name, morsel in begun.cookies.items()}
            query = {"state": URL(begun.headers["Location"]).query["state"], "code": "junk", **changes}
        url, headers = (self.url / "sign-in/callback").with_query(query), {"X-Forwarded-For": f"10.9.9.9, {client}"}
        async with self.session.get(url, cookies=cookies, headers=headers) as answer:
            return answer.status

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(4):
            while self.waiting < count:
                await asyncio.sleep(0.01)


@pytest.fixture
async def slow(dashboard: Dashboard) -> AsyncIterator[SlowGitHub]:
    app, ours = web.Application(), web.Application()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        slow = SlowGitHub(session, URL())
        app.router.add_post("/login/oauth/access_token", slow.answer)
        async with TestServer(app) as github:
            oauth = GitHubOAuth(session, OAuthApp(CLIENT_ID, CLIENT_SECRET, str(github.make_url("")), ""))
            ours.router.add_routes(SignIn(DashboardDeps.set_up(dashboard.context, AuthConfig(oauth)), oauth).routes())
            async with TestServer(ours) as pages:
                slow.url = pages.make_url("/")
                yield slow
                slow.go.set()


async def test_few_strangers_ask_github_about_a_sign_in_at_the_same_time(slow: SlowGitHub) -> None:
    coming = [asyncio.create_task(slow.come_back()) for _ in range(3 * AT_ONCE_FOR_ONE)]
    await slow.wait_for(AT_ONCE_FOR_ONE)
    await asyncio.sleep(0.1)
    slow.go.set()
    assert await asyncio.gather(*coming) == [403] * len(coming)
    assert slow.most == AT_ONCE_FOR_ONE


async def test_whoever_floods_sign_ins_takes_no_place_of_another_client(slow: SlowGitHub) -> None:
    flood = [asyncio.create_task(slow.come_back(f"2001:db8::{number}")) for number in range(20)]
    await slow.wait_for(AT_ONCE_FOR_ONE)
    person = asyncio.create_task(slow.come_back("2001:db8:0:1::1"))
    await slow.wait_for(AT_ONCE_FOR_ONE + 1)
    slow.go.set()
    assert await person == 403
    assert {*await asyncio.gather(*flood)} == {403}


async def test_an_invented_sign_in_takes_no_place(slow: SlowGitHub) -> None:
    flood = [asyncio.create_task(slow.come_back()) for _ in range(AT_ONCE_FOR_ONE)]
    await slow.wait_for(AT_ONCE_FOR_ONE)
    async with asyncio.timeout(PATIENCE_S / 2):
        assert [await slow.come_back(**junk) for junk in ({"state": "x"}, {"code": ""})] == [403, 403]
    assert slow.most == AT_ONCE_FOR_ONE
    slow.go.set()
    await asyncio.gather(*flood)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["8.8.8.8, 192.0.2.7"], "192.0.2.7"),
        ("172.17.0.1", ["8.8.8.8", "192.0.2.7"], "192.0.2.7"),
        ("100.64.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["junk"], "127.0.0.1"),
        ("8.8.4.4", ["192.0.2.7"], "8.8.4.4"),
        ("2001:4860:4860:1::8888", ["192.0.2.7"], "2001:4860:4860:1::/64"),
        ("::1", ["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        ("::ffff:8.8.4.4", ["192.0.2.7"], "8.8.4.4"),
        ("", ["192.0.2.7"], "192.0.2.7"),
        ("", [], ""),
    ],
)
def test_a_client_is_told_apart_by_an_address_that_it_does_not_choose(
    peer: str, forwarded: list[str], client: str
) -> None:
    headers = CIMultiDict([("X-Forwarded-For", value) for value in forwarded])
    assert find_client(make_mocked_request("GET", "/", headers).clone(remote=peer)) == client


async def test_a_trip_to_github_takes_ten_minutes_at_most(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        back = await go_to_github_and_back(browser, "alice")
        dashboard.clock.forward(601)
        assert (await browser.visit(back)).status == 403


async def test_whoever_refuses_at_github_is_told_so(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        back = await go_to_github_and_back(browser, "alice")
        refused = back.replace("code=", "error=access_denied&not=")
        assert (await browser.visit(refused)).status == 403
        assert "You did not authorize" in browser.page.text


async def test_nobody_is_sent_to_another_site(dashboard: Dashboard) -> None:
    for path in ("//evil.example", "https://evil.example/", "/\\evil.example", "/jobs%0d%0aX:%20y", "jobs"):
        async with dashboard.browser() as browser:
            await browser.sign_in("alice", path)
            assert (browser.last_origin, browser.path) == (dashboard.url, "/"), path


async def test_a_session_that_was_there_before_does_not_go_on(dashboard: Dashboard) -> None:
    async with dashboard.browser("bob") as browser:
        await browser.visit("/jobs")
        before, csrf = browser.cookies()["ptq-session"], browser.fields("/sign-out")["csrf"]
        await browser.sign_in("alice")
        assert browser.cookies()["ptq-session"] != before
        assert browser.fields("/sign-out")["csrf"] != csrf
        assert (await browser.send("/sign-out", {"csrf": csrf})).status == 403
        await browser.visit("/jobs")
        assert who(browser) == "alice"


async def test_a_cookie_that_somebody_made_or_changed_is_none(dashboard: Dashboard) -> None:
    async with dashboard.browser("alice") as browser, dashboard.browser() as other:
        good = browser.cookies()["ptq-session"]
        await other.visit("/sign-in", follow=False)
        trip = other.cookies()["ptq-trip"]
        for bad in (good[:-2], good[::-1], "root", "", trip, "\u00e9"):
            headers = {"Cookie": f"ptq-session={bad}"}
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{dashboard.url}/jobs", headers=headers) as page,
            ):
                assert "Sign in with GitHub" in await page.text()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None])
async def test_a_form_of_another_site_does_nothing(dashboard: Dashboard, origin: str | None) -> None:
    job = await dashboard.add()
    async with dashboard.browser("alice") as browser:
        await browser.visit(f"/jobs/{job.id}")
        fields = browser.fields(f"/jobs/{job.id}/cancel")
        page = await browser.send(f"/jobs/{job.id}/cancel", fields, origin=origin)
        assert (page.status, "from another site" in page.text) == (403, True)
    assert (await dashboard.fetch_job(job.id)).cancel_requested_at is None


@pytest.mark.parametrize(
    ("kind", "body", "status", "says"),
    [
        ("application/x-www-form-urlencoded", b"\xff\xfe", 403, "cannot be read"),
        ("application/x-www-form-urlencoded", b"a=&" * 10_001, 403, "cannot be read"),
        ("application/x-www-form-urlencoded", b"a=" + b"x" * MAX_FORM, 413, "size"),
        ("application/x-www-form-urlencoded; charset=punycode", b"csrf=1", 415, "in UTF-8"),
        ("multipart/form-data; boundary=x", b"--x--", 415, "in UTF-8"),
        ("text/plain", b"csrf=1", 415, "in UTF-8"),
    ],
)
async def test_a_form_that_cannot_be_read_does_nothing(
    dashboard: Dashboard, kind: str, body: bytes, status: int, says: str
) -> None:
    async with dashboard.browser("alice") as browser:
        headers = {"Origin": dashboard.url, "Content-Type": kind}
        async with browser.session.post(f"{dashboard.url}/sign-out", data=body, headers=headers) as answer:
            assert (answer.status, says in await answer.text()) == (status, True)
        await browser.visit("/jobs")
        assert who(browser) == "alice"


@pytest.mark.slow
@pytest.mark.parametrize("csrf", ["", "wrong", "\u00e9"])
@pytest.mark.parametrize("path", ["cancel", "follow-up", "rebase", "note"])
async def test_a_form_without_its_token_does_nothing(dashboard: Dashboard, path: str, csrf: str) -> None:
    job = await dashboard.add()
    async with dashboard.browser("alice") as browser, dashboard.browser("bob") as other:
        await other.visit("/jobs")
        for token in (csrf, other.fields("/sign-out")["csrf"]):
            assert (await browser.send(f"/jobs/{job.id}/{path}", {"csrf": token})).status == 403
    async with dashboard.browser() as nobody:
        assert (await nobody.send(f"/jobs/{job.id}/{path}", {"csrf": ""})).status == 403
    assert (await dashboard.fetch_job(job.id)).cancel_requested_at is None


async def test_where_the_operator_set_up_nothing_nobody_signs_in(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, signs_in=False) as dashboard, dashboard.browser() as browser:
        job = await dashboard.add()
        hidden = await dashboard.add(id="hidden0001", private=True, repository="octo/hidden")
        assert (await browser.visit("/sign-in")).status == 404
        assert "Sign in" not in (await browser.visit("/jobs")).html
        assert (await browser.visit(f"/jobs/{job.id}")).status == 200, "its address is all that it takes"
        assert (await browser.visit(f"/jobs/{hidden.id}")).status == 404, "nobody could prove that they may read it"
        assert (await browser.send(f"/jobs/{job.id}/cancel", {"csrf": ""})).status in (404, 405)


async def test_github_is_told_the_secret_and_nobody_else(dashboard: Dashboard) -> None:
    async with dashboard.browser() as browser:
        await browser.visit("/sign-in", follow=False)
        url = browser.page.headers["Location"]
        assert CLIENT_SECRET not in url
        query = parse_qs(urlsplit(url).query)
        assert set(query) == {"client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method"}
        assert query["redirect_uri"] == [f"{dashboard.url}/sign-in/callback"]
