"""A person takes a job over, works in its environment by SSH, and hands it back: told with OpenSSH's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from bot.config.settings import load_settings
from bot.operations.holds import list_holds, release, take_over
from handlers.holds.manual_jobs import HoldRefused
from runner.db.schema import reports
from runner.rows import job_rows
from runner.rows.holds import fetch_holds, save_hold
from tests.support.machines import find_or_skip_sshd
from tests.support.people import come, find_way_in, make_key, work
from tests.support.sshd import OpenSshServer
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

AGENT = WRITE_REPORT + FIX + "print('at work', flush=True)\ntime.sleep(60)\n"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An installation whose machine is behind OpenSSH's server, and an agent that is at work."""
    server = OpenSshServer(tmp_path / "sshd", find_or_skip_sshd(), tmp_path / "account")
    (tmp_path / "account").mkdir()
    await server.start()
    async with open_world(tmp_path, agent=AGENT, ssh=server) as world:
        await world.open_issue()
        await world.label()
        job = await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"at work")
        yield world
    await server.stop()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path)


async def take(world: World, key: Path, hours: float = 1.0) -> str:
    """The command line by which the person enters."""
    (job,) = [job for job in await world.jobs() if job.attempt == 1]
    said = await take_over(load_settings(world.playground.config), job.id, key, hours=hours, by="casey")
    return find_way_in(said)


def keys(world: World) -> str:
    return (world.playground.folder / "account" / ".ssh" / "authorized_keys").read_text()


async def test_what_a_person_did_by_hand_comes_as_the_next_attempt(world: World, key: Path, tmp_path: Path) -> None:
    settings, (job,) = load_settings(world.playground.config), await world.jobs()
    for hours, by in ((0, "casey"), (1000, "casey"), (1, "casey\n")):
        with pytest.raises(HoldRefused):
            await take_over(settings, job.id, key, hours=hours, by=by)
    with pytest.raises(HoldRefused, match="cannot be read"):
        await take_over(settings, job.id, tmp_path / "nothing", hours=1, by="casey")
    with pytest.raises(HoldRefused, match="not a line of kind"):
        await take_over(settings, job.id, key.with_suffix(""), hours=1, by="casey")

    # The machine refuses a key that its account has already. It takes the same key once the account has it no longer.
    file = world.playground.folder / "account" / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    file.write_text(key.read_text())
    said = await take_over(settings, job.id, key, hours=1, by="casey")
    assert "this SSH key already gives access to the machine's account" in said
    assert "trouble: the machine says: this SSH key already gives access" in await list_holds(settings)
    file.write_text("")

    command = await take(world, key)
    first = await world.wait_for_job("cancelled")
    await world.wait_for_reply("<!-- ptq:report=")
    assert "### Cancelled: fix staged" in world.reports()[0]
    seen = await asyncio.to_thread(work, world, command)
    assert f"# Job {first.id}" in seen
    assert "looked, found, fixed" in seen
    assert "python -m unittest" in seen
    assert f"- commit: {first.base_commit}\n" in seen
    assert await world.leases() == 1, "the slot stays taken"

    said = await release(settings, first.id)
    report = await world.wait_for_report(2)
    (second, _) = await world.jobs()
    assert second.id in said
    assert (second.state, second.follows, second.adopts) == ("succeeded", first.id, first.id)
    assert (second.requested_by, second.base_commit) == ("casey", first.base_commit)
    assert "+by hand" in report
    assert "# more" in report
    assert second.facts == first.facts != ()
    assert "**Seen by ptq-bot**, in the environment: " in report
    assert "casey has edited files in this environment" in report
    assert "· by hand ·" in report
    assert "agent `" not in report
    assert not any("The agent will" in body for body in world.statuses())
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    pull = await world.wait_for_pull()
    assert "was written by a coding agent, and edited by casey on base" in (pull.body or "")
    assert "edited by casey." in world.git("log", "--format=%B", "-1", pull.head)
    assert keys(world) == ""
    with pytest.raises(HoldRefused, match="nobody holds this job"):
        await release(settings, first.id)
    assert await list_holds(settings) == "Nobody holds a job.\n"
    person = come(world, command)
    assert await asyncio.to_thread(person.end) == 255


async def test_a_hold_outlives_the_service_and_its_environment_can_be_rebuilt_later(world: World, key: Path) -> None:
    await take(world, key)
    settings = load_settings(world.playground.config)
    await world.playground.stop_service()
    assert "may be entered" in await list_holds(settings)
    await world.playground.start_service()
    command = await take(world, key, hours=0.5)
    await asyncio.to_thread(work, world, command)
    async with world.playground.service.context.db.write() as connection:
        (hold,) = await fetch_holds(connection)
        await save_hold(connection, replace(hold, expires_at=hold.begun_at))
    await world.wait_for_report()
    assert keys(world) == ""
    assert await list_holds(settings) == "Nobody holds a job.\n"
    (first,) = await world.jobs()
    assert not (world.playground.folder / "machine" / "workspace" / "jobs" / first.id).exists()
    async with world.playground.service.context.db.read() as connection:
        events = [what for _, what in await job_rows.fetch_events(connection, first.id)]
    assert "no longer reserved for casey" in events

    # The slot is free and the environment is gone. It is rebuilt, with the agent's edits.
    said_before = len(world.replies())
    command = find_way_in(await take_over(settings, first.id, key, hours=1, by="casey"))
    assert f"octo/widgets~{first.id}" in await list_holds(settings)
    assert len(world.replies()) == said_before, "nobody on GitHub hears of it yet"
    seen = await asyncio.to_thread(work, world, command, "git diff > seen.patch; echo '# more' >> widgets/chunks.py")
    assert f"# Job {first.id}" in seen
    assert "looked, found, fixed" in seen
    assert find_way_in(await take_over(settings, first.id, key, hours=2, by="casey")) == command
    said = await release(settings, first.id)
    report = await world.wait_for_report(2)
    second = (await world.jobs())[0]
    assert f"/jobs/{second.id}" in said
    assert (second.state, second.attempt, second.follows) == ("succeeded", 2, first.id)
    assert "-    for start in range(0, len(items) - size + 1, size):" in report, "the agent's edit"
    assert "+# more" in report
    assert "+by hand" not in report, "the edits of the first hold are gone"

    # The environment of a confidential report is not rebuilt, because a release would publish its edits.
    async with world.playground.service.context.db.write() as connection:
        concern = {"body": "security concern\n\n## Summary\nAnyone can."}
        await connection.execute(update(reports).where(reports.c.job_id == first.id).values(**concern))
    with pytest.raises(HoldRefused, match="its report is confidential"):
        await take_over(settings, first.id, key, hours=1, by="casey")
