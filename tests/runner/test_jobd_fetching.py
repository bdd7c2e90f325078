"""A machine fetches what only the service may: by the relay, in each stage that fetches, whatever comes of the way."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.fetching import TRIES
from runner.jobd.sandbox import namespaces
from runner.jobd.sandbox.processes import find_processes
from tests.support.git_http import TOKEN, WEB, GitService, lead
from tests.support.jobd import Jobd, Repository, make_repository, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def jobd(jobd_without_base: Jobd) -> Jobd:
    return jobd_without_base


MISSING = namespaces.find_missing(Path("/var/tmp"))


@pytest.fixture
def github(tmp_path: Path, repository: Repository) -> Path:
    """What the service can fetch: `octo/widgets`, which the job is about, and `octo/parts`."""
    folder = tmp_path / "github"
    (folder / "octo").mkdir(parents=True)
    parts = make_repository(tmp_path / "parts", {"part.txt": "one part\n"})
    (folder / "octo" / "parts.git").symlink_to(parts.folder / ".git")
    (folder / "octo" / "widgets.git").symlink_to(repository.folder / ".git")
    return folder


@pytest.fixture(params=["sealed", "unsealed"])
def machine(request: pytest.FixtureRequest, jobd: Jobd) -> Iterator[Jobd]:
    if request.param == "sealed" and not namespaces.can_sandbox(MISSING):
        pytest.skip("this machine seals no jobs")
    jobd.can_seal = request.param == "sealed"
    yield jobd
    jobd.call("clean")


def add_submodule(repository: Repository, url: str, name: str = "parts") -> None:
    """Name a submodule, without fetching it."""
    commit = Repository(repository.folder.parent / "parts").git("rev-parse", "HEAD")
    (repository.folder / ".gitmodules").write_text(f'[submodule "{name}"]\n\tpath = {name}\n\turl = {url}\n')
    repository.git("add", ".gitmodules")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    repository.git("commit", "--quiet", "--message=a submodule")


def prepare(jobd: Jobd, *names: str, **changes: Any) -> dict[str, Any]:
    return jobd.prepare(**{**lead("octo/widgets", *names), "fetch_pause_s": 0.05, **changes})


def text_of(folder: Path) -> str:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return "\n".join(path.read_bytes().decode(errors="replace") for path in files)


def test_an_environment_is_made_of_what_comes_by_the_relay(machine: Jobd, github: Path) -> None:
    service = GitService(machine, github)
    made = prepare(machine)
    assert made["state"] == "done", made
    assert machine.find("a.txt").read_text() == "one\ntwo\nthree\n"
    assert service.asked[0] == "/git/octo/widgets.git/info/refs?service=git-upload-pack"
    assert service.refused == []
    assert f"{WEB}/octo/widgets.git" in made["log"].decode(), "the log says where it is from, and not by what"
    assert TOKEN not in made["log"].decode()
    wait_until(lambda: not find_processes(machine.job_id))
    service.stop()


def test_the_token_is_in_no_file_but_the_request(machine: Jobd, github: Path) -> None:
    service = GitService(machine, github)
    made = prepare(machine, setup=["git config --list | grep -c 'extraheader=Authorization: Bearer'"])
    assert made["log"].split(b"\n").count(b"1") == 1, "the commands of an environment may fetch, too"
    (machine.control / "prepare.request").unlink()
    assert TOKEN not in text_of(machine.workspace)
    service.stop()


def test_a_submodule_comes_by_the_relay_too(machine: Jobd, repository: Repository, github: Path) -> None:
    add_submodule(repository, "../parts")
    service = GitService(machine, github)
    made = prepare(machine, "octo/parts", submodules=True)
    assert made["state"] == "done", made
    assert machine.find("parts/part.txt").read_text() == "one part\n"
    assert service.refused == []
    service.stop()


@pytest.mark.parametrize("url", [f"{WEB}/octo/parts", f"{WEB}/octo/parts.git", "git@github.invalid:octo/parts.git"])
def test_however_a_submodule_is_written_it_comes_by_the_relay(
    jobd: Jobd, repository: Repository, github: Path, url: str
) -> None:
    add_submodule(repository, url)
    service = GitService(jobd, github)
    made = prepare(jobd, "octo/parts", submodules=True)
    assert made["state"] == "done", made
    service.stop()
    jobd.call("clean")


def test_a_fetch_that_is_cut_midway_is_made_again(machine: Jobd, github: Path) -> None:
    cuts = 2

    def cut(path: str, answer: bytes) -> bytes | None:
        nonlocal cuts
        cuts -= path.endswith("git-upload-pack")
        return answer[: len(answer) // 2] if cuts >= 0 and path.endswith("git-upload-pack") else answer

    service = GitService(machine, github, cut)
    made = prepare(machine)
    assert made["state"] == "done", made
    assert b"The connection to the service was cut. Tries left: 3." in made["log"]
    assert machine.find("a.txt").read_text() == "one\ntwo\nthree\n"
    service.stop()


def test_a_submodules_fetch_that_is_cut_is_made_again(machine: Jobd, repository: Repository, github: Path) -> None:
    add_submodule(repository, "../parts.git")
    seen: list[str] = []

    def cut(path: str, answer: bytes) -> bytes | None:
        seen.append(path)
        return None if seen.count(path) == 1 and "parts" in path else answer

    service = GitService(machine, github, cut)
    made = prepare(machine, "octo/parts", submodules=True)
    assert made["state"] == "done", made
    assert machine.find("parts/part.txt").read_text() == "one part\n"
    service.stop()


def test_one_that_is_cut_each_time_fails_with_gits_words(jobd: Jobd, github: Path) -> None:
    service = GitService(jobd, github, lambda path, answer: None)
    made = prepare(jobd)
    assert (made["state"], made["error"]) == ("failed", "clone_failed")
    assert "Empty reply" in made["message"] or "reset" in made["message"]
    assert len(service.asked) == TRIES
    service.stop()
    jobd.call("clean")


def test_what_the_service_refuses_is_not_asked_again(jobd: Jobd, github: Path) -> None:
    service = GitService(jobd, github)
    made = prepare(jobd, git={**lead("octo/widgets")["git"], "GIT_CONFIG_VALUE_0": "Authorization: Bearer wrong"})  # type: ignore[dict-item]
    assert made["error"] == "clone_failed"
    assert "403" in made["message"]
    assert len(service.refused) == 1
    service.stop()
    jobd.call("clean")


def test_while_the_service_is_away_a_preparation_waits_for_it(machine: Jobd, github: Path) -> None:
    GitService(machine, github).stop()
    machine.call("prepare", **machine.prepare_request(**lead("octo/widgets")))
    wait_until(lambda: b"fetch" in machine.poll("prepare")["log"])
    time.sleep(0.5)
    assert machine.poll("prepare")["state"] == "running"
    service = GitService(machine, github)
    assert machine.wait("prepare")["state"] == "done"
    service.stop()


def test_a_base_is_refreshed_by_the_relay(machine: Jobd, repository: Repository, github: Path) -> None:
    service = GitService(machine, github)
    assert prepare(machine)["state"] == "done"
    repository.commit({"a.txt": "newer\n"})
    other = machine.beside()
    again = GitService(other, github)
    request = {**other.prepare_request(**lead("octo/widgets"), only_existing=True), "changes": []}
    other.call("base", **request)
    refreshed = other.wait("base")
    assert (refreshed["state"], refreshed["error"]) in (("done", None), ("failed", "slots_own")), refreshed
    if machine.can_seal:
        assert refreshed["result"]["base"]["commit"] == repository.git("rev-parse", "HEAD")
        assert again.asked
    other.call("clean")
    service.stop()
    again.stop()


def test_a_submodule_that_nobody_named_comes_from_its_own_address(
    jobd: Jobd, repository: Repository, github: Path
) -> None:
    private = GitService(jobd, github)
    add_submodule(repository, f"{WEB}/octo/parts")
    made = prepare(jobd, submodules=True)
    assert made["error"] == "checkout_failed"
    assert all("parts" not in path for path in private.asked)
    private.stop()
    jobd.call("clean")


def test_the_clone_is_the_same_by_whatever_way_it_is_fetched(machine: Jobd, github: Path) -> None:
    service = GitService(machine, github)
    assert prepare(machine)["state"] == "done"
    (clone,) = [path for path in (machine.workspace / "repos").iterdir() if path.is_dir()]
    assert clone.name.startswith("octo-widgets-git-")
    assert "127.0.0.1" not in (clone / "config").read_text()
    git_config = machine.find(".git/config").read_text()
    assert f"url = {WEB}/octo/widgets.git" in git_config
    assert "127.0.0.1" not in git_config
    service.stop()


def test_nothing_listens_once_the_environment_is_made(machine: Jobd, github: Path) -> None:
    service = GitService(machine, github)
    setup = ["git config --get-regexp 'url.*insteadof' | head -1 | cut -d. -f2- > $PTQ_WORKTREE/where"]
    assert prepare(machine, setup=setup)["state"] == "done"
    assert "http://127.0.0.1:" in machine.find("where").read_text()
    wait_until(lambda: not find_processes(machine.job_id))
    service.stop()


def test_without_a_way_nothing_private_is_prepared(jobd: Jobd) -> None:
    made = prepare(jobd)
    assert made["error"] == "no_relay"
    shutil.rmtree(jobd.root)
