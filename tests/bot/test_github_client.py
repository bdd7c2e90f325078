"""The client's whole story on the stand-in, which is strict about permissions; GitHub's description watches."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from bot.config.manifest import load_manifest
from bot.github import AppGitHub, Timings
from github_standin import Exchange, StandIn
from handlers.ports import Author, GitHub, GitHubError, GitHubUnavailable, NotFound, NotInstalled, TreeEntry
from handlers.rules import Role
from tests.support.openapi import load_openapi
from tests.support.repository import copy_repository
from tests.support.scripted_github import FAST, app_key_pem, app_public_pem

NAME = "octo/widgets"
BRANCH = "ptq/issue-1-abc"


@dataclass
class Place:
    """A repository with one commit and one issue, on a running stand-in, and the client under test."""

    github: StandIn
    client: GitHub
    base: str
    git_dir: Path
    issue: int

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.git_dir, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def calls(self) -> list[str]:
        return [f"{exchange.method} {exchange.path}" for exchange in self.github.exchanges]

    async def publish(self) -> str:
        """A branch with one new file."""
        tree = await self.client.create_tree(NAME, self.base, [TreeEntry("new.py", "100644", text="new = 1\n")])
        commit = await self.client.create_commit(NAME, "Add new", tree, [self.base])
        assert await self.client.create_branch(NAME, BRANCH, commit)
        return commit


def make_client(session: aiohttp.ClientSession, api_url: str, timings: Timings = FAST) -> GitHub:
    return AppGitHub(
        session,
        api_url=api_url,
        app_id="12345",
        private_key=app_key_pem(),
        timings=timings,
        now=lambda: datetime.now(UTC),
    )


def check_exchange(exchange: Exchange) -> None:
    """GitHub's description must know what we ask; a mishap that a test ordered need not look like GitHub's answers."""
    load_openapi().check_request(exchange)
    if exchange.fault is None:
        load_openapi().check_answer(exchange)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    manifest = load_manifest()
    github = StandIn(
        app_id="12345",
        app_slug="ptq-bot",
        app_public_key=app_public_pem(),
        webhook_secret="secret",
        app_permissions=manifest.permissions,
        app_events=manifest.events,
    )
    github.observers.append(check_exchange)
    base = copy_repository(tmp_path / "widgets.git")
    github.add_repository(NAME, tmp_path / "widgets.git")
    issue = await github.open_issue(NAME, "Broken", "It is broken.", by="stranger")
    await github.start()
    async with aiohttp.ClientSession() as session:
        yield Place(github, make_client(session, github.api_url), base, tmp_path / "widgets.git", issue)
    await github.stop()
    assert github.complaints == []


async def test_the_app_knows_its_own_login(place: Place) -> None:
    assert await place.client.own_login() == "ptq-bot[bot]"


@pytest.mark.parametrize(
    "role", [Role.ADMIN, Role.MAINTAIN, Role.WRITE, Role.TRIAGE, Role.READ, Role.NONE], ids=lambda role: role.word
)
async def test_a_role_is_asked_live(place: Place, role: Role) -> None:
    place.github.set_permission(NAME, "alice", role.word)
    assert await place.client.fetch_role(NAME, "alice") is role
    place.github.set_permission(NAME, "alice", "none")
    assert await place.client.fetch_role(NAME, "alice") is Role.NONE


@pytest.mark.parametrize("login", ["nobody-at-all", "renovate[bot]", ""])
async def test_whoever_github_does_not_know_may_do_nothing(place: Place, login: str) -> None:
    assert not await place.client.fetch_role(NAME, login)


async def test_comments_are_posted_edited_and_listed_oldest_first(place: Place) -> None:
    theirs = await place.github.comment(NAME, place.issue, "me too", by="stranger")
    ours = await place.client.create_comment(NAME, place.issue, "on it")
    edited = await place.client.update_comment(NAME, ours.id, "done")
    listed = [one async for one in place.client.list_comments(NAME, place.issue)]
    assert [(comment.id, comment.author, comment.body, comment.by_bot) for comment in listed] == [
        (theirs, "stranger", "me too", False),
        (edited.id, "ptq-bot[bot]", "done", True),
    ]
    assert ours.url.startswith(place.github.url)


async def test_a_comment_is_folded_as_outdated(place: Place) -> None:
    ours = await place.client.create_comment(NAME, place.issue, "the first report")
    for _ in range(2):
        await place.client.minimize_comment(NAME, ours.id)
        assert place.github.issue(NAME, place.issue).comments[0].minimized_as == "OUTDATED"


async def test_a_comment_that_is_gone_or_may_not_be_folded_is_refused(place: Place) -> None:
    with pytest.raises(NotFound):
        await place.client.minimize_comment(NAME, 999)
    ours = await place.client.create_comment(NAME, place.issue, "the first report")
    place.github.faults.add("POST", "/graphql", 403)
    with pytest.raises(GitHubError) as refused:
        await place.client.minimize_comment(NAME, ours.id)
    assert refused.value.status == 403


async def test_more_comments_than_a_page_holds_are_all_listed(place: Place) -> None:
    for number in range(101):
        await place.github.comment(NAME, place.issue, f"comment {number}", by="stranger")
    listed = [one async for one in place.client.list_comments(NAME, place.issue)]
    assert [comment.body for comment in listed] == [f"comment {number}" for number in range(101)]


async def test_only_comments_changed_since_are_listed(place: Place) -> None:
    early, late = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
    real = place.github.clock
    place.github.clock = lambda: early
    await place.github.comment(NAME, place.issue, "early", by="stranger")
    place.github.clock = lambda: late
    await place.github.comment(NAME, place.issue, "late", by="stranger")
    place.github.clock = real
    listed = [one async for one in place.client.list_comments(NAME, place.issue, since=late)]
    assert [comment.body for comment in listed] == ["late"]


async def test_the_timeline_tells_when_a_label_was_put_on_and_by_whom(place: Place) -> None:
    first, second = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
    real = place.github.clock
    place.github.clock = lambda: first
    await place.github.label_issue(NAME, place.issue, "ptq", by="alice")
    await place.github.unlabel_issue(NAME, place.issue, "ptq", by="alice")
    place.github.clock = lambda: second
    await place.github.label_issue(NAME, place.issue, "ptq", by="alice")
    await place.github.label_issue(NAME, place.issue, "bug", by="alice")
    place.github.clock = real
    found = await place.client.list_labellings(NAME, place.issue, "ptq")
    assert [(labelling.by.login, labelling.at) for labelling in found] == [("alice", first), ("alice", second)]
    assert await place.client.list_labellings(NAME, place.issue, "never") == []


async def test_reactions_are_left_or_silently_lost(place: Place) -> None:
    comment = await place.github.comment(NAME, place.issue, "hello", by="stranger")
    await place.client.react_to_issue(NAME, place.issue, "eyes")
    await place.client.react_to_comment(NAME, comment, "rocket")
    await place.client.react_to_comment(NAME, 1, "rocket")
    issue = place.github.issue(NAME, place.issue)
    assert [reaction.content for reaction in issue.reactions] == ["eyes"]
    assert [reaction.content for reaction in issue.comments[0].reactions] == ["rocket"]


async def test_a_label_is_put_on_and_taken_off_however_often_that_is_asked(place: Place) -> None:
    await place.github.label_issue(NAME, place.issue, "bug", by="alice")
    for _ in range(2):
        await place.client.add_label(NAME, place.issue, "ptq: awaiting note")
    assert [label.name for label in place.github.issue(NAME, place.issue).labels] == ["bug", "ptq: awaiting note"]
    for _ in range(2):
        await place.client.remove_label(NAME, place.issue, "ptq: awaiting note")
    assert [label.name for label in place.github.issue(NAME, place.issue).labels] == ["bug"]
    await place.client.remove_label(NAME, 99, "bug")
    with pytest.raises(NotFound):
        await place.client.add_label(NAME, 99, "bug")


async def test_a_change_becomes_a_branch_and_a_draft_pull_request(place: Place) -> None:
    blob = await place.client.create_blob(NAME, b"\x00\xff binary")
    entries = [
        TreeEntry("new/ünï.py", "100755", text="print('hi')\n"),
        TreeEntry("logo.bin", "100644", blob_sha=blob),
        TreeEntry("README.md", "100644"),
    ]
    tree = await place.client.create_tree(NAME, place.base, entries)
    commit = await place.client.create_commit(NAME, "Fix it\n\nFixes #1", tree, [place.base])
    assert await place.client.fetch_branch_sha(NAME, BRANCH) is None
    assert await place.client.create_branch(NAME, BRANCH, commit)
    assert await place.client.fetch_branch_sha(NAME, BRANCH) == commit
    assert place.git("-c", "core.quotePath=off", "diff", "--summary", place.base, commit).splitlines() == [
        "delete mode 100644 README.md",
        " create mode 100644 logo.bin",
        " create mode 100755 new/ünï.py",
    ]
    assert place.git("log", "-1", "--format=%an|%P", commit) == f"ptq-bot[bot]|{place.base}"
    assert await place.client.list_pull_requests(NAME, BRANCH) == []
    opened = await place.client.create_draft_pull_request(
        NAME, title="Fix it", body="A note.", branch=BRANCH, base_branch="main"
    )
    assert await place.client.list_pull_requests(NAME, BRANCH) == [opened]
    assert (opened.state, opened.head_sha, opened.author) == ("open", commit, "ptq-bot[bot]")
    assert opened.base_branch == "main"
    assert [pull.draft for pull in place.github.pulls(NAME)] == [True]


async def test_what_a_commit_holds_is_found_without_following_links(place: Place) -> None:
    entries = [
        TreeEntry("run", "100755", text="x\n"),
        TreeEntry("deep/er/link", "120000", text="../../README.md"),
    ]
    tree = await place.client.create_tree(NAME, place.base, entries)
    commit = await place.client.create_commit(NAME, "Add files", tree, [place.base])
    paths = ["run", "deep/er/link", "deep/er/link/x", "run/x", "none/x", "README.md"]
    before = len(place.calls())
    found = await place.client.find_base_files(NAME, paths, commit)
    assert {path: file.mode for path, file in found.items()} == {
        **{"run": "100755", "deep": "040000", "deep/er": "040000"},
        **{"deep/er/link": "120000", "README.md": "100644"},
    }
    assert len([call for call in place.calls()[before:] if "/git/trees/" in call]) == 3, "one for each folder"
    assert await place.client.fetch_blob(NAME, found["deep/er/link"].sha) == b"../../README.md"


async def test_a_closed_pull_request_is_found_too(place: Place) -> None:
    await place.publish()
    opened = await place.client.create_draft_pull_request(
        NAME, title="Fix it", body="A note.", branch=BRANCH, base_branch="main"
    )
    await place.github.close_issue(NAME, opened.number, by="alice")
    (found,) = await place.client.list_pull_requests(NAME, BRANCH)
    assert (found.number, found.state) == (opened.number, "closed")


async def test_who_cannot_be_assigned_is_left_out(place: Place) -> None:
    place.github.set_permission(NAME, "boss", "write")
    await place.publish()
    opened = await place.client.create_draft_pull_request(
        NAME, title="Fix it", body="A note.", branch=BRANCH, base_branch="main"
    )
    for login in ("boss", "boss", "passer-by", "nobody-at-all"):
        await place.client.assign(NAME, opened.number, login)
    await place.client.assign(NAME, 99, "boss")
    (pull,) = place.github.pulls(NAME)
    assert [user.login for user in pull.assignees] == ["boss"]
    assert [event.event for event in pull.timeline] == ["assigned"]


async def test_a_person_is_named_as_commits_name_them(place: Place) -> None:
    boss = place.github.add_user("boss")
    assert await place.client.fetch_author(NAME, "Boss") == Author("boss", f"{boss.id}+boss@users.noreply.github.com")
    with pytest.raises(NotFound):
        await place.client.fetch_author(NAME, "nobody-at-all")


async def test_the_public_keys_of_an_account_come_newest_first(place: Place) -> None:
    for name in ("first", "second"):
        place.github.add_public_key("boss", f"ssh-ed25519 {name} boss@home")
    assert await place.client.list_public_keys(NAME, "Boss") == ["ssh-ed25519 second", "ssh-ed25519 first"]
    place.github.add_user("keyless")
    assert await place.client.list_public_keys(NAME, "keyless") == []
    with pytest.raises(NotFound):
        await place.client.list_public_keys(NAME, "nobody-at-all")


async def test_only_our_own_open_pull_requests_count_as_ours(place: Place) -> None:
    assert await place.client.list_own_open_pulls(NAME) == []
    await place.publish()
    pull = {"title": "Fix it", "body": "A note.", "branch": BRANCH, "base_branch": "main"}
    opened = await place.client.create_draft_pull_request(NAME, **pull)
    assert await place.client.list_own_open_pulls(NAME) == [opened.number]
    await place.github.close_issue(NAME, opened.number, by="alice")
    assert await place.client.list_own_open_pulls(NAME) == []


async def test_a_branch_is_created_once(place: Place) -> None:
    commit = await place.publish()
    assert not await place.client.create_branch(NAME, BRANCH, place.base)
    assert await place.client.fetch_branch_sha(NAME, BRANCH) == commit


@pytest.mark.slow
async def test_a_branch_moves_forward_only(place: Place) -> None:
    first = await place.publish()
    tree = await place.client.create_tree(NAME, first, [TreeEntry("more.py", "100644", text="more = 1\n")])
    second = await place.client.create_commit(NAME, "Add more", tree, [first])
    aside = await place.client.create_commit(NAME, "Add more", tree, [place.base])
    assert await place.client.move_branch(NAME, BRANCH, second)
    assert await place.client.move_branch(NAME, BRANCH, second)
    assert not await place.client.move_branch(NAME, BRANCH, aside)
    assert await place.client.fetch_branch_sha(NAME, BRANCH) == second
    reached = [await place.client.contains(NAME, commit, first) for commit in (first, second, aside, place.base)]
    assert reached == [True, True, False, False]


async def test_a_new_body_leaves_the_title_alone(place: Place) -> None:
    await place.publish()
    opened = await place.client.create_draft_pull_request(
        NAME, title="Fix it", body="A note.", branch=BRANCH, base_branch="main"
    )
    await place.client.update_pull_request(NAME, opened.number, body="Another.")
    assert (await place.client.fetch_pull_request(NAME, opened.number)).body == "Another."
    assert place.github.pulls(NAME)[0].title == "Fix it"
    await place.client.update_pull_request(NAME, opened.number, body="Another.", title="Better")
    assert place.github.pulls(NAME)[0].title == "Better"


async def test_a_second_pull_request_is_refused_in_githubs_words(place: Place) -> None:
    await place.publish()
    pull = {"title": "Fix it", "body": "A note.", "branch": BRANCH, "base_branch": "main"}
    await place.client.create_draft_pull_request(NAME, **pull)
    with pytest.raises(GitHubError, match="already exists") as caught:
        await place.client.create_draft_pull_request(NAME, **pull)
    assert caught.value.status == 422


async def test_workflows_are_out_of_reach(place: Place) -> None:
    with pytest.raises(GitHubError) as caught:
        await place.client.create_tree(NAME, place.base, [TreeEntry(".github/workflows/x.yml", "100644", text="x")])
    assert caught.value.status in (403, 404)


async def test_a_lost_answer_to_a_comment_is_not_asked_again(place: Place) -> None:
    place.github.faults.add("POST", "*/comments", "lose_answer")
    with pytest.raises(GitHubUnavailable):
        await place.client.create_comment(NAME, place.issue, "once")
    assert [comment.body async for comment in place.client.list_comments(NAME, place.issue)] == ["once"]


async def test_a_shaky_github_is_read_all_the_same(place: Place) -> None:
    place.github.faults.add("GET", "*/comments", 502)
    place.github.faults.add("GET", "*/comments", "reset")
    assert [one async for one in place.client.list_comments(NAME, place.issue)] == []


async def test_revoked_tokens_are_replaced(place: Place) -> None:
    await place.client.create_comment(NAME, place.issue, "one")
    place.github.revoke_tokens()
    await place.client.create_comment(NAME, place.issue, "two")
    assert [comment.body for comment in place.github.issue(NAME, place.issue).comments] == ["one", "two"]


async def test_githubs_limit_on_content_reaches_the_caller_with_its_wait(place: Place) -> None:
    place.github.limits.content_per_minute = 1
    await place.client.create_comment(NAME, place.issue, "one")
    with pytest.raises(GitHubUnavailable) as caught:
        await place.client.create_comment(NAME, place.issue, "two")
    assert 1 < caught.value.retry_after_s <= 61


async def test_what_does_not_exist_is_not_found(place: Place) -> None:
    with pytest.raises(NotFound):
        await place.client.create_comment(NAME, 99, "hello")
    with pytest.raises(NotInstalled, match="not installed"):
        [one async for one in place.client.list_comments("octo/elsewhere", 1)]


async def test_a_whole_story_asks_for_one_installation_and_one_token_for_each_purpose(place: Place) -> None:
    [one async for one in place.client.list_comments(NAME, place.issue)]
    await place.client.create_comment(NAME, place.issue, "hello")
    await place.publish()
    await place.client.list_pull_requests(NAME, BRANCH)
    assert len([call for call in place.calls() if call.endswith("/installation")]) == 1
    assert len([call for call in place.calls() if call.endswith("/access_tokens")]) == 4
    assert place.github.unknown_calls == []
