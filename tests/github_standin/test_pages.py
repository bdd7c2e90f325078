"""The stand-in's pages: what people read there, what they do there, and that no text commands them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest

from github_standin import Issue
from github_standin.pages.diffs import parse_patch
from github_standin.pages.frame import COOKIE
from github_standin.pages.markdown import render_markdown
from tests.support.corpus import load_corpus
from tests.support.hook import open_hook
from tests.support.visitor import NAME, Visitor, open_visitor

ISSUE = f"/{NAME}/issues/1"
BROWSER = {"Accept": "text/html"}


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async with open_visitor(tmp_path) as visitor:
        await visitor.github.open_issue(NAME, "Broken", "It is, see `a`.", by="bob", labels=["ptq"])
        yield visitor


async def read(visitor: Visitor, path: str, login: str = "") -> str:
    headers = {"Cookie": f"{COOKIE}={login}"}
    async with visitor.session.get(f"{visitor.github.url}{path}", headers=headers) as answer:
        assert answer.status == 200, (path, answer.status)
        return await answer.text()


async def send(visitor: Visitor, path: str, login: str, **fields: str) -> int:
    """The status that a form comes to, sent from a page as it is now; 303 leads to what was done."""
    found = re.search('name="token" value="([^"]+)"', await read(visitor, "/"))
    assert found
    headers = {"Cookie": f"{COOKIE}={login}"}
    url = f"{visitor.github.url}{path}"
    async with visitor.session.post(
        url, data={"token": found[1], **fields}, headers=headers, allow_redirects=False
    ) as answer:
        return answer.status


def issue(visitor: Visitor) -> Issue:
    return visitor.github.issue(NAME, 1)


async def test_what_people_do_on_a_page_reaches_the_app_as_a_webhook(visitor: Visitor) -> None:
    async with open_hook() as hook:
        visitor.github.webhook_url = hook.url
        assert await send(visitor, f"{ISSUE}/comments", "alice", body="one\r\ntwo") == 303
        assert await send(visitor, f"{ISSUE}/label", "alice", name=" ptq:fix ") == 303
        assert await send(visitor, f"{ISSUE}/unlabel", "alice", name="ptq") == 303
        assert await send(visitor, f"{ISSUE}/unlabel", "alice", name="ptq") == 303
        assert await send(visitor, f"{ISSUE}/state", "bob", state="closed", body="never mind") == 303
        assert await send(visitor, f"/{NAME}/issues", "bob", title="Another", body="") == 303
        await visitor.github.settle()
    told = [(delivery.name, json.loads(delivery.payload)["sender"]["login"]) for delivery in visitor.github.deliveries]
    assert told == [
        ("issue_comment.created", "alice"),
        ("issues.labeled", "alice"),
        ("issues.unlabeled", "alice"),
        ("issue_comment.created", "bob"),
        ("issues.closed", "bob"),
        ("issues.opened", "bob"),
    ]
    assert [label.name for label in issue(visitor).labels] == ["ptq:fix"]
    assert [comment.body for comment in issue(visitor).comments] == ["one\r\ntwo", "never mind"]
    assert "closed this" in await read(visitor, ISSUE)


@pytest.mark.parametrize(
    ("login", "form", "status"),
    [
        ("carol", "comments", 303),
        ("carol", "label", 403),
        ("carol", "unlabel", 403),
        ("carol", "state", 403),
        ("bob", "state", 303),
        ("bob", "label", 403),
        ("alice", "label", 303),
        ("alice", "ready", 403),
        ("", "comments", 403),
        ("nobody", "comments", 403),
        ("ptq-bot[bot]", "comments", 403),
    ],
)
async def test_a_page_takes_and_offers_what_the_role_of_a_person_allows(
    visitor: Visitor, login: str, form: str, status: int
) -> None:
    visitor.github.add_user("carol")
    offered = f'action="{ISSUE}/{form}"' in await read(visitor, ISSUE, login)
    assert offered == (status == 303)
    assert await send(visitor, f"{ISSUE}/{form}", login, body="x", name="ptq", state="closed") == status


@pytest.mark.parametrize("fields", [{}, {"token": "guessed"}, {"token": "\u00fc"}])
async def test_a_form_from_elsewhere_does_nothing(visitor: Visitor, fields: dict[str, str]) -> None:
    url, headers = f"{visitor.github.url}{ISSUE}/comments", {"Cookie": f"{COOKIE}=alice"}
    async with visitor.session.post(url, data={"body": "x", **fields}, headers=headers) as answer:
        assert answer.status == 403
    assert issue(visitor).comments == []


async def test_strange_forms_are_refused(visitor: Visitor) -> None:
    for body in (b"\xff=\xfe", b"token=%ff%fe", b"%", b"\0"):
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        async with visitor.session.post(f"{visitor.github.url}/you", data=body, headers=headers) as answer:
            assert answer.status in (400, 403), body
    assert await send(visitor, f"{ISSUE}/comments", "alice", body=" ") == 422
    assert await send(visitor, f"{ISSUE}/comments", "alice", body="x" * 65_537) == 422
    assert await send(visitor, f"{ISSUE}/state", "alice", state="ajar") == 400


async def test_who_one_is_goes_with_the_browser_and_leads_nowhere_else(visitor: Visitor) -> None:
    for back, place in ((ISSUE, ISSUE), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\t/evil", "/")):
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            found = re.search('name="token" value="([^"]+)"', await read(visitor, "/"))
            assert found
            fields = {"token": found[1], "login": "alice", "back": back}
            async with session.post(f"{visitor.github.url}/you", data=fields, allow_redirects=False) as answer:
                assert answer.headers["Location"] == place
                assert "HttpOnly" in answer.headers["Set-Cookie"]
                assert "SameSite=Strict" in answer.headers["Set-Cookie"]
            async with session.get(f"{visitor.github.url}{ISSUE}") as page:
                assert "Comment as <b>alice</b>" in await page.text()


async def test_the_pages_lead_to_each_other(visitor: Visitor, tmp_path: Path) -> None:
    visitor.github.add_repository("octo/private", tmp_path / "widgets.git", private=True)
    visitor.github.set_permission("octo/private", "alice", "read")
    assert "octo/private" not in await read(visitor, "/", "bob")
    assert "octo/private" in await read(visitor, "/", "alice")
    start = await read(visitor, f"/{NAME}")
    assert "Small tools for sequences." in start
    files = re.findall(rf'href="(/{NAME}/(?:blob|commit)/[^"]+)"', start)
    assert len(files) == 6
    assert "def chunked(items, size):" in "".join([await read(visitor, path) for path in files])
    assert f'href="{ISSUE}"' in await read(visitor, f"/{NAME}/issues")
    root = visitor.github.url
    assert (await visitor.ask("GET", f"{root}/{NAME}/pull/1")).headers["Location"] == ISSUE
    for path in ("octo/private", f"{NAME}/issues/9", "octo/none/issues", f"{NAME}/pull/1.diff", f"{NAME}/commit/1"):
        assert (await visitor.ask("GET", f"{root}/{path}")).status == 404


async def test_each_list_has_its_own_kind_in_the_state_that_was_asked_for(visitor: Visitor) -> None:
    await visitor.github.open_issue(NAME, "Another", "", by="bob")
    await visitor.github.close_issue(NAME, 2, by="bob")
    lists = {path: await read(visitor, f"/{NAME}/{path}") for path in ("issues", "issues?state=closed", "pulls")}
    linked = {path: re.findall(r'class="title" href="[^"]*/(\d+)"', page) for path, page in lists.items()}
    assert linked == {"issues": ["1"], "issues?state=closed": ["2"], "pulls": []}


async def test_browsers_see_a_refusal_as_a_page_with_a_way_on(visitor: Visitor) -> None:
    url = f"{visitor.github.url}/{NAME}/issues/9"
    async with visitor.session.get(url, headers=BROWSER) as answer:
        page = await answer.text()
        assert (answer.status, "Not found, or you don" in page, 'href="/"' in page) == (404, True, True)
    form = {"body": " ", "token": "guessed"}
    async with visitor.session.post(f"{visitor.github.url}{ISSUE}/comments", data=form, headers=BROWSER) as answer:
        assert (answer.status, "reload its page" in await answer.text()) == (403, True)


async def test_a_pull_request_shows_its_change_and_is_marked_as_ready_and_merged(visitor: Visitor) -> None:
    tree = {"base_tree": visitor.base, "tree": [{"path": "a.py", "mode": "100644", "type": "blob", "content": "1\n"}]}
    tree_sha = (await visitor.ask("POST", f"/repos/{NAME}/git/trees", tree)).body["sha"]
    commit = {"message": "Say <one>", "tree": tree_sha, "parents": [visitor.base]}
    sha = (await visitor.ask("POST", f"/repos/{NAME}/git/commits", commit)).body["sha"]
    await visitor.ask("POST", f"/repos/{NAME}/git/refs", {"ref": "refs/heads/one", "sha": sha})
    fields = {"title": "One", "body": "Fixes #1", "head": "one", "base": "main", "draft": True}
    assert (await visitor.ask("POST", f"/repos/{NAME}/pulls", fields)).status == 201
    page = await read(visitor, f"/{NAME}/pull/2", "alice")
    for part in ("Draft", "Say &lt;one&gt;", f'href="{ISSUE}"', "a.py", '<td data-line="1"></td><td>+1</td>'):
        assert part in page
    assert "One #2" in await read(visitor, ISSUE)
    assert "a.py" in await read(visitor, f"/{NAME}/commit/{sha}")
    assert await send(visitor, f"/{NAME}/pull/2/ready", "bob") == 403
    assert await send(visitor, f"/{NAME}/pull/2/ready", "alice") == 303
    assert "as ready for review" in await read(visitor, f"/{NAME}/pull/2")
    assert await send(visitor, f"/{NAME}/pull/2/merge", "bob") == 403
    assert await send(visitor, f"/{NAME}/pull/2/merge", "alice") == 303
    assert await send(visitor, f"/{NAME}/pull/2/merge", "alice") == 403
    merged = await read(visitor, f"/{NAME}/pull/2", "alice")
    assert 'class="state merged"' in merged
    assert "a.py" in merged
    assert "Reopen" not in merged
    assert visitor.git("show", "main:a.py") == "1"
    assert visitor.git("rev-list", "--count", f"{visitor.base}..main") == "2"
    assert issue(visitor).state == "closed"
    assert (await visitor.ask("GET", f"/repos/{NAME}/pulls/2")).body["merged_by"]["login"] == "alice"


def test_every_kind_of_change_is_read_out_of_a_patch() -> None:
    patch = (
        "diff --git a/a b.py b/a b.py\nindex 1..2 100644\n--- a/a b.py\n+++ b/a b.py\n@@ -3,2 +3,2 @@ def f():\n"
        " same\n--- old\n+++ new\n\\ No newline at end of file\n"
        "diff --git a/b.bin b/b.bin\nnew file mode 100644\nindex 0..1\nBinary files /dev/null and b/b.bin differ\n"
    )
    text, binary = parse_patch(patch)
    assert (text.path, text.additions, text.deletions) == ("a b.py", 1, 1)
    assert [(line.kind, line.old, line.new) for line in text.lines] == [
        ("hunk", "", ""),
        ("", "3", "3"),
        ("minus", "4", ""),
        ("plus", "", "4"),
        ("", "", ""),
    ]
    assert (binary.path, binary.lines) == ("b.bin", ())
    assert binary.facts == "new file mode 100644, Binary files /dev/null and b/b.bin differ"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo", "<p>one<br>\ntwo</p>"),
        ("~~a~~ <kbd>b</kbd>", "<p><s>a</s> <kbd>b</kbd></p>"),
        ("- [x] a\n- [ ] b\n- [c]", '<input type="checkbox" disabled checked> a</li>'),
        ("|a|\n|-:|\n|b|", '<th class="right">a</th>'),
        ("(see https://a.example/b_(c).)", '<a href="https://a.example/b_(c" rel="nofollow noopener">'),
        ("#1 and x#1, `#1`", '<a href="/octo/widgets/issues/1" rel="nofollow noopener">#1</a> and x#1, <code>#1'),
        ("hi @alice, a@b.example", "<p>hi <strong>@alice</strong>, a@b.example</p>"),
        ("![cat](https://a.example/c.png)", '<a href="https://a.example/c.png" rel="nofollow noopener">cat</a>'),
        ("```diff\n-a\n+b\n```", '<span class="minus">-a\n</span><span class="plus">+b\n</span>'),
        ("```\n<b>\n```", '<pre><code>&lt;b&gt;\n</code></pre><button type="button" class="copy">'),
        ("<details><summary>x</summary>\n\n**y**\n", "<summary>x</summary>\n<p><strong>y</strong></p>\n</details>"),
        ("</div></article><b>x", "<b>x</b>"),
        ("a <!-- ptq:job=1 --> b", "<p>a  b</p>"),
    ],
)
def test_markdown_is_shown_as_github_shows_it(text: str, shown: str) -> None:
    assert shown in str(render_markdown(text, f"/{NAME}"))


class Inspector(HTMLParser):
    """What a browser would do with somebody's text."""

    def __init__(self) -> None:
        super().__init__()
        self.complaints: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        ours = {"href", "rel", "class", "open", "start", "type", "disabled", "checked"}
        if tag in ("script", "style", "form", "iframe", "svg", "img", "base", "meta") or values.keys() - ours:
            self.complaints.append(f"{tag} {attrs}")
        if not re.match(r"https?://|mailto:|[/#]|$", values.get("href", ""), re.IGNORECASE):
            self.complaints.append(values["href"])
        if tag not in ("br", "hr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.complaints.append(f"{tag} was not open")


HOSTILE = (
    "<script>alert(1)</script> <SCRIPT\n>x",
    "[x](javascript:alert(2)) <a href=' jAvascript:1'>y</a> <a href='java\tscript:1'>z</a>",
    "<img src=x onerror=a> <p style='color:red' id=body class=copy>",
    "<details><div><b></details></p></li>",
    "<form action=/you><button name=login value=alice></form><input name=token>",
    "<style>*{display:none}</style><textarea><title><plaintext>",
    "<!-- never ends <b>",
    "<table><tr><td>" * 50,
    "<svg><script>1</script></svg><math><mtext><style>",
    '<a href="https://a.example/?\'%22onclick=1" onclick=1>q',
    '```"><script>\n</pre></code><b>\n```',
)


@pytest.mark.slow
def test_no_text_reaches_beyond_its_own_box_or_does_anything() -> None:
    for text in (*HOSTILE, *(case.text[:10_000] for case in load_corpus())):  # Longer ones only say the same again.
        inspector = Inspector()
        inspector.feed(str(render_markdown(text, f"/{NAME}")))
        inspector.close()
        assert (inspector.complaints, inspector.open) == ([], []), text[:500]


async def test_a_page_cannot_be_turned_against_its_reader(visitor: Visitor) -> None:
    await visitor.github.edit_issue(NAME, 1, by="<i>bob", title="<script>alert(0)</script>")
    await visitor.github.label_issue(NAME, 1, '"><script>', by="<i>bob")
    for text in HOSTILE:
        await visitor.github.comment(NAME, 1, text, by="<i>bob")
    for path in (ISSUE, f"/{NAME}/issues"):
        page = await visitor.ask("GET", f"{visitor.github.url}{path}")
        assert page.body.count("<script") == 1
        assert '<script src="/-/live.js" defer>' in page.body
        assert "<i>" not in page.body
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["X-Content-Type-Options"] == "nosniff"
