"""A maintainer takes a job over by a comment, works in its environment by SSH, and gives it back by another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select

from bot.config.settings import load_settings
from bot.demo.playground import MAINTAINER, STRANGER
from bot.operations.deliveries import replay_delivery
from bot.operations.holds import list_holds
from bot.operations.machines import drain_machine, resume_machine
from runner.db.schema import deliveries
from runner.rows import job_rows
from runner.rows.holds import Hold, fetch_holds
from tests.support.lesser_kernel import write_interpreter
from tests.support.machines import find_or_skip_sshd
from tests.support.people import come, make_key, work
from tests.support.sshd import OpenSshServer
from tests.support.world import FIX, SIGNS, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + FIX + "print('at work', flush=True)\ntime.sleep(60)\n"
WIDGETS, COLLEAGUE = "octo/widgets", "colleague"


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the machine's account. A test that fails must not give keys access to the account of the tests."""
    home = tmp_path / "account"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
async def world(tmp_path: Path, account: Path) -> AsyncIterator[World]:
    """An installation whose machine is behind OpenSSH's server, an agent at work, and a maintainer with a key."""
    server = OpenSshServer(tmp_path / "sshd", find_or_skip_sshd(), account)
    await server.start()
    async with open_world(tmp_path, agent=AGENT, ssh=server) as world:
        give_key(world)
        await start(world)
        yield world
        await world.github.settle()
        told = "\n".join(world.replies())
        for secret in ("ssh-ed25519", f"{server.user}@", str(server.port), read_blob(world)):
            assert secret not in told
    await server.stop()


def give_key(world: World, login: str = MAINTAINER) -> None:
    """Let somebody, who may write, have a key on GitHub."""
    key = make_key(world.playground.folder / login)
    world.github.set_permission(WIDGETS, login, "write")
    world.github.add_public_key(login, key.read_text())


def read_blob(world: World, login: str = MAINTAINER) -> str:
    return (world.playground.folder / login / "me.pub").read_text().split()[1]


async def start(world: World) -> None:
    await world.open_issue()
    await world.label()
    job = await world.wait_for_job("running")
    await world.wait_for_log(job.id, b"at work")


async def ask(world: World, command: str, words: str, by: str = MAINTAINER, count: int = 1) -> str:
    """The answer to a command."""
    await world.comment(command, by=by)
    return await world.wait_for_reply(words, count)


async def find_way_in(world: World, login: str = MAINTAINER) -> str:
    """The command by which the person enters, as the operator tells it once their machine lets them in."""
    settings, deadline = load_settings(world.playground.config), time.monotonic() + world.patience_s
    while "may be entered" not in (listed := await list_holds(settings)):
        assert time.monotonic() < deadline, f"never let in: {listed}"
        await asyncio.sleep(0.1)
    (line,) = [line.strip() for line in listed.splitlines() if line.startswith("    ssh ")]
    return line.replace("ssh -t", f"ssh -t -i {world.playground.folder / login / 'me'} -o IdentitiesOnly=yes")


async def holds(world: World) -> list[Hold]:
    async with world.playground.service.context.db.read() as connection:
        return await fetch_holds(connection)


async def deliver_again(world: World, words: str) -> None:
    """Let the comment with these words be worked once more, as if we had died before that was written down."""
    guid = [delivery.guid for delivery in world.github.deliveries if words.encode() in delivery.payload][-1]
    await replay_delivery(load_settings(world.playground.config), guid, force=True)
    deadline, state = time.monotonic() + world.patience_s, "pending"
    while state == "pending":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
        async with world.playground.service.context.db.read() as connection:
            state = (await connection.execute(select(deliveries.c.state).where(deliveries.c.id == guid))).scalar_one()
    assert state == "done"


def keys(world: World) -> str:
    return (world.playground.folder / "account" / ".ssh" / "authorized_keys").read_text()


