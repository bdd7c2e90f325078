"""What a note must be before it opens anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.demo.playground import STRANGER
from github_standin.model.faults import ApiKind
from handlers.text.voice import NOTE_PLACEHOLDER
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An issue on which a diff waits for a note."""
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        yield world


async def refused(world: World, comment: str, words: str, by: str = "maintainer") -> None:
    before = world.replies()
    await world.comment(comment, by=by)
    await world.settle()
    (reply,) = await world.wait(lambda: world.replies()[len(before) :] or None, "the refusal")
    assert reply.startswith("<!-- ptq:reply=")
    assert words in reply, reply
    assert world.pulls() == []


async def test_everything_that_is_no_human_note_is_refused_with_the_reason(world: World) -> None:
    await refused(world, f"/ptq pr {world.digest()}", "own words")
    await refused(world, f"/ptq pr {world.digest()}\n\nlgtm!", "needs 30")
    await refused(world, f"/ptq pr {world.digest()}\n\n{NOTE_PLACEHOLDER}", "repeats our template")
    await refused(world, f"/ptq pr 000000000000\n\n{NOTE}", world.digest())
    copied = "It is mended. An early end. It is mended. An early end. looked, found, mended."
    await refused(world, f"/ptq pr {world.digest()}\n\n{copied}", "report")
    await refused(world, f"/ptq pr {world.digest()}\n\n{NOTE}", "write access", by=STRANGER)


async def test_a_bots_note_opens_nothing_and_gets_no_answer_for_bots_talk_to_each_other(world: World) -> None:
    world.github.add_user("other[bot]", type="Bot")
    world.github.set_permission("octo/widgets", "other[bot]", "admin")
    before = world.replies()
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}", by="other[bot]")
    await world.settle()
    assert (world.pulls(), world.replies()) == ([], before)


async def test_a_note_without_a_digest_means_the_report_that_stood_when_it_was_written(world: World) -> None:
    await world.comment(f"/ptq pr\n\n{NOTE}")
    pull = await world.wait_for_pull()
    assert pull.body.startswith(f"**@maintainer wrote:**\n\n{NOTE}")


async def test_a_note_without_a_digest_does_not_mean_a_report_that_came_after_it(world: World) -> None:
    first = world.digest()
    world.github.faults.add_webhook("issue_comment.created", "drop")
    await world.comment(f"/ptq pr\n\n{NOTE}")
    lost = world.github.deliveries[-1].guid
    await asyncio.sleep(1.1)  # GitHub's times are whole seconds.
    await world.comment("/ptq fix")
    await world.wait_for_report(2)
    assert world.digest() == first, "the very same diff, and yet another report"
    await world.github.redeliver(lost)
    await world.wait_for_reply("the newest report at that time is not the one")
    assert world.pulls() == []


async def test_a_note_without_a_digest_does_not_mean_a_report_that_was_posted_after_a_newer_one(world: World) -> None:
    await world.comment("/ptq diagnose")
    await world.wait_for_report(2)
    before = world.pulls()
    await world.comment(f"/ptq pr\n\n{NOTE}")
    await world.wait_for_reply("Your comment has no digest")
    assert world.pulls() == before == []


async def test_a_title_of_ones_own_stands_on_the_pull_request_and_its_commit_and_never_in_the_note(
    world: World,
) -> None:
    await refused(world, f"/ptq pr {world.digest()} --title\n\n{NOTE}", "needs a title in quotes")
    await refused(world, f"/ptq pr {world.digest()} --titel 'Keep it'\n\n{NOTE}", "Unknown option `--titel`")
    await world.comment(f"/ptq pr {world.digest()} —title “Keep @{STRANGER}’s last row” \n\n{NOTE}")
    pull = await world.wait_for_pull()
    assert pull.title == f"Keep {STRANGER}’s last row"
    assert world.git("log", "-1", "--format=%s", pull.head_sha).strip() == pull.title
    assert pull.body.startswith(f"**@maintainer wrote:**\n\n{NOTE}\n")


async def test_two_maintainers_who_answer_at_once_open_one_pull_request(world: World) -> None:
    world.github.add_user("second")
    world.github.set_permission("octo/widgets", "second", "admin")
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    await world.comment(
        f"/ptq pr {world.digest()}\n\nI read it too, and the loop is right now for every length.", by="second"
    )
    await world.wait_for_pull()
    await world.settle()
    assert len(world.pulls()) == 1
    assert "@maintainer" in world.pulls()[0].body


async def test_a_second_note_after_the_pull_request_names_it(world: World) -> None:
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    pull = await world.wait_for_pull()
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    await world.wait_for_reply(f"Pull request #{pull.number} already contains this diff")
    assert len(world.pulls()) == 1


async def test_a_note_for_an_older_diff_is_stale_once_a_newer_one_stands(tmp_path: Path) -> None:
    differently = "pathlib.Path('attempt.txt').write_text(os.environ['PTQ_JOB_ID'])\n"
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX + differently) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        first = world.digest()
        await world.comment("/ptq fix and mention it in the readme")
        await world.wait_for_report(2)
        assert world.digest() != first
        await refused(world, f"/ptq pr {first}\n\n{NOTE}", f"`/ptq pr {world.digest()}`")


@pytest.mark.parametrize(
    ("method", "path", "fault"),
    [
        ("POST", "/repos/octo/widgets/pulls", "lose_answer"),
        ("POST", "/repos/octo/widgets/git/refs", "lose_answer"),
        ("POST", "/repos/octo/widgets/git/commits", "lose_answer"),
        ("POST", "/repos/octo/widgets/git/trees", 502),
        ("POST", "/repos/octo/widgets/pulls", 500),
        ("GET", "/repos/octo/widgets/pulls", 503),
    ],
)
async def test_a_fault_on_the_way_opens_the_pull_request_once_all_the_same(
    world: World, method: str, path: str, fault: ApiKind
) -> None:
    world.github.faults.add(method, path, fault)
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    await world.wait_for_pull()
    await world.settle()
    assert len(world.pulls()) == 1
    assert len([body for body in world.replies() if "Draft pull request" in body]) == 1
