"""A change is brought onto newer commits: by git alone, by an agent where that meets conflicts, or by people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from github_standin import Pull
from runner.model.job import Job
from tests.stories.test_follow_ups import bring_again
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

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


NEVER = agent("raise SystemExit('no agent is to run')")
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


@pytest.fixture
async def quiet(tmp_path: Path) -> AsyncIterator[World]:
    """A diff that stands, and an agent that must not be asked about a rebase."""
    async with open_world(tmp_path, agent=NEVER) as world:
        await fix(world)
        yield world


async def rebase(world: World, words: str = "") -> Job:
    """The last job, once its report is there."""
    await world.comment(f"/ptq rebase {words}".strip())
    await world.wait_for_report(len(world.reports()) + 1)
    return (await world.jobs())[0]


async def test_without_conflicts_git_alone_rebases_and_a_note_updates_the_open_pull_request(quiet: World) -> None:
    first, digest = (await quiet.jobs())[0], quiet.digest()
    pull = await approve(quiet, "Once.")
    before = pull.head_sha
    chunks = quiet.git("show", "main:widgets/chunks.py")
    quiet.commit({"news.txt": "something else\n", "widgets/chunks.py": f"# A comment.\n{chunks}"})
    job = await rebase(quiet)
    report = quiet.reports()[-1]
    assert (job.preset, job.state, job.attempt, job.follows) == ("rebase", "succeeded", 2, first.id)
    assert (job.base_commit, job.conflicts, job.started_at) == (newest(quiet), (), None)
    assert f"rebased from `{(first.base_commit or '')[:10]}` onto `{newest(quiet)[:10]}` of `main` without" in report
    assert "those of attempt 1" in report
    assert "### Fix staged" in report
    assert "It is mended." in report
    assert "looked, found, mended" in report
    assert "· no agent ·" in report
    assert quiet.digest() != digest
    assert pull.head_sha == before, "nothing is pushed without a note"
    await quiet.comment(f"/ptq pr {quiet.digest()}\n\n{NOTE} And it is on the newest commit.")
    await quiet.wait_for_reply(f"Pull request #{pull.number} now has this diff")
    await quiet.settle()
    assert quiet.git("log", "-1", "--format=%P", pull.head_sha).split() == [before, newest(quiet)]
    shown = quiet.git("diff", f"main...{pull.head_sha}")
    assert "news.txt" not in shown
    assert "A comment" not in "".join(line for line in shown.splitlines() if line.startswith(("+", "-")))
    assert "was written by a coding agent, `script`, and rebased on base" in pull.body
    assert "Written by a coding agent (script)." in quiet.git("log", "-1", "--format=%B", pull.head_sha)


async def test_a_rebase_comes_once_however_often_it_is_delivered_and_dies_with_no_crash(quiet: World) -> None:
    quiet.commit({"news.txt": "something else\n"})
    await quiet.comment("/ptq rebase")
    await quiet.wait_for_job("queued")
    await quiet.playground.stop_service()
    await quiet.playground.start_service()
    await quiet.wait_for_report(2)
    await bring_again(quiet)
    assert [job.preset for job in await quiet.jobs()] == ["rebase", "fix"]
    assert len(quiet.reports()) == len(quiet.statuses()) == 2


async def test_what_is_in_the_base_branch_already_leaves_nothing_to_approve(quiet: World) -> None:
    chunks = quiet.git("show", "main:widgets/chunks.py")
    quiet.commit({"widgets/chunks.py": chunks.replace(" - size + 1", "")})
    job = await rebase(quiet)
    assert job.state == "succeeded"
    assert f"`{newest(quiet)[:10]}` of `main` already contains all changes of attempt 1" in quiet.reports()[-1]
    assert "/ptq pr" not in quiet.reports()[-1]
    assert "already contains this change" in quiet.reports()[-1]


async def test_onto_another_branch_it_gets_a_pull_request_of_its_own(quiet: World) -> None:
    pull = await approve(quiet, "Once.")
    quiet.git("branch", "release/2.5", "main")
    quiet.commit({"news.txt": "something else\n"})
    job = await rebase(quiet, "onto release/2.5")
    assert (job.base_branch, job.base_commit) == ("release/2.5", newest(quiet, "release/2.5"))
    await quiet.comment(f"/ptq pr {quiet.digest()}\n\n{NOTE} It is wanted there, too.")
    await quiet.wait_for_reply("Draft pull request #", 2)
    await quiet.settle()
    assert [(one.state, one.base) for one in quiet.pulls()] == [("open", "main"), ("open", "release/2.5")]
    assert pull.head != quiet.pulls()[1].head


async def test_onto_a_commit_it_is_that_one_even_if_the_branch_goes_on(quiet: World) -> None:
    quiet.commit({"news.txt": "one\n"})
    wanted = newest(quiet)
    quiet.commit({"news.txt": "two\n"})
    job = await rebase(quiet, f"--agent script onto `{wanted.upper()}` and mind the news")
    assert (job.base_branch, job.base_commit, job.state) == ("main", wanted, "succeeded")
    assert "and mind the news\n</steering" in job.prompt


async def test_what_makes_no_sense_starts_nothing_and_is_answered_once(quiet: World) -> None:
    quiet.git("branch", "else", "main")
    strange = quiet.git(
        *("-c", "user.name=Ann", "-c", "user.email=ann@example.org"), "commit-tree", "-m", "x", "main^{tree}"
    ).strip()
    refused = ("onto", "onto nowhere", "onto ../evil", "onto refs/heads/$(x)", f"onto {'1' * 40}", f"onto {strange}")
    for count, words in enumerate(refused, 1):
        await quiet.comment(f"/ptq rebase {words}")
        assert "evil" not in await quiet.wait_for_reply("`onto` needs the name of an existing branch", count)
    for count, words in enumerate(("", f"onto {newest(quiet)}", "onto main"), 1):
        await quiet.comment(f"/ptq rebase {words}")
        assert f"already based on commit `{newest(quiet)[:10]}` of `main`" in await quiet.wait_for_reply(
            "nothing to rebase", count
        )
    before = len(quiet.replies())
    await bring_again(quiet)
    assert len(quiet.replies()) == before
    assert len(await quiet.jobs()) == 1


async def test_without_a_diff_there_is_nothing_to_rebase(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT) as world:
        await world.open_issue()
        await world.comment("/ptq rebase")
        await world.wait_for_reply("There is no diff to rebase")
        await world.label()
        await world.wait_for_report()
        await world.comment("/ptq rebase")
        await world.wait_for_reply("There is no diff to rebase", 2)
        assert len(await world.jobs()) == 1


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


@pytest.mark.timeout(300)
async def test_after_three_agents_that_left_conflicts_one_report_says_that_a_human_is_needed(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=agent(LEAVE)) as world:
        await fix(world)
        digest = world.digest()
        touch_same_lines(world)
        await world.comment("/ptq rebase")
        for attempt in (2, 3):
            await world.wait_for_reply(f"attempt {attempt}: unresolved conflicts; ")
        await world.wait_for_report(2)
        jobs = await world.jobs()
        assert [(job.preset, job.state, job.attempt) for job in jobs] == [
            *(("rebase", "failed", number) for number in (4, 3, 2)),
            ("fix", "succeeded", 1),
        ]
        assert {job.base_commit for job in jobs[:3]} == {newest(world)}
        assert {job.follows for job in jobs[:3]} == {jobs[3].id}
        assert len(world.reports()) == 2
        assert [("tries again" in status) for status in world.statuses()] == [False, True, True, False]
        report = world.reports()[-1]
        assert "### Needs a human" in report
        assert "⛔ conflicts are left in `widgets/chunks.py`" in report
        assert "Resolve conflicts in these files:\n\n- `widgets/chunks.py`\n" in report
        assert "Run `/ptq takeover`, resolve them" in report
        assert "/ptq pr" not in report
        await bring_again(world)
        assert len(await world.jobs()) == 4
        assert len(world.reports()) == 2
        await world.comment("/ptq retry")
        await world.wait_for_report(3)
        assert (await world.jobs())[0].follows == jobs[3].id, "what was to be rebased stands as it did"
        assert world.digest() == digest


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("(output / 'report.md').unlink()", "the agent ended without writing a report"),
        ("print('at work', flush=True); time.sleep(60)", "### Cancelled"),
        ("sys.exit(3)", "exited with status 3"),
    ],
)
async def test_what_ends_in_another_way_is_not_tried_again(tmp_path: Path, deed: str, words: str) -> None:
    async with open_world(tmp_path, agent=agent(deed)) as world:
        await fix(world)
        touch_same_lines(world)
        await world.comment("/ptq rebase")
        if "Cancelled" in words:
            job = await world.wait_for_job("running")
            await world.wait_for_log(job.id, b"at work")
            await world.comment("/ptq cancel")
        assert words in await world.wait_for_report(2)
        assert len(await world.jobs()) == 2


async def test_a_repository_that_allows_other_presets_alone_is_obeyed(quiet: World) -> None:
    quiet.commit({".github/ptq.toml": 'presets = ["fix"]\n'})
    await quiet.comment("/ptq rebase")
    assert "`/ptq fix`" in await quiet.wait_for_reply("Not started")
    await quiet.settle()
    assert len(await quiet.jobs()) == 1
