"""The story that must end the same whatever happens to the service, and the verdict on its end, from outside only."""

from __future__ import annotations

import asyncio
import copy
import re
from collections import Counter
from pathlib import Path

from bot.demo.repository import NAME
from github_standin import Exchange
from tests.crash.installation import PATIENCE_S, Installation
from tests.crash.points import Point
from tests.support import program
from tests.support.installed import install_program
from tests.support.world import FIX, NOTE, WRITE_REPORT, World

LOOKS = 5
"""How often the service must have asked GitHub for what it missed, without anything being written meanwhile, for the
story to count as over. By then every loop has looked around, however slow the machine is, and a comment
that may have been cut off has been looked for."""

INSTALLED = "ssh: install"
"""A machine that has been in use has the program. It gets it in the story that is recorded, and where that is cut."""

AGENT = "open({starts!r}, 'a').write('started\\n')\n" + WRITE_REPORT + "time.sleep(0.4)\n" + FIX


def write_agent(folder: Path) -> Path:
    """An agent that also writes down, outside of everything that is ever removed, that it was started."""
    script, signs = folder / "agent.py", folder / "signs"
    signs.mkdir(exist_ok=True)
    script.write_text(AGENT.format(starts=str(signs / "starts")))
    return script


async def live_through(
    folder: Path, database_url: str, points: list[Point], kind: type[Installation] = Installation
) -> Installation:
    """Tell the story while the service stops at these points, or loses GitHub's answer there; judge its end."""
    folder.mkdir(parents=True)
    stops = [point for point in points if point.when != "lost"]
    installation = kind(folder, agent=write_agent(folder), database_url=database_url, points=stops)
    if points and not any(point.name == INSTALLED for point in points):
        install_program(folder / "machine" / "workspace")
    async with installation:
        for point in points:
            if point.when == "lost":
                lose_answer(installation, point)
        try:
            await tell_to_the_end(World(installation, PATIENCE_S), installation)
        except AssertionError as error:
            error.add_note(f"reached: {', '.join(map(str, installation.fate.reached)) or 'no point'}")
            error.add_note(installation.tail())
            raise
    return installation


async def tell_to_the_end(world: World, installation: Installation) -> None:
    await tell(world)
    await wait_until_quiet(installation)
    done = len(writes(installation))
    if await installation.go_on():
        await wait_until_quiet(installation)
    late = [f"{exchange.method} {exchange.path} {exchange.status}" for exchange in writes(installation)[done:]]
    assert not late, f"somebody wrote who should have seen that all was done: {late}"
    while not await installation.end_service():
        await wait_until_quiet(installation)
    await asyncio.to_thread(judge, world, installation)


def lose_answer(installation: Installation, point: Point) -> None:
    """Let GitHub do what one request asks, and cut the connection instead of answering."""
    method, _, path = point.name.partition(" ")
    pattern = re.sub(r"\{\w+\}", "*", path)
    if point.occurrence > 1:
        installation.github.faults.add(method, pattern, "delay", times=point.occurrence - 1)
    installation.github.faults.add(method, pattern, "lose_answer")


async def tell(world: World) -> None:
    await world.open_issue()
    await world.label()
    await world.wait_for_reply("[report](http")
    await world.comment(f"/ptq pr {world.digest()}")
    await world.wait_for_reply("own words")
    await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
    await world.wait_for_pull()


async def wait_until_quiet(installation: Installation) -> None:
    jobs = installation.folder / "machine" / "workspace" / "jobs"
    count, looks_then = -1, 0

    def is_quiet() -> bool:
        nonlocal count, looks_then
        looks = sum(exchange.path == "/app/hook/deliveries" for exchange in [*installation.github.exchanges])
        if any(jobs.glob("*")) or len(writes(installation)) != count:
            count, looks_then = len(writes(installation)), looks
        return looks - looks_then >= LOOKS

    await installation.wait_for(is_quiet, "the end of everything")


def writes(installation: Installation) -> list[Exchange]:
    """The requests that changed something on GitHub. A reaction that was there already is answered 200, not 201."""
    return [
        exchange
        for exchange in installation.github.exchanges
        if exchange.method != "GET" and exchange.status < 400 and "access_tokens" not in exchange.path
        if not (exchange.path.endswith("/reactions") and exchange.status == 200)
    ]


def try_the_verdict(world: World, installation: Installation) -> dict[str, bool]:
    """Put faults into the end of a story, one after the other. Returns each fault, and whether `judge` noticed it."""
    noticed: dict[str, bool] = {}

    def look(what: str) -> None:
        try:
            judge(world, installation)
        except AssertionError:
            noticed[what] = True
        else:
            noticed[what] = False

    comments, issues = world.github.issue(NAME, world.number).comments, world.github._world.repository(NAME).issues
    for number, comment in enumerate([*comments]):
        if comment.via_app:
            comments.append(copy.deepcopy(comment))
            look(f"comment {number} twice")
            comments.pop()
            del comments[number]
            look(f"comment {number} lost")
            comments.insert(number, comment)
    [pull] = world.pulls()
    issues[99] = copy.deepcopy(pull)
    look("two pull requests")
    del issues[99]
    world.git("branch", "ptq/another", "main")
    look("a branch too many")
    world.git("branch", "-D", "ptq/another")
    judge(world, installation)
    starts = installation.folder / "signs" / "starts"
    starts.write_text(starts.read_text() * 2)
    look("an agent started twice")
    return noticed


def judge(world: World, installation: Installation) -> None:
    """One of everything: by what GitHub and the machine themselves have."""
    kinds = Counter(re.match(r"<!-- ptq:(\w+)=", body)[1] for body in world.replies())  # type: ignore[index]
    assert kinds == {"job": 1, "report": 1, "reply": 2}, world.replies()
    assert "[report](http" in world.statuses()[0]
    issue = world.github.issue(NAME, world.number)
    assert [reaction.content for reaction in issue.reactions] == ["eyes"]
    assert len(world.pulls()) == 1
    branches = world.git("branch", "--list", "--format=%(refname:short)").split()
    assert branches == sorted(["main", world.pulls()[0].head])
    assert "- size + 1" not in world.git("show", f"{world.pulls()[0].head}:widgets/chunks.py")
    assert (installation.folder / "signs" / "starts").read_text() == "started\n"
    program.wait_until_no_process(str(installation.folder / "machine" / "workspace"))
    assert world.github.complaints == []
    assert world.github.unknown_calls == []
