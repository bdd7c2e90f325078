"""A note on a newer report, while the pull request of an earlier one is open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from github_standin import Pull
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

DIFFERENTLY = """
pathlib.Path('attempt.txt').write_text(os.environ['PTQ_JOB_ID'] + '\\n')
(output / 'pr_title.txt').write_text('Attempt ' + os.environ['PTQ_JOB_ID'])
"""
SECOND_NOTE = "The second attempt says in a file which one it was, and I want that there for the release notes."


@asynccontextmanager
async def open_pull_world(folder: Path) -> AsyncIterator[tuple[World, Pull]]:
    """A world with an open pull request, whose agent makes another diff in each attempt."""
    async with open_world(folder, agent=WRITE_REPORT + FIX + DIFFERENTLY) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        yield world, await world.wait_for_pull()


async def attempt(world: World) -> str:
    """Another attempt. Returns the id of its job."""
    await world.comment("/ptq fix")
    await world.wait_for_report(len(world.reports()) + 1)
    return (await world.jobs())[0].id


async def approve_again(world: World, title: str = "") -> Pull:
    (pull,) = world.pulls()
    count = sum("now has this diff" in reply for reply in world.replies())
    await world.comment(f"/ptq pr {world.digest()}{title}\n\n{SECOND_NOTE}")
    await world.wait_for_reply(f"Pull request #{pull.number} now has this diff", count + 1)
    await world.settle()
    assert world.pulls() == [pull]
    return pull


def show(world: World, pull: Pull) -> str:
    """The diff that GitHub shows."""
    return world.git("diff", f"main...{pull.head_sha}")


async def test_notes_on_further_attempts_bring_them_into_the_open_pull_request_by_commits_on_top(
    tmp_path: Path,
) -> None:
    async with open_pull_world(tmp_path) as (world, pull):
        before, title, shown = pull.head_sha, pull.title, show(world, pull)
        first, second = (await world.jobs())[0].id, await attempt(world)
        assert f"pull request #{pull.number} keeps its title)" in world.reports()[-1]
        await approve_again(world)
        assert world.git("log", "-1", "--format=%P", pull.head_sha).split() == [before]
        lines, lines_before = (set(text.splitlines()) for text in (show(world, pull), shown))
        assert {f"+{second}", f"+{first}"} <= lines ^ lines_before
        assert f"+{first}" not in lines
        assert pull.body.startswith(f"**@maintainer wrote:**\n\n{SECOND_NOTE}\n\n<!-- ptq:pull={second} -->")
        assert NOTE not in pull.body
        assert f"digest `{world.digest()}`" in pull.body
        assert pull.title == title

        # An attempt from a newer commit brings that commit along and shows only its own change. A title that the note
        # gives replaces the one that stands.
        before = pull.head_sha
        world.commit({"news.txt": "something else\n"})
        newer = world.git("rev-parse", "main").strip()
        third = await attempt(world)
        await approve_again(world, title=" --title 'Better words'")
        assert world.git("log", "-1", "--format=%P", pull.head_sha).split() == [before, newer]
        assert f"+{third}" in show(world, pull)
        assert "news.txt" not in show(world, pull)
        assert pull.title == "Better words"


async def update_once(world: World, *lost: str) -> None:
    """Approve another attempt. GitHub's answers to the updates of these paths are lost."""
    (pull,) = world.pulls()
    before = pull.head_sha
    await attempt(world)
    for path in lost:
        world.github.faults.add("PATCH", f"/repos/{NAME}/{path}", "lose_answer")
    await approve_again(world)
    assert world.git("rev-list", "--count", f"{before}..{pull.head_sha}").strip() == "1"
    assert pull.body.count(SECOND_NOTE) == 1


async def test_an_update_comes_once_and_leaves_what_people_wrote_and_pushed(tmp_path: Path) -> None:
    async with open_pull_world(tmp_path) as (world, pull):
        body = pull.body.replace(NOTE, f"{NOTE}\r\n\r\nPlease wait for the release.")
        await world.github.edit_issue(NAME, pull.number, by="maintainer", title="My own words", body=body)
        await update_once(world, f"pulls/{pull.number}")
        assert pull.title == "My own words"
        assert pull.body.startswith(
            f"**@maintainer wrote:**\n\n{SECOND_NOTE}\n\nPlease wait for the release.\n\n<!-- ptq:pull="
        )
        assert pull.body.count("<!-- ptq:pull=") == pull.body.count("Fixes #1") == 1

        # If the hidden line was deleted, the earlier body is dropped.
        earlier = world.digest()
        body = pull.body.replace(f"<!-- ptq:pull={(await world.jobs())[0].id} -->", "Please wait.")
        await world.github.edit_issue(NAME, pull.number, by="maintainer", title=pull.title, body=body)
        await update_once(world, f"git/refs/heads/{pull.head}", f"pulls/{pull.number}")
        await world.wait_for_reply("ptq-bot's hidden marker was missing from the description")
        newest = (await world.jobs())[0].id
        assert pull.body.startswith(f"**@maintainer wrote:**\n\n{SECOND_NOTE}\n\n<!-- ptq:pull={newest} -->")
        assert f"digest `{earlier}`" not in pull.body

        # Nothing is pushed to a branch that somebody else has pushed to.
        identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        tree = f"{pull.head_sha}^{{tree}}"
        theirs = world.git(*identity, "commit-tree", "-m", "mine", "-p", pull.head_sha, tree).strip()
        world.git("update-ref", f"refs/heads/{pull.head}", theirs)
        body = pull.body
        await attempt(world)
        note = f"/ptq pr {world.digest()}\n\n{SECOND_NOTE}"
        await world.comment(note)
        await world.wait_for_reply(f"somebody else has pushed to pull request #{pull.number}, so it was not changed")
        assert world.git("rev-parse", pull.head).strip() == theirs
        assert pull.body == body
        await world.github.close_issue(NAME, pull.number, by="maintainer")
        await world.comment(note)
        await world.wait_for_reply("Draft pull request #", 2)
        assert [one.state for one in world.pulls()] == ["closed", "open"]
