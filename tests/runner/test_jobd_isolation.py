"""However a job writes, nobody but itself sees it: not the base that it began from, no sibling, no clone.

Every kind of write is done from inside one job, by each way in which environments come to be. That the same writes do
reach others where files are shared by hard links is shown as well: these tests can fail.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.jobd.environment.trees import WAYS
from runner.jobd.sandbox.processes import kill_processes
from tests.support.contents import Entry, find_differences, find_told_differences, read_entries
from tests.support.jobd import Jobd, Repository
from tests.support.writes import (
    MISSING,
    WRITES,
    do_here,
    make_all_script,
    make_samples_script,
    make_write_script,
    name_folder,
)

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

TIME_S = 100
VENV = (sys.executable, "-m", "venv", "--without-pip")


class Outcome(NamedTuple):
    """What came of a job that wrote in every way."""

    statuses: Mapping[str, str]
    """How each write ended, by its folder."""
    log: str
    before: Mapping[str, Entry]
    """Everything of the machine's workspace but what is the job's own."""
    after: Mapping[str, Entry]
    sibling: Jobd
    job: Jobd


@pytest.fixture(params=WAYS)
def outcome(request: pytest.FixtureRequest, tmp_path: Path, template: Repository) -> Iterator[Outcome]:
    job = Jobd(tmp_path, Repository(shutil.copytree(template.folder, tmp_path / "origin")))
    sibling = job.beside()
    for number, one in enumerate((job, sibling)):
        prepare(one, request.param, number)
    sibling.agent("echo mine >> a.txt")
    own = [job.folder, *([job.place] if request.param == "slot" else [])]
    before = read_entries(job.workspace, own)
    log = run(job, make_all_script('"$PTQ_OUTPUT_DIR"'))
    statuses = {path.name: path.read_text().strip() for path in (job.root / "output").iterdir()}
    yield Outcome(statuses, log, before, read_entries(job.workspace, own), sibling, job)
    for one in (job, sibling):
        kill_processes(one.job_id)


def prepare(jobd: Jobd, way: str, slot: int) -> None:
    """Have an environment with samples, by one way."""
    recipe = {"create_venv": [*VENV], "setup": [make_samples_script()], "base_timeout_s": TIME_S, "timeout_s": TIME_S}
    jobd.call("prepare", **jobd.prepare_request(ways=[way], slot=slot, **recipe))
    prepared = jobd.wait("prepare", TIME_S)
    if prepared["error"] == "no_environment":
        pytest.skip(prepared["message"])
    assert prepared["state"] == "done", prepared["message"]
    assert prepared["result"]["way"] == way


def run(jobd: Jobd, script: str) -> str:
    jobd.start(script, timeout_s=TIME_S)
    ended = jobd.wait("agent", TIME_S)
    assert ended["result"]["exit_status"] == 0, ended["log"].decode()
    log: str = ended["log"].decode()
    return log


def test_however_a_job_writes_nobody_else_sees_it(outcome: Outcome) -> None:
    statuses = {name: outcome.statuses[name_folder(name)] for name in WRITES}
    assert {name: status for name, status in statuses.items() if status not in ("0", MISSING)} == {}, outcome.log
    workspace = outcome.job.workspace
    layers = [path for path in outcome.before if path.startswith(f"{workspace}/bases/") and path.endswith("/text.txt")]
    assert len(layers) >= len(WRITES)
    assert any(path.startswith(f"{workspace}/repos/") for path in outcome.before)
    assert any(path.startswith(str(outcome.sibling.root)) for path in outcome.before)
    assert find_differences(outcome.before, outcome.after) == []
    expect_next_job_to_find_all_files_as_they_were_made(outcome)


def expect_next_job_to_find_all_files_as_they_were_made(outcome: Outcome) -> None:
    way = json.loads((outcome.job.control / "prepare.request").read_text())["ways"][0]
    later = outcome.job.beside()
    outcome.job.call("clean")  # A slot has a base of its own, and its next job has the same place.
    prepare(later, way, 0)
    compare = (f"diff -r --no-dereference kinds/{one.kind} samples/{name_folder(name)}" for name, one in WRITES.items())
    assert run(later, "\n".join(compare)) == ""


# That these tests can fail


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with samples, made without any job."""
    place = tmp_path_factory.mktemp("samples") / "place"
    for folder in ("worktree", "home"):
        (place / folder).mkdir(parents=True)
    for file in (".profile", ".bash_env"):
        (place / "home" / file).write_text("set -u\n")
    subprocess.run([*VENV, place / "venv"], check=True)
    made = do_here(make_samples_script(), place / "worktree", place / "venv", place / "home")
    assert made.returncode == 0, made.stderr
    return place


def write_in(place: Path, name: str) -> None:
    """Do one write in an environment, without any job."""
    done = do_here(make_write_script(name), place / "worktree", place / "venv", place / "home")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", WRITES)
def test_where_files_are_shared_by_hard_links_others_do_see_some_writes(
    samples: Path, tmp_path: Path, name: str
) -> None:
    write = WRITES[name]
    if not all(map(shutil.which, write.needs)):
        pytest.skip(f"this machine has not all of {', '.join(write.needs)}")
    base, job = tmp_path / "base", tmp_path / "job"
    base.mkdir()
    parts = ["venv", "home", f"worktree/samples/{name_folder(name)}"]
    subprocess.run(["cp", "-a", "--parents", *parts, base], cwd=samples, check=True)
    subprocess.run(["cp", "-al", base, job], check=True)
    base_before, job_before = read_entries(base), read_entries(job)
    write_in(job, name)
    assert find_differences(job_before, read_entries(job))
    assert bool(find_told_differences(base_before, read_entries(base))) is write.through
