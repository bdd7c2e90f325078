from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.jobd.sandbox.processes import kill_processes
from tests.support.jobd import Jobd, Repository, make_repository
from tests.support.made_base import MadeBase
from tests.support.memory import memory, tmp_path

__all__ = ["memory", "tmp_path"]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return make_repository(tmp_path_factory.mktemp("template") / "origin")


@pytest.fixture
def repository(tmp_path: Path, template: Repository) -> Repository:
    """A repository of one commit on its branch `main`."""
    return Repository(shutil.copytree(template.folder, tmp_path / "origin"))


@pytest.fixture(scope="session")
def made_base(tmp_path_factory: pytest.TempPathFactory, template: Repository) -> MadeBase:
    """The base of `repository`, for tests that are about what comes after it."""
    folder = tmp_path_factory.mktemp("made-base")
    machine = Jobd(folder, Repository(shutil.copytree(template.folder, folder / "origin")))
    return MadeBase(machine, ["overlay", "slot"])


@pytest.fixture
def unsealed(jobd: Jobd) -> Jobd:
    """The same, on a machine that allows no namespaces: a job reaches there whatever its account does."""
    jobd.can_seal = False
    return jobd


@pytest.fixture
def jobd_without_base(tmp_path: Path, repository: Repository) -> Iterator[Jobd]:
    """The machine-side program, with an empty workspace; no process of any job is left behind."""
    jobd = Jobd(tmp_path, repository)
    yield jobd
    jobs = {jobd.job_id, *(folder.name for folder in (jobd.workspace / "jobs").glob("*"))}
    assert [kill_processes(job)[1] for job in jobs] == [0] * len(jobs)


@pytest.fixture
def jobd(jobd_without_base: Jobd, made_base: MadeBase) -> Jobd:
    """The same, with a workspace that has the base from which `prepare` begins unless it is told otherwise."""
    made_base.lay_out(jobd_without_base)
    return jobd_without_base
