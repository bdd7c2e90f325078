"""A change is brought onto newer commits: by git alone, by an agent where that meets conflicts, or by people."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bot.demo.playground import DIAGNOSE_LABEL
from github_standin import Pull
from runner.model.job import Job
from tests.stories.test_follow_ups import bring_again
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, as_told, open_world

pytestmark = pytest.mark.slow

RESOLVE = """
import re
path = pathlib.Path("widgets/chunks.py")
(output / "worklog.md").write_text("in conflict: " + (output / "conflicts.txt").read_text())
text = re.sub("<<<<<<< onto\\n(.*?)[|]{7}.*?=======\\n(.*?)>>>>>>> change\\n", "\\\\1", path.read_text(), flags=re.S)
path.write_text(text.replace(" - size + 1", ""))
"""
LEAVE = "(pathlib.Path('attempt.txt')).write_text('tried\\n')\n"


def agent(on_rebase: str) -> str:
    """One that fixes the bug, and does something else about conflicts."""
    indented = on_rebase.strip("\n").replace("\n", "\n    ")
    return f"{WRITE_REPORT}if os.environ['PTQ_PRESET'] == 'rebase':\n    {indented}\nelse:\n    {FIX}"


NEVER = "import os, sys\nif os.environ['PTQ_PRESET'] == 'rebase': sys.exit('no agent is to run')\n" + (
    f"{WRITE_REPORT}if os.environ['PTQ_PRESET'] == 'fix':\n    {FIX}"
)
RENAMED = "for first in range(0, len(items) - size + 1, size):\n        yield items[first : first + size]"
BEFORE = "for start in range(0, len(items) - size + 1, size):\n        yield items[start : start + size]"


async def fix(world: World) -> None:
    """A first attempt, whose diff stands."""
    await world.open_issue()
    await world.label()
    await world.wait_for_report()


def newest(world: World, branch: str = "main") -> str:
    return world.git("rev-parse", branch).strip()


def touch_same_lines(world: World) -> None:
    """Let the base branch change what the fix changes."""
    world.commit({"widgets/chunks.py": world.git("show", "main:widgets/chunks.py").replace(BEFORE, RENAMED)})


async def approve(world: World, words: str) -> Pull:
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE} {words}")
    pull = await world.wait_for_pull()
    await world.settle()
    return pull


async def rebase(world: World, words: str = "") -> Job:
    """The last job, once its report is there."""
    await world.comment(f"/ptq rebase {words}".strip())
    await world.wait_for_report(len(world.reports()) + 1)
    return (await world.jobs())[0]


async def test_without_conflicts_git_alone_rebases_and_a_note_updates_the_open_pull_request(tmp_path: Path) -> None:
    """Once, however often it is delivered, and also if the service is restarted meanwhile."""
    async with open_world(tmp_path, agent=NEVER) as world:
        await fix(world)
        first, digest = (await world.jobs())[0], world.digest()
        pull = await approve(world, "Once.")
        before = pull.head_sha
        chunks = world.git("show", "main:widgets/chunks.py")
        world.commit({"news.txt": "something else\n", "widgets/chunks.py": f"# A comment.\n{chunks}"})
        await world.comment("/ptq rebase")
        while len(await world.jobs()) < 2:  # It may be further than queued by the time we look.
            await asyncio.sleep(0.01)
        await world.playground.stop_service()
        await world.playground.start_service()
        await world.wait_for_report(2)
        await bring_again(world)
        assert [job.preset for job in await world.jobs()] == ["rebase", "fix"]
        assert len(world.reports()) == len(world.statuses()) == 2
        job, report = (await world.jobs())[0], world.reports()[-1]
        assert (job.preset, job.state, job.attempt, job.follows) == ("rebase", "succeeded", 2, first.id)
        assert (job.base_commit, job.conflicts, job.started_at) == (newest(world), (), None)
        assert (
            f"rebased from `{(first.base_commit or '')[:10]}` onto `{newest(world)[:10]}` of `main` without" in report
        )
        assert "those of attempt 1" in report
        assert "### Fix staged" in report
        assert "It is fixed." in report
        assert "looked, found, fixed" in report
        assert "· no agent ·" in report
        assert world.digest() != digest
        assert pull.head_sha == before, "nothing is pushed without a note"
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE} And it is on the newest commit.")
        await world.wait_for_reply(f"Pull request #{pull.number} now has this diff")
        await world.settle()
        assert world.git("log", "-1", "--format=%P", pull.head_sha).split() == [before, newest(world)]
        shown = world.git("diff", f"main...{pull.head_sha}")
        assert "news.txt" not in shown
        assert "A comment" not in "".join(line for line in shown.splitlines() if line.startswith(("+", "-")))
        assert "was written by a coding agent, `script`, and rebased on base" in pull.body
        assert "Written by a coding agent (script)." in world.git("log", "-1", "--format=%B", pull.head_sha)

        # A rebase onto another branch gets a pull request of its own.
        world.git("branch", "release/2.5", first.base_commit or "")
        world.commit({"news.txt": "something else again\n"})
        job = await rebase(world, "onto release/2.5")
        assert (job.base_branch, job.base_commit) == ("release/2.5", newest(world, "release/2.5"))
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE} It is wanted there, too.")
        await world.wait_for_reply("Draft pull request #", 2)
        await world.settle()
        assert [(one.state, one.base) for one in world.pulls()] == [("open", "main"), ("open", "release/2.5")]
        assert pull.head != world.pulls()[1].head


async def test_a_rebase_goes_onto_the_named_commit_and_leaves_nothing_to_approve_if_the_change_is_there(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path, agent=NEVER) as world:
        await world.open_issue()
        await world.comment("/ptq rebase")
        await world.wait_for_reply("There is no diff to rebase")
        await world.label(DIAGNOSE_LABEL)
        await world.wait_for_report()
        await world.comment("/ptq rebase")
        await world.wait_for_reply("There is no diff to rebase", 2)
        assert len(await world.jobs()) == 1
        await world.label()
        await world.wait_for_report(2)

        # A request without a sensible target starts nothing and is answered once.
        world.git("branch", "else", "main")
        strange = world.git(
            *("-c", "user.name=Ann", "-c", "user.email=ann@example.org"), "commit-tree", "-m", "x", "main^{tree}"
        ).strip()
        refused = (
            "onto",
            "onto nowhere",
            "onto ../evil",
            "onto refs/heads/$(x)",
            f"onto {'1' * 40}",
            f"onto {strange}",
        )
        for count, words in enumerate(refused, 1):
            await world.comment(f"/ptq rebase {words}")
            assert "evil" not in await world.wait_for_reply("`onto` needs the name of an existing branch", count)
        for count, words in enumerate(("", f"onto {newest(world)}", "onto main"), 1):
            await world.comment(f"/ptq rebase {words}")
            assert f"already based on commit `{newest(world)[:10]}` of `main`" in await world.wait_for_reply(
                "nothing to rebase", count
            )
        before = len(world.replies())
        await bring_again(world)
        assert len(world.replies()) == before
        assert len(await world.jobs()) == 2

        # The named commit is the new base, even if its branch has a newer one.
        world.commit({"news.txt": "one\n"})
        wanted = newest(world)
        world.commit({"news.txt": "two\n"})
        job = await rebase(world, f"--agent script onto `{wanted.upper()}` and mind the news")
        assert (job.base_branch, job.base_commit, job.state) == ("main", wanted, "succeeded")
        assert "and mind the news\n</steering" in job.prompt

        # A repository may allow only other presets.
        world.commit({".github/ptq.toml": 'presets = ["fix"]\n'})
        refusals = sum("Not started" in reply for reply in world.replies())
        await world.comment("/ptq rebase")
        assert "`/ptq fix`" in await world.wait_for_reply("Not started", refusals + 1)
        await world.settle()
        assert len(await world.jobs()) == 3

        chunks = world.git("show", "main:widgets/chunks.py")
        world.commit({"widgets/chunks.py": chunks.replace(" - size + 1", ""), ".github/ptq.toml": ""})
        job = await rebase(world)
        assert job.state == "succeeded"
        assert f"`{newest(world)[:10]}` of `main` already contains all changes of attempt 3" in world.reports()[-1]
        assert "/ptq pr" not in world.reports()[-1]
        assert "already contains this change" in world.reports()[-1]


@pytest.mark.timeout(300)
async def test_conflicts_are_left_to_an_agent_and_after_three_of_them_a_human_is_needed(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=agent(as_told(tmp_path))) as world:
        await fix(world)
        (first,), digest = await world.jobs(), world.digest()
        touch_same_lines(world)

        # Without a report, and after a cancel, no other agent tries.
        world.tell_agents("(output / 'report.md').unlink()")
        await world.comment("/ptq rebase")
        assert "the agent ended without writing a report" in await world.wait_for_report(2)
        world.tell_agents("print('at work', flush=True); time.sleep(60)")
        await world.comment("/ptq rebase")
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"at work")
        await world.comment("/ptq cancel")
        assert "### Cancelled" in await world.wait_for_report(3)
        assert len(await world.jobs()) == 3

        world.tell_agents(LEAVE)
        await world.comment("/ptq rebase")
        for attempt in (4, 5):
            await world.wait_for_reply(f"attempt {attempt}: unresolved conflicts; ")
        await world.wait_for_report(4)
        jobs = (await world.jobs())[:3]
        assert [(job.preset, job.state, job.attempt) for job in jobs] == [
            ("rebase", "failed", number) for number in (6, 5, 4)
        ]
        assert {job.base_commit for job in jobs} == {newest(world)}
        assert {job.follows for job in jobs} == {first.id}
        assert len(world.reports()) == 4
        assert [("tries again" in status) for status in world.statuses()] == [False, False, False, True, True, False]
        report = world.reports()[-1]
        assert "### Needs a human" in report
        assert "⛔ conflicts are left in `widgets/chunks.py`" in report
        assert "Resolve conflicts in these files:\n\n- `widgets/chunks.py`\n" in report
        assert "Run `/ptq takeover`, resolve them" in report
        assert "/ptq pr" not in report
        await bring_again(world)
        assert len(await world.jobs()) == 6
        assert len(world.reports()) == 4
        await world.comment("/ptq retry")
        await world.wait_for_report(5)
        assert (await world.jobs())[0].follows == first.id, "what was to be rebased stands as it did"
        assert world.digest() == digest


async def test_conflicts_are_resolved_by_an_agent_whose_report_and_diff_are_new(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=agent(RESOLVE)) as world:
        await fix(world)
        touch_same_lines(world)
        job = await rebase(world)
        report = world.reports()[-1]
        assert (job.state, job.conflicts, job.attempt) == ("succeeded", ("widgets/chunks.py",), 2)
        assert "conflicts in `widgets/chunks.py` were left to the agent" in report
        assert "in conflict: widgets/chunks.py" in report
        assert "agent `script`" in report
        assert "conflicts.txt" in job.prompt
        pull = await approve(world, "Merged with the new name.")
        assert "+    for first in range(0, len(items), size):" in world.git("diff", f"main...{pull.head_sha}")
        await world.comment("/ptq retry")
        await world.wait_for_report(3)
        assert [job.preset for job in await world.jobs()] == ["fix", "rebase", "fix"]
