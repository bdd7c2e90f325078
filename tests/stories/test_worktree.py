"""An environment for a person, without an issue and without an agent, until they give it one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.operations.holds import WAIT_S, list_holds, release
from bot.operations.machines import UnknownMachine
from bot.operations.reports import read_costs, read_report
from bot.operations.worktrees import give_task, make_worktree
from handlers.commands.options import Options
from handlers.holds.manual_jobs import HoldRefused
from runner.model.job import Job
from tests.support.machines import find_or_skip_sshd
from tests.support.people import find_way_in, make_key, work
from tests.support.sshd import OpenSshServer
from tests.support.world import WRITE_REPORT, World, open_world

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

AGENT = WRITE_REPORT + (
    "hand = pathlib.Path('HAND.md'); print(sys.stdin.read() if not sys.stdin.isatty() else '')\n"
    "hand.write_text(hand.read_text() + 'and by an agent\\n')\n"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An installation whose machine is behind OpenSSH's server."""
    server = OpenSshServer(tmp_path / "sshd", find_or_skip_sshd(), tmp_path / "account")
    (tmp_path / "account").mkdir()
    await server.start()
    gone = '[agents.gone]\nkind = "command"\ncommand = ["/nowhere/agent"]\n\n'
    may = 'agents = ["gone"]\nskills = ["graph-breaks", ".claude/skills"]\n'
    async with open_world(tmp_path, agent=AGENT, ssh=server, more_toml=gone, repository_toml=may) as world:
        world.number = await world.open_issue()
        yield world
        assert world.replies() == [], "GitHub hears of none of it"
    await server.stop()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path)


async def make(world: World, key: Path, name: str = "try", ref: str | None = None, wait_s: float = WAIT_S) -> str:
    wanted = {"repository": "octo/widgets", "machine": "gpu-1", "ref": ref, "by": "casey"}
    settings = load_settings(world.playground.config)
    return await make_worktree(settings, name, key, **wanted, hours=1, wait_s=wait_s)  # type: ignore[arg-type]


async def end(world: World) -> Job:
    """The newest job, once it has ended and nothing is held."""
    await world.settle()
    return (await world.jobs())[0]


async def test_what_was_edited_in_a_worktree_is_a_report_of_its_own_and_an_agent_goes_on_from_there(
    world: World, key: Path
) -> None:
    settings = load_settings(world.playground.config)
    command = find_way_in(await make(world, key))
    listed = await list_holds(settings)
    assert "gpu-1  octo/widgets~try  casey" in listed
    assert "may be entered" in listed
    with pytest.raises(HoldRefused, match="there is a worktree try already"):
        await make(world, key)
    seen = await asyncio.to_thread(work, world, command)
    assert "octo/widgets~try, worktree, attempt 1, requested by casey" in seen
    said = await release(settings, "try")
    job = await end(world)
    assert (job.state, job.kind, job.preset) == ("succeeded", "release", "worktree")
    assert f"ptq-bot report {job.id}" in said
    report = await read_report(settings, job.id)
    assert "+by hand" in report
    assert "casey has edited files in this environment. No report was written." in report
    assert "octo/widgets,,casey,worktree,1,," in await read_costs(settings, None, None)

    # Its name is free again. An agent that cannot be started takes nothing away.
    command = find_way_in(await make(world, key))
    await asyncio.to_thread(work, world, command)
    await give_task(settings, "try", "Go on.", Options(agent="gone"))
    job = await world.wait_for_job("failed")
    async with asyncio.timeout(20):
        while "may be entered" not in await list_holds(settings):
            await asyncio.sleep(0.1)
    assert job.id in await list_holds(settings)
    await asyncio.to_thread(work, world, command, "echo again >> HAND.md")
    with pytest.raises(HoldRefused, match="an agent was at work here"):
        await give_task(settings, "try", "Go on.", Options())
    await release(settings, "try")
    report = await read_report(settings, (await end(world)).id)
    assert "+by hand\n+again" in report
    assert await list_holds(settings) == "Nobody holds a job.\n"

    # An agent goes on where the person left off.
    await asyncio.to_thread(work, world, find_way_in(await make(world, key)))
    with pytest.raises(HoldRefused, match="unknown agent; available: script, gone"):
        await give_task(settings, "try", "go on", Options(agent="other"))
    with pytest.raises(HoldRefused, match="a task has 1 to"):
        await give_task(settings, "try", "  ", Options())
    said = await give_task(settings, "try", "Say in HAND.md that you were here.", Options())
    job = await end(world)
    assert (job.state, job.failure, job.preset, job.kind) == ("succeeded", None, "task", "task")
    assert f"script goes on in try as job {job.id}" in said
    report = await read_report(settings, job.id)
    assert "+by hand\n+and by an agent" in report
    assert "+# more" in report
    assert "Say in HAND.md that you were here." in job.prompt
    assert "The project's own skills are installed for you, from `.claude/skills`." in job.prompt
    assert job.skills == ("graph-breaks", ".claude/skills")
    assert await list_holds(settings) == "Nobody holds a job.\n"