@pytest.mark.sshd
async def test_a_maintainer_goes_on_by_hand_until_a_colleague_takes_their_place(world: World) -> None:
    give_key(world, COLLEAGUE)
    told = await ask(world, "/ptq takeover", "you have the environment")
    assert f"@{MAINTAINER}, you have the environment of [this job](" in told
    assert "with your GitHub SSH key" in told
    first = await world.wait_for_job("cancelled")
    await world.wait_for_reply("<!-- ptq:report=")
    command = await find_way_in(world)
    (hold,) = await holds(world)
    assert f"{hold.expires_at:%Y-%m-%d %H:%M} UTC" in told
    assert (hold.expires_at - hold.begun_at).total_seconds() == 8 * 3600
    assert "access is ready" in await ask(world, "/ptq status", f"**Reserved for** `{MAINTAINER}`")
    assert f"# Job {first.id}" in await asyncio.to_thread(work, world, command)
    await deliver_again(world, "/ptq takeover")
    assert await holds(world) == [hold]

    # A colleague takes the environment. The answer names the first holder, who has no access any more.
    told = await ask(world, "/ptq takeover", "It was held by", by=COLLEAGUE)
    assert f"@{COLLEAGUE}, you have the environment of [this job](" in told
    assert f"held by `{MAINTAINER}` before" in told
    assert "You can log in within moments" in told
    theirs = await find_way_in(world, COLLEAGUE)
    await asyncio.to_thread(work, world, theirs)
    assert await asyncio.to_thread(come(world, command).end) == 255
    assert "Not released" in await ask(world, "/ptq release dorp", "Nothing else may follow")
    await ask(world, "/ptq release drop", "The edits are discarded")
    await world.settle()
    assert (len(await world.jobs()), keys(world), await holds(world)) == (1, "", [])

    # The environment is gone, so it is rebuilt. A colleague releases it, and its edits are the next attempt.
    told = await ask(world, "/ptq takeover", "The environment is being rebuilt")
    assert ") for 8 hours." in told
    command = await find_way_in(world)
    await asyncio.to_thread(work, world, command, "echo '# more' >> widgets/chunks.py")
    told = await ask(world, "/ptq release", f"Released the environment of `{MAINTAINER}`", by=COLLEAGUE)
    report = await world.wait_for_report(2)
    second = (await world.jobs())[0]
    assert f"[attempt 2](http://127.0.0.1:{world.playground.service_port}/jobs/{second.id})" in told
    assert (second.state, second.follows, second.requested_by) == ("succeeded", first.id, MAINTAINER)
    assert "-    for start in range(0, len(items) - size + 1, size):" in report, "the agent's edit"
    assert "+# more" in report
    assert "+by hand" not in report, "that was discarded"
    assert keys(world) == ""
    assert await asyncio.to_thread(come(world, command).end) == 255
    jobs = await world.jobs()
    await deliver_again(world, "/ptq release")
    assert await world.jobs() == jobs
    assert len([body for body in world.replies() if "Collecting the edits as" in body]) == 1
    assert "Nobody holds an environment" in await ask(world, "/ptq release", "Nobody holds an environment")
    async with world.playground.service.context.db.read() as connection:
        events = [what for job in await world.jobs() for _, what in await job_rows.fetch_events(connection, job.id)]
    assert f"released by @{COLLEAGUE}" in events
    assert read_blob(world) not in "\n".join(events)


