"""Issues show by a label where their cases stand, in repositories that want it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bot.demo.playground import LABEL, MAINTAINER, PACE
from bot.demo.repository import NAME
from tests.stories.test_security_concern import CONCERN
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + "time.sleep(1.5)\n" + FIX
RUNNING, AWAITING, OPEN = "ptq: running", "ptq: awaiting note", "ptq: pull open"
LABELS = f"/repos/{NAME}/issues/1/labels"


@asynccontextmanager
async def open_showing_world(folder: Path, agent: str) -> AsyncIterator[World]:
    """A world whose issues show where they stand, and may change that soon; on one a human has put a label."""
    pace = replace(PACE, label_rest_s=0.1)
    async with open_world(folder, agent=agent, repository_toml="case_labels = true", pace=pace) as world:
        await open_bug(world)
        yield world


async def open_bug(world: World) -> None:
    await world.open_issue()
    await world.label("bug", by="drive-by")


def list_labels(world: World) -> set[str]:
    return {label.name for label in world.github.issue(NAME, world.number).labels}


def list_our_events(world: World) -> list[str]:
    """What we did to the labels of the issue, as its timeline has it."""
    signs = {"labeled": "+", "unlabeled": "-"}
    events = [event for event in world.github.issue(NAME, world.number).timeline if event.via_app and event.label]
    return [f"{signs[event.event]}{event.label.name}" for event in events if event.label]


async def wait_for_labels(world: World, *labels: str) -> None:
    await world.wait(lambda: list_labels(world) == {"bug", *labels} or None, f"{labels}: {list_labels(world)}")


async def test_a_label_follows_a_job_to_its_pull_request_and_goes_when_the_operator_turns_it_off(
    tmp_path: Path,
) -> None:
    async with open_showing_world(tmp_path, AGENT) as world:
        await world.label()
        await wait_for_labels(world, LABEL, RUNNING)
        await world.wait_for_report()
        await wait_for_labels(world, LABEL, AWAITING)
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_pull()
        await wait_for_labels(world, LABEL, OPEN)
        events = [f"+{RUNNING}", f"-{RUNNING}", f"+{AWAITING}", f"-{AWAITING}", f"+{OPEN}"]
        assert list_our_events(world) == events
        await world.github.settle()
        await world.settle()
        assert len(await world.jobs()) == 1
        assert len(world.replies()) == 3, "status, report, and the link: our own labels are answered by nobody"

        first = world.number
        await open_bug(world)
        await world.label()
        await wait_for_labels(world, LABEL, RUNNING)
        await world.github.unlabel_issue(NAME, world.number, RUNNING, MAINTAINER)
        await world.wait_for_report()
        await wait_for_labels(world, LABEL, AWAITING)
        assert list_our_events(world) == [f"+{RUNNING}", f"+{AWAITING}"], "a label that a human removed stays off"

        await world.playground.stop_service()
        config = world.playground.config
        config.write_text(config.read_text().replace("case_labels = true", ""))
        await world.playground.start_service()
        await wait_for_labels(world, LABEL)
        world.number = first
        await wait_for_labels(world, LABEL)


async def test_a_restarted_service_knows_the_label_that_it_added_and_the_job_that_ran(tmp_path: Path) -> None:
    async with open_showing_world(tmp_path, CONCERN + "time.sleep(2)\n" + FIX) as world:
        world.github.faults.add("POST", LABELS, "lose_answer")
        world.github.faults.add("DELETE", f"{LABELS}/*", "lose_answer")
        await world.label()
        await wait_for_labels(world, LABEL, RUNNING)
        await world.playground.stop_service()
        await asyncio.sleep(2.5)
        await world.playground.start_service()
        await world.wait_for_report()
        await wait_for_labels(world, LABEL)
        # The labels show no more of a security concern than that the run has ended.
        assert list_our_events(world) == [f"+{RUNNING}", f"-{RUNNING}"]
        assert [job.state for job in await world.jobs()] == ["succeeded"], "its agent went on meanwhile"
        assert len(world.statuses()) == len(world.reports()) == 1