async def test_a_worktree_begins_at_any_ref_and_can_be_dropped_while_it_waits(world: World, key: Path) -> None:
    settings = load_settings(world.playground.config)
    old = world.git("rev-parse", "HEAD").strip()
    world.git("branch", "topic")
    world.commit({"later.txt": "later\n"})
    trunk = world.git("rev-parse", "HEAD").strip()
    await make(world, make_key(Path(key.parent, "two")), "topic", "topic")
    (base,) = Path(world.playground.folder, "machine", "workspace", "bases").glob("*/base.json")
    assert json.loads(base.read_text())["commit"] == trunk, (
        "a worktree does not change the commit that other jobs begin from"
    )
    await make(world, key, "newest")
    # Both slots are held: this one waits for the others to be released.
    said = await make(world, make_key(Path(key.parent, "three")), "commit", old, wait_s=0.0)
    assert "you can log in when its environment is ready" in said
    assert "ssh " not in said, "nobody knows the machine yet"
    with pytest.raises(HoldRefused, match="its environment is not ready yet"):
        await release(settings, "commit")
    commits = {job.name: job.base_commit for job in await world.jobs()}
    assert commits == {"newest": trunk, "topic": old, "commit": old}
    skills = {job.name: job.skills for job in await world.jobs()}
    assert skills["newest"] == ("graph-breaks", ".claude/skills")
    assert skills["topic"] == skills["commit"] == ("graph-breaks",), "who knows whose text is there"
    for name in ("commit", "newest", "topic"):
        await release(settings, name, drop=True)
    await world.settle()
    assert {job.name: job.state for job in await world.jobs()} == {
        **dict.fromkeys(("newest", "topic"), "succeeded"),
        "commit": "cancelled",
    }
    assert await list_holds(settings) == "Nobody holds a job.\n"

    # What cannot be made is told, and holds nothing.
    with pytest.raises(HoldRefused, match="the repository has no branch nowhere"):
        await make(world, key, ref="nowhere")
    await world.settle()
    assert await list_holds(settings) == "Nobody holds a job.\n"
    for name, repository, machine, refusal in (
        ("a b", "octo/widgets", "gpu-1", "a name has 1 to 50 letters"),
        ("0123456789", "octo/widgets", "gpu-1", "does not look like a job's id"),
        ("task7", "octo/widgets", "gpu-1", "gives tasks names such as task7 itself"),
        ("try", "octo/other", "gpu-1", "there is no repository 'octo/other'; configured: octo/widgets"),
        ("try", "octo/widgets", "gpu-9", "there is no machine 'gpu-9'; configured: gpu-1"),
    ):
        with pytest.raises((HoldRefused, UnknownMachine), match=refusal):
            await make_worktree(
                settings, name, key, repository=repository, machine=machine, ref=None, hours=1, by="casey"
            )
    assert len(await world.jobs()) == 4
