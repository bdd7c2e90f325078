"""A repository whose name another one has taken: the client, with a real database, in front of the stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.github import AppGitHub
from bot.operations.context import find_operator
from bot.operations.repositories import accept
from handlers.cases.known_repositories import SharedRepositories, fetch_numbers
from handlers.ports import GitHubUnavailable, NotFound, NotInstalled
from handlers.rules import Role
from runner.db.database import Database
from tests.support.jobs import open_database
from tests.support.scripted_github import FAST, Says, ScriptedGitHub, app_key_pem, scripted_github
from tests.support.visitor import APP_ID, NAME, Visitor, open_visitor

KNOWN = "octo/gadgets"


@dataclass
class Place:
    visitor: Visitor
    database: Database

    def client(self) -> AppGitHub:
        """Another process of the service."""
        return AppGitHub(
            self.visitor.session,
            api_url=self.visitor.github.api_url,
            app_id=APP_ID,
            private_key=app_key_pem(),
            now=self.visitor.clock,
            timings=FAST,
            repositories=SharedRepositories(self.database, lambda: {NAME}),
        )

    async def rename(self) -> None:
        """Rename the repository, and let somebody create another one with its old name, in which they have rights."""
        github = self.visitor.github
        github.rename_repository(NAME, "gadgets")
        github.add_repository(NAME, self.visitor.git_dir)
        github.set_permission(NAME, "mallory", "admin")
        await github.open_issue(NAME, "Mine", "", "mallory")


@asynccontextmanager
async def open_place(folder: Path, url: str) -> AsyncIterator[Place]:
    async with open_visitor(folder) as visitor, open_database(url) as database:
        await visitor.github.open_issue(NAME, "It breaks", "", "alice")
        yield Place(visitor, database)


@pytest.mark.parametrize("has_restarted", [False, True])
async def test_nothing_is_asked_of_a_repository_that_took_the_name_or_written_there(
    tmp_path: Path, database_url: str, has_restarted: bool
) -> None:
    async with open_place(tmp_path, database_url) as place:
        client = place.client()
        assert await client.fetch_role(NAME, "alice") is Role.WRITE
        await place.rename()
        if has_restarted:
            client = place.client()
        else:
            place.visitor.clock.forward(3600)  # Its tokens are as old as they can be.
        assert (await client.fetch_repository(NAME)).full_name == KNOWN
        assert [await client.fetch_role(NAME, login) for login in ("alice", "mallory")] == [Role.WRITE, Role.READ]
        await client.create_comment(NAME.title(), 1, "hello")
        assert [comment.body for comment in place.visitor.github.issue(KNOWN, 1).comments] == ["hello"]
        assert place.visitor.github.issue(NAME, 1).comments == []


async def test_a_token_from_before_the_name_was_taken_opens_nothing_of_the_new_repository(
    tmp_path: Path, database_url: str
) -> None:
    async with open_place(tmp_path, database_url) as place:
        client = place.client()
        await client.create_comment(NAME, 1, "hello")
        await client.fetch_role(NAME, "alice")
        await place.rename()
        with pytest.raises(NotFound):
            await client.create_comment(NAME, 1, "hello")
        assert await client.fetch_role(NAME, "mallory") is Role.NONE
        assert (await client.fetch_repository(NAME)).full_name == KNOWN
        await client.create_comment(NAME, 1, "hello again")
        assert place.visitor.github.issue(NAME, 1).comments == []


async def test_a_repository_that_replaces_a_deleted_one_has_its_name_when_an_operator_accepts_it(
    tmp_path: Path, database_url: str
) -> None:
    async with open_place(tmp_path, database_url) as place:
        client = place.client()
        await client.fetch_repository(NAME)
        place.visitor.github.add_repository(NAME, place.visitor.git_dir)
        for one in (client, place.client()):
            with pytest.raises((NotFound, NotInstalled)):
                await one.fetch_repository(NAME)
        async with place.database.write() as connection:
            assert await accept(connection, find_operator(), "Octo/Widgets")
            assert not await accept(connection, find_operator(), NAME)
        for one in (client, place.client()):
            assert (await one.fetch_repository(NAME)).full_name == NAME
        async with place.database.read() as connection:
            assert await fetch_numbers(connection) == {NAME: place.visitor.github._world.repository(NAME).id}


async def test_of_two_replicas_the_first_one_says_which_repository_is_meant(database_url: str) -> None:
    async with open_database(database_url) as database:
        repositories = SharedRepositories(database, lambda: {NAME})
        assert [await repositories.note(NAME.title(), number) for number in (3_000_000_000, 2)] == [3_000_000_000] * 2
        assert await repositories.find(NAME) == 3_000_000_000


async def test_a_reply_where_no_operator_wants_the_bot_does_not_decide_which_repository_has_the_name(
    tmp_path: Path, database_url: str
) -> None:
    async with open_place(tmp_path, database_url) as place:
        github, client, other = place.visitor.github, place.client(), "octo/later"
        for body in ("not configured", "still not configured"):
            github.add_repository(other, place.visitor.git_dir)
            issue = await github.open_issue(other, "It breaks", "", "mallory")
            await client.create_comment(other, issue, body)
            assert [comment.body for comment in github.issue(other, issue).comments] == [body]
        async with place.database.read() as connection:
            assert await fetch_numbers(connection) == {}


async def test_without_a_database_nothing_is_asked_about_a_repository(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        repositories = SharedRepositories(database, lambda: {NAME})
    (tmp_path / "ptq.db").unlink()
    with pytest.raises(GitHubUnavailable, match="the database"):
        await repositories.find(NAME)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedGitHub]:
    async with scripted_github() as server:
        yield server


async def test_a_public_repository_that_any_token_reads_is_not_taken_for_the_known_one(server: ScriptedGitHub) -> None:
    facts = {"private": False, "default_branch": "main", "clone_url": "https://github/x.git"}
    server.script("GET /repos/octo/widgets", *(Says({"id": number, "full_name": NAME, **facts}) for number in (1, 2)))
    server.script("GET /repos/octo/gadgets", Says({"id": 1, "full_name": KNOWN, **facts}))
    client = server.client()
    assert (await client.fetch_repository(NAME)).full_name == NAME
    server.name = KNOWN
    assert (await client.fetch_repository(NAME)).full_name == KNOWN
    server.script("GET /repos/octo/gadgets", Says({"id": 3, "full_name": KNOWN, **facts}))
    with pytest.raises(NotFound, match="another repository is called octo/widgets"):
        await client.fetch_repository(NAME)