async def test_a_takeover_needs_write_access_and_shows_nobody_a_security_concern(tmp_path: Path, account: Path) -> None:
    agent = AGENT.replace("fix staged", "security concern")
    async with open_world(tmp_path, agent=agent) as world:
        give_key(world)
        await start(world)
        for login in (STRANGER, "helper"):
            give_key(world, login)
            world.github.set_permission(WIDGETS, login, "triage" if login == "helper" else "read")
        for command in ("/ptq takeover", "/ptq release"):
            await world.comment(command, by=STRANGER)
            await world.comment(command, by="helper")
        await world.wait_for_reply(f"Thanks, @{STRANGER}")
        await world.wait_for_reply("Thanks, @helper")
        assert await holds(world) == []
        assert (await world.wait_for_job("running")).cancel_requested_at is None

        await ask(world, "/ptq takeover", "You can log in as soon as its report is posted")
        await world.wait_for_reply("review the result privately")
        await world.settle()
        assert await holds(world) == []
        async with world.playground.service.context.db.read() as connection:
            (job,) = await world.jobs()
            events = [what for _, what in await job_rows.fetch_events(connection, job.id)]
        assert not any(event.startswith("reserved for") for event in events)
        await ask(world, "/ptq takeover", "Only the operator of this App can give access")
        await ask(world, "/ptq release", "Nobody holds an environment")
        assert len(await world.jobs()) == 1
    assert list(account.iterdir()) == [], "no key was given access"


async def test_what_cannot_be_is_said_and_changes_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await world.open_issue()
        assert "No job has run on this issue" in await ask(world, "/ptq takeover", "no environment to take over")
        assert "Nobody holds an environment" in await ask(world, "/ptq release", "Nobody holds an environment")
        config = world.playground.config
        settings = load_settings(config)
        await drain_machine(settings, "gpu-1")
        await world.label()
        await world.wait_for_job("queued")
        assert "no SSH key on GitHub" in await ask(world, "/ptq takeover", "you have no SSH key on GitHub")
        world.github.add_public_key(MAINTAINER, "ssh-dss AAAAB3NzaC1kc3MAAACBAJ old@home")
        await ask(world, "/ptq takeover", "you have no SSH key on GitHub", count=2)
        give_key(world)
        assert "wait until its agent runs" in await ask(world, "/ptq takeover", "no environment yet")
        assert await holds(world) == []
        await resume_machine(settings, "gpu-1")
        await world.wait_for_report()

        # Its environment cannot be rebuilt, and the status says so.
        head = world.playground.git_dir / "HEAD"
        away = head.rename(tmp_path / "away")
        await ask(world, "/ptq takeover", "The environment is being rebuilt")
        await world.wait_for_job("failed")
        await world.settle()
        away.rename(head)
        told = await ask(world, "/ptq status", "could not be rebuilt")
        assert f"The environment for `{MAINTAINER}`" in told
        assert "the repository could not be read" in told
        await ask(world, "/ptq release", "Nobody holds an environment", count=2)

        # The operator switches it off.
        await world.playground.stop_service()
        config.write_text(config.read_text() + "takeover = false\n")
        await world.playground.start_service()
        await ask(world, "/ptq takeover", "Takeover is turned off for `octo/widgets`")
        assert await holds(world) == []


async def test_a_machine_without_a_sandbox_runs_no_strangers_script_and_lets_no_maintainer_in(
    tmp_path: Path, account: Path
) -> None:
    """It runs the agent's repro, as it ran the agent."""
    repro = "from widgets import chunked\nassert len(list(chunked([1, 2, 3], 2))) == 2\n"
    go = tmp_path / SIGNS / "go"
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    agent = f"{WRITE_REPORT}(output / 'repro.py').write_text({repro!r})\n{FIX}print('at work', flush=True)\n{wait}"
    async with open_world(tmp_path, agent=agent, python=write_interpreter(tmp_path), verify_runs=1) as world:
        give_key(world)
        await start(world)
        assert "only the operator" in await ask(world, "/ptq takeover", "its machine has no sandbox")
        go.touch()
        report = await world.wait_for_report()
        assert "the issue's repro**: **not verified**: it was not run: `the machine has no sandbox" in report
        assert "- ✅ **the agent's repro**" in report
        await ask(world, "/ptq takeover", "no machine of this repository has a sandbox")
        assert (len(await world.jobs()), await holds(world)) == (1, [])
    assert list(account.iterdir()) == [], "no key was given access"
