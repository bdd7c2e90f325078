from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.playground import STRANGER
from bot.demo.repository import ISSUE_BODY, make_repository
from tests.support.world import World, open_world

pytestmark = pytest.mark.slow


async def settle_without_a_job(world: World) -> None:
    await world.settle()
    assert await world.jobs() == []


async def test_a_stranger_gets_one_friendly_refusal_per_issue_and_no_job(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.open_issue()
        await world.comment("/ptq status\n/ptq fix", by=STRANGER)
        assert "write access" in (reply := await world.wait_for_reply("<!-- ptq:reply="))
        assert "A maintainer can use `/ptq fix`." in reply
        await world.comment("/ptq diagnose please", by=STRANGER)
        await world.label("ptq:fix", by=STRANGER)
        await settle_without_a_job(world)
        assert len(world.replies()) == 1

        # Somebody whom GitHub does not know there has no permission.
        await world.open_issue()
        world.github.faults.add("GET", "/repos/octo/widgets/collaborators/*", 404, times=100)
        await world.comment("/ptq fix")
        assert "write access" in await world.wait_for_reply("<!-- ptq:reply=")
        await settle_without_a_job(world)


async def test_bots_foreign_labels_and_words_that_are_no_command_do_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.github.add_user("other[bot]", type="Bot")
        world.github.set_permission("octo/widgets", "other[bot]", "write")
        await world.open_issue()
        await world.comment("/ptq fix", by="other[bot]")
        await world.label("ptq:fix", by="other[bot]")
        await world.label("bug")
        for body in ("> /ptq fix", "```\n/ptq fix\n```", "- /ptq fix", "see `/ptq fix`", "/other fix", "hello"):
            await world.comment(body)
        await settle_without_a_job(world)
        assert world.replies() == []

        # A typo gets a suggestion, and help lists every command.
        await world.comment("/ptq diagnoze")
        assert "`/ptq diagnose`" in await world.wait_for_reply("Unknown command")
        await world.comment("/ptq help")
        assert "/ptq cancel" in await world.wait_for_reply("/ptq repro")
        await world.comment("/ptq status")
        assert "No job has run" in await world.wait_for_reply("No job")
        await world.comment("/ptq cancel")
        await world.wait_for_reply("No job is running")


async def test_a_repository_without_configuration_is_explained_once_to_each_requester(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        make_repository(tmp_path / "other.git")
        world.github.add_repository("octo/other", tmp_path / "other.git")
        world.github.set_permission("octo/other", "maintainer", "admin")
        for _ in range(2):
            number = await world.github.open_issue("octo/other", "It breaks", ISSUE_BODY, "maintainer")
            await world.github.comment("octo/other", number, "/ptq fix", "maintainer")
            await world.github.label_issue("octo/other", number, "ptq", "maintainer")
            await world.github.label_issue("octo/other", number, "bug", "maintainer")
        await settle_without_a_job(world)

        def explanations() -> list[str] | None:
            bodies = [
                comment.body
                for number in (1, 2)
                for comment in world.github.issue("octo/other", number).comments
                if "isn't configured yet" in comment.body
            ]
            return bodies or None

        assert len(await world.wait(explanations, "the explanation")) == 1
