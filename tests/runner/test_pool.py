"""What the service learns of its machines and does with it: GPUs, room, warm bases, faults, turns, folders left over.

Over a real database and machines that run our program right here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.model.environment import Profile
from runner.model.inventory import Sighting
from runner.model.job import JobState
from runner.model.machines import FAULTS_IN_A_ROW, USABLE, Gpu, Lease
from runner.rows import job_rows
from runner.rows.machine_states import fetch_sightings, fetch_warm_bases
from runner.scheduler.refresh import name_refresh
from runner.scheduler.sweep import Sweep
from runner.steps.preparations import name_recipe, note_prepared, note_unprepared
from tests.runner.test_placement import Floor, open_floor
from tests.support.jobs import NOON

pytestmark = pytest.mark.slow

TWO_GPUS = """\
0, GPU-a, 0000:19:00.0, 81559, 550.54, Disabled, NVIDIA H100
1, GPU-b, 0000:3B:00.0, 81559, 550.54, Disabled, NVIDIA H100
"""


CHANGES: Sequence[dict[str, Any]] = (
    *({"clone_url": "https://other"}, {"setup": ("make", "make")}, {"smoke_test": ("x",)}),
    *({"create_venv": ("x",)}, {"submodules": False}),
)


@pytest.fixture
async def floor(tmp_path: Path) -> AsyncIterator[Floor]:
    """A floor with two machines of two slots."""
    async with open_floor(tmp_path, "gpu-1", "gpu-2") as floor:
        yield floor


def configure(floor: Floor, name: str, **changes: Any) -> None:
    """Change the entry of a machine, as a reload of the configuration does."""
    floor.machines = [replace(machine, **changes) if machine.name == name else machine for machine in floor.machines]
    floor.placement = floor.restart()


def give_gpus(floor: Floor, name: str, script: str = f"cat <<EOF\n{TWO_GPUS}EOF\n") -> None:
    """Let a machine have an nvidia-smi."""
    folder = floor.folder / name / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}")
    (folder / "nvidia-smi").chmod(0o755)
    python = floor.python(name)
    source = python.read_text().splitlines()[-1]
    python.write_text(f"#!/bin/sh\nexport PATH={folder}:$PATH\n{source}\n")


async def see(floor: Floor, name: str = "gpu-1") -> Sighting:
    async with floor.db.read() as connection:
        return (await fetch_sightings(connection))[name]


async def leases(floor: Floor) -> dict[str, Lease]:
    async with floor.db.read() as connection:
        return {lease.job_id: lease for lease in await job_rows.fetch_leases(connection)}


async def make_room(floor: Floor, job_id: str) -> None:
    async with floor.db.write() as connection:
        await job_rows.delete_lease(connection, job_id)


# GPUs


async def test_a_job_has_the_gpus_of_its_slot_and_everybody_knows_what_the_machine_has(floor: Floor) -> None:
    give_gpus(floor, "gpu-1")
    configure(floor, "gpu-2", labels=frozenset({"other"}))
    first = await floor.place(await floor.queue(1))
    await floor.drain("gpu-2")
    second = await floor.place(await floor.queue(2))
    held = await leases(floor)
    h100: dict[str, Any] = {"vendor": "nvidia", "name": "NVIDIA H100", "memory_mib": 81559, "driver": "550.54"}
    assert held[first.id].gpus == (Gpu(id="GPU-a", files=("nvidia0",), **h100),)
    assert held[second.id].gpus == (Gpu(id="GPU-b", files=("nvidia1",), **h100),)
    sighting = await see(floor)
    assert (sighting.at, [gpu.name for gpu in sighting.inventory.gpus]) == (NOON, ["NVIDIA H100"] * 2)


async def test_a_machine_that_loses_its_gpus_is_out_until_they_are_back(floor: Floor) -> None:
    await floor.drain("gpu-2")
    give_gpus(floor, "gpu-1")
    assert await floor.placement.answers("gpu-1")
    give_gpus(floor, "gpu-1", "echo broken\nexit 9\n")
    job = await floor.place(await floor.queue())
    assert job.state is JobState.QUEUED
    trouble = (await floor.state("gpu-1")).trouble
    assert trouble == "its GPUs cannot be used; the machine says: nvidia-smi failed: broken"
    assert len((await see(floor)).inventory.gpus) == 2, "as it is asked again, it is still known what it had"
    assert not await floor.placement.probe("gpu-1")
    give_gpus(floor, "gpu-1")
    assert await floor.placement.probe("gpu-1")
    assert (await floor.place(job)).machine == "gpu-1"


async def test_a_machine_that_does_not_say_which_gpus_it_has_takes_no_job(floor: Floor) -> None:
    give_gpus(floor, "gpu-1", "exit 9\n")
    job = await floor.place(await floor.queue())
    assert job.state is JobState.QUEUED
    assert (await floor.place(job)).machine == "gpu-2"


# Room


async def test_a_machine_with_little_room_gets_no_jobs_until_there_is_more_and_others_go_on(floor: Floor) -> None:
    configure(floor, "gpu-1", min_free_gb=10.0**9)
    job = await floor.place(await floor.queue(1))
    assert job.state is JobState.QUEUED
    assert (await floor.place(job)).machine == "gpu-2"
    state = await floor.state("gpu-1")
    assert state.trouble
    assert state.trouble.endswith("GB free, but min_free_gb is 1e+09")
    assert state.outage
    assert not state.outage.permanent
    assert not await floor.placement.probe("gpu-1")
    configure(floor, "gpu-1", min_free_gb=0.0)
    assert await floor.placement.probe("gpu-1")
    assert await floor.state("gpu-1") == USABLE


# Warm bases


async def prepare(floor: Floor, number: int, way: str = "overlay", base: object = None) -> Lease:
    """A job is prepared, and its slot is free again."""
    job = await floor.place(await floor.queue(number))
    lease = (await leases(floor))[job.id]
    told = {"commit": "ab" * 20, "made_at": 0.0} if base is None else base
    await note_prepared(floor.runtime, job, {"way": way, "base": told})
    await make_room(floor, job.id)
    return lease


async def test_a_job_goes_where_its_repository_has_a_base_though_others_are_idle(floor: Floor) -> None:
    await floor.drain("gpu-1")
    await prepare(floor, 1)
    await floor.resume("gpu-1")
    found = [await floor.place(await floor.queue(number)) for number in (2, 3, 4)]
    assert [job.machine for job in found] == ["gpu-2", "gpu-2", "gpu-1"]


async def test_a_base_made_in_place_draws_jobs_to_its_slot(floor: Floor) -> None:
    first, second = await floor.place(await floor.queue(1)), await floor.place(await floor.queue(2))
    assert (first.machine, second.machine) == ("gpu-1", "gpu-2")
    lease = await prepare(floor, 3, way="slot")
    assert (lease.machine, lease.slot) == ("gpu-1", 1)
    await make_room(floor, first.id)
    job = await floor.place(await floor.queue(4))
    assert (await leases(floor))[job.id] == replace(lease, job_id=job.id)


async def test_a_base_that_is_made_in_another_way_now_is_cold(floor: Floor) -> None:
    await floor.drain("gpu-1")
    await prepare(floor, 1)
    await floor.resume("gpu-1")
    profile = floor.runtime.profiles["octo/widgets"]
    floor.runtime = replace(floor.runtime, profiles={profile.repository: replace(profile, setup=("make",))})
    floor.placement = floor.restart()
    assert (await floor.place(await floor.queue(2))).machine == "gpu-1"
    await prepare(floor, 3)
    async with floor.db.read() as connection:
        (base,) = await fetch_warm_bases(connection)
    made_by = name_recipe(replace(profile, setup=("make",)).recipe("https://git.example/octo/widgets.git", "main"))
    assert (base.machine, base.recipe) == ("gpu-2", made_by), "on a machine the last one counts"


async def test_a_result_that_makes_no_sense_makes_nothing_warm(floor: Floor) -> None:
    await prepare(floor, 1, base="x")
    async with floor.db.read() as connection:
        assert await fetch_warm_bases(connection) == set()


def test_only_what_a_base_is_made_by_tells_it_from_another() -> None:
    recipe = Profile("octo/widgets", setup=("make",)).recipe("https://git", "main")
    alike = replace(recipe, base_branch="x", base_commit="ab" * 20, update=("x",), slot=3, timeout_s=1)
    assert name_recipe(alike) == name_recipe(recipe)
    others = [replace(recipe, **change) for change in CHANGES]
    assert len({name_recipe(one) for one in (recipe, *others)}) == 1 + len(CHANGES)


# Faults


async def fail(floor: Floor, number: int, code: str | None) -> None:
    """A job fails while it is prepared on the first machine."""
    job = replace(await floor.queue(number), machine="gpu-1")
    await note_unprepared(floor.runtime, job, code)


async def test_jobs_in_a_row_that_fail_through_their_machine_put_it_out_and_it_comes_back_on_trial(
    floor: Floor,
) -> None:
    await floor.drain("gpu-2")
    with capture_logs() as logs:
        for number in range(FAULTS_IN_A_ROW):
            assert (await floor.state("gpu-1")).takes_jobs
            await fail(floor, number, "environment_unusable")
        await fail(floor, 9, "disk_full")  # It was on its way.
    assert [line["event"] for line in logs] == ["machine.out"]
    state = await floor.state("gpu-1")
    assert state.faults == FAULTS_IN_A_ROW
    assert state.trouble == (
        "3 jobs in a row could not be prepared there, the last because environments cannot be mounted or copied there"
    )
    floor.clock.forward(299)
    assert await floor.placement.fetch_due() == []
    floor.clock.forward(1)
    assert await floor.placement.fetch_due() == ["gpu-1"]
    assert await floor.placement.probe("gpu-1")
    jobs = [await floor.queue(number) for number in (21, 22)]
    assert len(await floor.placement.allot(jobs)) == 1, "one job is to show that it is well"
    floor.placement.release(jobs[0].id)
    trial = await floor.place(jobs[0])
    assert trial.machine == "gpu-1"
    assert await floor.placement.allot([jobs[1]]) == {}
    await note_prepared(floor.runtime, trial, {})
    assert (await floor.state("gpu-1")).faults == 0
    assert (await floor.place(jobs[1])).machine == "gpu-1"


async def test_one_more_fault_on_trial_puts_it_out_for_longer(floor: Floor) -> None:
    for number in range(FAULTS_IN_A_ROW):
        await fail(floor, number, "no_git")
    floor.clock.forward(300)
    assert await floor.placement.probe("gpu-1")
    await fail(floor, 9, "no_git")
    outage = (await floor.state("gpu-1")).outage
    assert outage
    assert outage.retry_at - outage.seen_at == timedelta(minutes=10)


@pytest.mark.parametrize("code", ["setup_failed", "clone_failed", "branch_missing", "timed_out", None])
async def test_what_a_repository_does_wrong_is_not_held_against_its_machine(floor: Floor, code: str | None) -> None:
    for number in range(2 * FAULTS_IN_A_ROW):
        await fail(floor, number, code)
    assert await floor.state("gpu-1") == USABLE


async def test_a_success_in_between_begins_the_count_anew(floor: Floor) -> None:
    await floor.drain("gpu-2")
    for number in range(2 * FAULTS_IN_A_ROW):
        await fail(floor, number, "internal")
        if number % 2:
            await prepare(floor, 100 + number)
    assert (await floor.state("gpu-1")).takes_jobs


# Turns


async def test_slots_are_promised_to_one_job_each_and_fairly(floor: Floor) -> None:
    other = replace(floor.runtime.profiles["octo/widgets"], repository="octo/gadgets")
    floor.runtime = replace(floor.runtime, profiles={**floor.runtime.profiles, "octo/gadgets": other})
    floor.placement = floor.restart()
    crowd = [await floor.queue(number) for number in range(10, 16)]
    newcomer = await floor.queue(20, repository="octo/gadgets", created_at=NOON + timedelta(minutes=1))
    allotted = await floor.placement.allot([*crowd, newcomer])
    assert len({(lease.machine, lease.slot) for lease in allotted.values()}) == len(allotted) == 4
    assert newcomer.id in allotted
    left = [job for job in crowd if job.id not in allotted]
    assert await floor.placement.allot(left) == {}, "what is promised is taken"
    floor.placement.release(newcomer.id)
    assert len(await floor.placement.allot(left)) == 1


async def test_who_had_a_turn_waits_for_those_who_had_none(floor: Floor) -> None:
    await floor.drain("gpu-2")
    configure(floor, "gpu-1", slots=1)
    first = await floor.place(await floor.queue(1))
    await make_room(floor, first.id)
    again, newcomer = await floor.queue(2), await floor.queue(3, requested_by="bob", repository="octo/other")
    profile = replace(floor.runtime.profiles["octo/widgets"], repository="octo/other")
    floor.runtime = replace(floor.runtime, profiles={**floor.runtime.profiles, "octo/other": profile})
    floor.placement = floor.restart()
    assert [*await floor.placement.allot([again, newcomer])] == [newcomer.id]


# What lies on machines


def make_folder(floor: Floor, number: int, machine: str = "gpu-1") -> Path:
    folder = floor.folder / machine / "workspace" / "jobs" / f"{number:010}"
    (folder / "control").mkdir(parents=True)
    return folder


def sweep(floor: Floor, interval_s: float = 600.0) -> Sweep:
    machines = {machine.name: machine for machine in floor.machines}
    return Sweep(floor.runtime, machines, floor.placement.answers, interval_s)


async def test_folders_of_jobs_that_have_ended_go_sooner_or_later_and_all_others_stay(floor: Floor) -> None:
    await floor.queue(1, state=JobState.FAILED)
    await floor.queue(2, state=JobState.SUCCEEDED)
    await floor.queue(3, state=JobState.RUNNING)
    await floor.queue(4, state=JobState.FAILED)
    async with floor.db.write() as connection:
        for number in (3, 4):  # The second is on its way out.
            await job_rows.insert_lease(connection, Lease("gpu-1", number, f"{number:010}"), NOON)
    folders = {number: make_folder(floor, number) for number in (1, 2, 3, 4, 5)}
    elsewhere = make_folder(floor, 6, "gpu-2")
    with capture_logs() as logs:
        await sweep(floor).run()
    assert {number for number, folder in folders.items() if folder.exists()} == {3, 4, 5}
    assert elsewhere.exists(), "somebody else may be at work there"
    assert (await see(floor)).strangers == ("0000000005",)
    assert (await see(floor, "gpu-2")).stranger_count == 1
    assert sorted(line["event"] for line in logs) == ["sweep.cleaned"] * 2 + ["sweep.unknown_folders"] * 2
    elsewhere.parent.joinpath("0000000006", "control").rmdir()
    elsewhere.rmdir()
    # A folder that cannot go is tried again at the next pass.
    folder, ended = make_folder(floor, 1), floor.folder / "gpu-1" / "workspace" / "ended"
    ended.rename(ended.with_name("moved"))
    ended.write_text("in the way")
    with capture_logs() as logs:
        await sweep(floor).run()
    assert (folder.exists(), [line["event"] for line in logs]) == (True, ["sweep.machine_left_out"])
    ended.unlink()
    with capture_logs() as logs:
        await sweep(floor).run()
    assert not folder.exists()
    assert [line["event"] for line in logs] == ["sweep.cleaned"], "what is unknown is news once"


async def test_the_folder_of_a_refresh_is_no_stranger(floor: Floor) -> None:
    machine, profile = floor.machines[0], next(iter(floor.runtime.profiles.values()))
    job_id = name_refresh(machine, profile, floor.runtime.now())
    (floor.folder / "gpu-1" / "workspace" / "jobs" / job_id / "control").mkdir(parents=True)
    await sweep(floor).run()
    assert (await see(floor)).strangers == ()
    assert (await see(floor, "gpu-2")).stranger_count == 0


async def test_a_machine_that_breaks_down_is_found_out_and_left_in_peace_and_keeps_nobody_from_the_next(
    floor: Floor,
) -> None:
    await floor.queue(1, state=JobState.FAILED)
    floor.break_down("gpu-1")
    folder, other = make_folder(floor, 1), make_folder(floor, 1, "gpu-2")
    await sweep(floor).run()
    assert (await floor.state("gpu-1")).outage
    assert not other.exists()
    floor.repair("gpu-1")
    await sweep(floor).run()
    assert folder.exists()


async def test_a_pass_is_due_at_the_start_and_then_now_and_then(floor: Floor) -> None:
    due = sweep(floor, interval_s=0.2)
    assert (due.take_turn(), due.take_turn()) == (True, False)
    await asyncio.sleep(0.2)
    assert due.take_turn()
