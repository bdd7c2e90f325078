"""A machine fetches what only the service may: by the relay, in each stage that fetches, whatever comes of the way."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.fetching import TRIES
from runner.jobd.sandbox.processes import find_processes
from tests.support.git_http import TOKEN, WEB, GitService, lead
from tests.support.jobd import Jobd, Repository, make_repository, wait_until
from tests.support.sandboxes import SEALED

pytestmark = pytest.mark.slow


@pytest.fixture
def jobd(jobd_without_base: Jobd) -> Jobd:
    return jobd_without_base


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
    if request.param == "sealed" and not SEALED:
        pytest.skip("this machine seals no jobs")
    jobd.can_seal = request.param == "sealed"
    yield jobd
    jobd.call("clean")


def add_submodules(repository: Repository, **urls: str) -> None:
    """Name submodules, without fetching them."""
    commit = Repository(repository.folder.parent / "parts").git("rev-parse", "HEAD")
    entries = [f'[submodule "{name}"]\n\tpath = {name}\n\turl = {url}\n' for name, url in urls.items()]
    (repository.folder / ".gitmodules").write_text("".join(entries))
    repository.git("add", ".gitmodules")
    for name in urls:
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    repository.git("commit", "--quiet", "--message=a submodule")


def prepare(jobd: Jobd, *names: str, **changes: Any) -> dict[str, Any]:
    return jobd.prepare(**{**lead("octo/widgets", *names), "fetch_pause_s": 0.05, **changes})


def text_of(folder: Path) -> str:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return "\n".join(path.read_bytes().decode(errors="replace") for path in files)


def test_an_environment_is_made_of_what_comes_by_the_relay_and_holds_neither_its_address_nor_the_token(
    machine: Jobd, github: Path
) -> None:
    service = GitService(machine, github)
    setup = [
        "git config --list | grep -c 'extraheader=Authorization: Bearer'",
        "git config --get-regexp 'url.*insteadof' | head -1 | cut -d. -f2-",
    ]
    made = prepare(machine, setup=setup)
    assert made["state"] == "done", made
    assert machine.find("a.txt").read_text() == "one\ntwo\nthree\n"
    assert service.asked[0] == "/git/octo/widgets.git/info/refs?service=git-upload-pack"
    assert service.refused == []
    lines = made["log"].decode().split("\n")
    assert lines.count("1") == 1, "the commands of an environment may fetch, too"
    assert any(line.startswith("http://127.0.0.1:") for line in lines)
    assert f"{WEB}/octo/widgets.git" in made["log"].decode(), "the log says where it is from, and not by what"
    # The clone is the same by whatever way it is fetched.
    (clone,) = [path for path in (machine.workspace / "repos").iterdir() if path.is_dir()]
    assert clone.name.startswith("octo-widgets-git-")
    git_config = machine.find(".git/config").read_text()
    assert f"url = {WEB}/octo/widgets.git" in git_config
    assert "127.0.0.1" not in git_config + (clone / "config").read_text()
    (machine.control / "prepare.request").unlink()
    assert TOKEN not in text_of(machine.workspace)
    # Nothing listens once the environment is made.
    wait_until(lambda: not find_processes(machine.job_id))
    service.stop()


def test_however_a_submodule_is_written_it_comes_by_the_relay_also_if_that_is_cut_once(
    jobd: Jobd, repository: Repository, github: Path
) -> None:
    urls = {"parts": "../parts.git", "web": f"{WEB}/octo/parts", "git": f"{WEB}/octo/parts.git"}
    add_submodules(repository, **urls, ssh="git@github.invalid:octo/parts.git", short="../parts")
    seen: list[str] = []

    def cut(path: str, answer: bytes) -> bytes | None:
        seen.append(path)
        return None if seen.count(path) == 1 and "parts" in path else answer

    service = GitService(jobd, github, cut)
    made = prepare(jobd, "octo/parts", submodules=True)
    assert made["state"] == "done", made
    for name in (*urls, "ssh", "short"):
        assert jobd.find(f"{name}/part.txt").read_text() == "one part\n"
    assert service.refused == []
    service.stop()
    jobd.call("clean")


def test_a_fetch_that_is_cut_midway_is_made_again(jobd: Jobd, github: Path) -> None:
    cuts = 2

    def cut(path: str, answer: bytes) -> bytes | None:
        nonlocal cuts
        cuts -= path.endswith("git-upload-pack")
        return answer[: len(answer) // 2] if cuts >= 0 and path.endswith("git-upload-pack") else answer

    service = GitService(jobd, github, cut)
    made = prepare(jobd)
    assert made["state"] == "done", made
    assert b"The connection to the service was cut. Tries left: 3." in made["log"]
    assert jobd.find("a.txt").read_text() == "one\ntwo\nthree\n"
    service.stop()
    jobd.call("clean")


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


def test_while_the_service_is_away_a_preparation_waits_for_it(jobd: Jobd, github: Path) -> None:
    GitService(jobd, github).stop()
    jobd.call("prepare", **jobd.prepare_request(**lead("octo/widgets")))
    wait_until(lambda: b"fetch" in jobd.poll("prepare")["log"])
    time.sleep(0.5)
    assert jobd.poll("prepare")["state"] == "running"
    service = GitService(jobd, github)
    assert jobd.wait("prepare")["state"] == "done"
    service.stop()
    jobd.call("clean")


def test_a_base_is_refreshed_by_the_relay(jobd: Jobd, repository: Repository, github: Path) -> None:
    service = GitService(jobd, github)
    assert prepare(jobd)["state"] == "done"
    repository.commit({"a.txt": "newer\n"})
    other = jobd.beside()
    again = GitService(other, github)
    request = {**other.prepare_request(**lead("octo/widgets"), only_existing=True), "changes": []}
    other.call("base", **request)
    refreshed = other.wait("base")
    if SEALED:
        assert (refreshed["state"], refreshed["error"]) == ("done", None), refreshed
        assert refreshed["result"]["base"]["commit"] == repository.git("rev-parse", "HEAD")
        assert again.asked
    for one in (other, jobd):
        one.call("clean")
    service.stop()
    again.stop()


def test_a_submodule_that_nobody_named_comes_from_its_own_address(
    jobd: Jobd, repository: Repository, github: Path
) -> None:
    private = GitService(jobd, github)
    add_submodules(repository, parts=f"{WEB}/octo/parts")
    made = prepare(jobd, submodules=True)
    assert made["error"] == "checkout_failed"
    assert all("parts" not in path for path in private.asked)
    private.stop()
    jobd.call("clean")


def test_without_a_way_nothing_private_is_prepared(jobd: Jobd) -> None:
    made = prepare(jobd)
    assert made["error"] == "no_relay"
    shutil.rmtree(jobd.root)
