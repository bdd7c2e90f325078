from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.jobd.processes import kill_processes
from tests.support.jobd import Jobd, Repository, make_repository


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return make_repository(tmp_path_factory.mktemp("template") / "origin")


@pytest.fixture
def repository(tmp_path: Path, template: Repository) -> Repository:
    """A repository of one commit on its branch `main`."""
    return Repository(shutil.copytree(template.folder, tmp_path / "origin"))


@pytest.fixture
def unsealed(jobd: Jobd) -> Jobd:
    """The same, on a machine that allows no namespaces: a job reaches there whatever its account does."""
    jobd.can_seal = False
    return jobd


@pytest.fixture
def jobd(tmp_path: Path, repository: Repository) -> Iterator[Jobd]:
    """The machine-side program, with an empty workspace; no process of any job is left behind."""
    jobd = Jobd(tmp_path, repository)
    yield jobd
    jobs = {jobd.job_id, *(folder.name for folder in (jobd.workspace / "jobs").glob("*"))}
    assert [kill_processes(job)[1] for job in jobs] == [0] * len(jobs)
