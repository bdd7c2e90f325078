"""The test job of `doctor` and set-up on a machine: a real one, on this host."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bot.doctor.findings import DoctorVerdict, Part
from bot.doctor.machine_trial import judge_git, judge_job, try_job
from runner.model.jobd_answers import Poll, StageState
from runner.model.machines import Machine
from runner.transport.hosts import open_host

PART = Part("machine gpu-1")
LOGS = "workspace/trial-*/jobs/*/control/prepare.log"
VENV = (sys.executable, "-m", "venv", "--without-pip")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("create_venv", "verdict", "words", "fix"),
    [
        (VENV, DoctorVerdict.OK, "virtual environment, command", ""),
        (("/bin/mkdir",), DoctorVerdict.OK, "passed", ""),
        ((sys.executable, "-m", "no_venv"), DoctorVerdict.FAILED, "No module named no_venv", "install python3-venv"),
        (("/opt/none/uv", "venv"), DoctorVerdict.FAILED, "/opt/none/uv", "create_venv that works there"),
        (("mkdir", "-p", "venv"), DoctorVerdict.FAILED, "bin/python", "usable there"),
    ],
)
async def test_a_first_job_is_tried_and_nothing_of_it_stays(
    tmp_path: Path, create_venv: tuple[str, ...], verdict: DoctorVerdict, words: str, fix: str
) -> None:
    machine = Machine("gpu-1", str(tmp_path / "work space"), "local")
    host = open_host(machine)
    try:
        found = await try_job(PART, machine, host, create_venv)
    finally:
        await host.close()
    assert (found.verdict, found.check) == (verdict, "first job"), found.words
    assert words in found.words
    assert fix in found.fix
    assert list((tmp_path / "work space").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_first_job_whose_folder_somebody_deletes_ends(tmp_path: Path) -> None:
    machine = Machine("gpu-1", str(tmp_path / "workspace"), "local")
    host = open_host(machine)
    try:
        trial = asyncio.create_task(try_job(PART, machine, host, ("sleep", "20")))
        while not (at_work := [log for log in tmp_path.glob(LOGS) if "sleep 20" in log.read_text()]):
            assert not trial.done()
            await asyncio.sleep(0.02)
        at_work[0].parent.rename(tmp_path / "gone")
        found = await trial
    finally:
        await host.close()
    assert (found.verdict, found.words) == (DoctorVerdict.FAILED, "its folder was deleted")


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("git version 2.30.0", DoctorVerdict.OK),
        ("git version 2.39.5 (Apple Git-154)", DoctorVerdict.OK),
        ("git version 3.0.1", DoctorVerdict.OK),
        ("", DoctorVerdict.OK),
        ("git version 2.29.3", DoctorVerdict.FAILED),
        ("git version 1.99", DoctorVerdict.FAILED),
        (None, DoctorVerdict.FAILED),
    ],
)
def test_a_git_that_is_too_old_or_none_is_named(said: str | None, verdict: DoctorVerdict) -> None:
    found = judge_git(PART, said)
    assert found.verdict is verdict
    assert ("install git 2.30 or newer" in found.fix) == (verdict is DoctorVerdict.FAILED)


def test_a_machine_that_is_slow_is_no_broken_one() -> None:
    poll = Poll(StageState.FAILED, "timed_out", "it was stopped after 60 seconds", {}, b"", 0, "", "boot")
    assert judge_job(PART, poll).verdict is DoctorVerdict.WARNING
