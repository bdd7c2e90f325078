"""What a note must be before it opens anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bot.demo.playground import STRANGER
from handlers.text.voice import NOTE_PLACEHOLDER
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, as_told, open_world

pytestmark = pytest.mark.slow


async def open_standing_diff(world: World) -> None:
    """An issue on which a diff waits for a note."""
    await world.open_issue()
    await world.label()
    await world.wait_for_report()


async def refused(world: World, comment: str, words: str, by: str = "maintainer") -> None:
    before = world.replies()
    await world.comment(comment, by=by)
    await world.settle()
    (reply,) = await world.wait(lambda: world.replies()[len(before) :] or None, "the refusal")
    assert reply.startswith("<!-- ptq:reply=")
    assert words in reply, reply
    assert world.pulls() == []


async def test_what_is_no_human_note_is_refused_with_the_reason_and_a_good_one_opens_one_pull_request(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await open_standing_diff(world)
        pr = f"/ptq pr {world.digest()}"
        await refused(world, pr, "own words")
        await refused(world, f"{pr}\n\nlgtm!", "needs 30")
        await refused(world, f"{pr}\n\n{NOTE_PLACEHOLDER}", "repeats our template")
        await refused(world, f"/ptq pr 000000000000\n\n{NOTE}", world.digest())
        copied = "It is fixed. An early end. It is fixed. An early end. looked, found, fixed."
        await refused(world, f"{pr}\n\n{copied}", "report")
        await refused(world, f"{pr}\n\n{NOTE}", "write access", by=STRANGER)
        await refused(world, f"{pr} --title\n\n{NOTE}", "needs a title in quotes")
        await refused(world, f"{pr} --titel 'Keep it'\n\n{NOTE}", "Unknown option `--titel`")

        world.github.add_user("other[bot]", type="Bot")
        world.github.set_permission("octo/widgets", "other[bot]", "admin")
        before = world.replies()
        await world.comment(f"{pr}\n\n{NOTE}", by="other[bot]")
        await world.settle()
        assert (world.pulls(), world.replies()) == ([], before), "bots that talk to each other get no answer"

        for path in ("git/refs", "pulls"):
            world.github.faults.add("POST", f"/repos/octo/widgets/{path}", "lose_answer")
        await world.comment(f"{pr} —title “Keep @{STRANGER}’s last row” \n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert pull.title == f"Keep {STRANGER}’s last row"
        assert world.git("log", "-1", "--format=%s", pull.head_sha).strip() == pull.title
        assert pull.body.startswith(f"**@maintainer wrote:**\n\n{NOTE}\n"), "a title is never in the note"

        await world.comment(f"{pr}\n\n{NOTE}")
        await world.wait_for_reply(f"Pull request #{pull.number} already contains this diff")
        assert len(world.pulls()) == 1
        assert len([body for body in world.replies() if "Draft pull request" in body]) == 1


async def test_a_note_without_a_digest_means_the_report_that_stood_and_of_two_notes_at_once_one_counts(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await open_standing_diff(world)
        world.github.add_user("second")
        world.github.set_permission("octo/widgets", "second", "admin")
        await world.comment(f"/ptq pr\n\n{NOTE}")
        too = "I read it too, and the loop is right now for every length."
        await world.comment(f"/ptq pr {world.digest()}\n\n{too}", by="second")
        await world.wait_for_pull()
        await world.settle()
        (pull,) = world.pulls()
        assert pull.body.startswith(f"**@maintainer wrote:**\n\n{NOTE}")


async def test_a_note_counts_for_no_other_report_than_the_one_that_its_author_read(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX + as_told(tmp_path)) as world:
        world.tell_agents("")
        await open_standing_diff(world)
        first = world.digest()
        world.github.faults.add_webhook("issue_comment.created", "drop")
        await world.comment(f"/ptq pr\n\n{NOTE}")
        lost = world.github.deliveries[-1].guid
        await asyncio.sleep(1.1)  # GitHub's times are whole seconds.
        await world.comment("/ptq fix")
        await world.wait_for_report(2)
        assert world.digest() == first, "the very same diff, and yet another report"
        await world.github.redeliver(lost)
        await world.wait_for_reply("the newest report was not the one")
        assert world.pulls() == []

        await world.comment("/ptq diagnose")
        await world.wait_for_report(3)
        await world.comment(f"/ptq pr\n\n{NOTE}")
        await world.wait_for_reply("Your comment has no digest")
        assert world.pulls() == []

        world.tell_agents("pathlib.Path('attempt.txt').write_text(os.environ['PTQ_JOB_ID'])")
        await world.comment("/ptq fix and mention it in the readme")
        await world.wait_for_report(4)
        assert world.digest() != first
        await refused(world, f"/ptq pr {first}\n\n{NOTE}", f"`/ptq pr {world.digest()}`")
