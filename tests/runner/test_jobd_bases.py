"""The bases that environments begin from: made once, gone on with, refreshed, kept for as long as they are needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment import bases
from runner.jobd.verbs.watchers import has_changed
from runner.model.environment import import_command
from tests.support.contents import find_differences, read_entries
from tests.support.git_daemon import serve
from tests.support.jobd import Jobd, Repository, find_first, make_repository, processes_with, wait_until
from tests.support.sandboxes import MISSING

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]


@pytest.fixture
def jobd(jobd_without_base: Jobd) -> Jobd:
    return jobd_without_base


needs_overlays = pytest.mark.skipif(bool({*MISSING} - {"proc"}), reason=f"this machine mounts no overlays: {MISSING}")

COUNT = 'echo made >> "$PTQ_WORKTREE/../home/times"'
"""A setup command that shows how often it was run, where a base keeps it."""


def done(poll: dict[str, Any]) -> dict[str, Any]:
    """The result of a stage that has ended well."""
    assert poll["state"] == "done", (poll["error"], poll["message"])
    result: dict[str, Any] = poll["result"]
    return result


def refresh(jobd: Jobd, *, only_existing: bool = False, **changes: Any) -> dict[str, Any]:
    """Bring the base up to date, which is no job's work."""
    request = {**jobd.prepare_request(**changes), "only_existing": only_existing}
    jobd.call("base", **{name: request[name] for name in request if name not in ("changes", "held_back")})
    return jobd.wait("base")


def read_log(jobd: Jobd, script: str) -> str:
    """What a script says in the job's environment."""
    ended = jobd.agent(script)
    assert ended["result"]["exit_status"] == 0, ended["log"]
    text: str = ended["log"].decode()
    return text


def list_layers(jobd: Jobd) -> list[str]:
    return sorted(path.name for path in jobd.workspace.glob("bases/*/*") if path.name.isdecimal())


def list_shelves(jobd: Jobd) -> list[Path]:
    return sorted((jobd.workspace / "bases").iterdir())


# Made once


def test_of_two_first_jobs_at_once_one_makes_the_base_and_both_have_it(jobd: Jobd) -> None:
    recipe: dict[str, Any] = {"setup": ["sleep 0.5", COUNT], "smoke_test": ["true"]}
    jobs = [jobd, jobd.beside()]
    with ThreadPoolExecutor(2) as pool:
        polls = list(pool.map(lambda job: job.prepare(**recipe), jobs))
    results = [done(poll) for poll in polls]
    assert results[0]["base"] == results[1]["base"]
    logs = sorted(poll["log"].count(b"[Building this repository's base: later jobs start from it.]") for poll in polls)
    assert logs == [0, 1]
    assert any(b"[Waiting for another job that is building this repository's base.]" in poll["log"] for poll in polls)

    # A later job makes nothing, and nor does a refresh to the commit that the base has.
    later = jobd.beside()
    poll = later.prepare(**recipe)
    assert done(poll)["base"] == results[0]["base"]
    assert b"$ echo made" not in poll["log"]
    assert done(refresh(jobd.beside(), **recipe))["base"] == results[0]["base"]
    assert list_layers(jobd) == ["1"]

    # The smoke test succeeds beside an agent, and leaves it alone.
    assert read_log(later, 'sleep 0.5; cat "$HOME/times"') == "made\n"
    assert done(later.poll("agent"))["objection"] is None
    assert [job.find("../home/times").read_text() for job in jobs] == ["made\n"] * 2


def test_whatever_makes_a_base_tells_it_from_others(jobd: Jobd) -> None:
    def name(way: str = "overlay", **changes: Any) -> str:
        return bases.BaseStore(jobd.job, jobd.prepare_request(**changes), way).name

    assert name(update=["true"], timeout_s=19) == name()
    changes: list[dict[str, Any]] = [{"create_venv": ["/bin/mkdir", "-p"]}, {"submodules": True}, {"smoke_test": [":"]}]
    changes += [{"setup": [":"]}, {"imports": [["true"]]}]
    assert len({name(), name("copy"), *(name(**change) for change in changes)}) == 2 + len(changes)


FULL = "No space left on device"
"""The words alone are not believed: commands choose what they say."""


def test_a_base_that_cannot_be_made_is_told_and_made_once_the_cause_is_gone(jobd: Jobd, tmp_path: Path) -> None:
    def gate(command: str) -> str:
        (tmp_path / command).touch()
        return f'seq 30; test ! -e {tmp_path / command} || {{ echo "{FULL}"; exit 7; }}'

    command = import_command(sys.executable, "widgets")
    # In the worktree, but not installed.
    setup = [COUNT, "mkdir -p widgets", "touch widgets/__init__.py", gate("setup")]
    steps: dict[str, Any] = {"setup": setup, "smoke_test": [gate("smoke_test")], "imports": [command]}
    for name in ("setup", "smoke_test"):
        job = jobd.beside()
        poll = job.prepare(**steps)
        assert (poll["state"], poll["error"]) == ("failed", f"{name}_failed")
        head, *tail = poll["message"].splitlines()
        assert head.endswith("failed (exit status 7):")
        assert (len(tail), tail[-1]) == (20, FULL)
        assert list_layers(jobd) == []
        assert job.ask("start")["ok"] is False
        (tmp_path / name).unlink()

    # A base whose project cannot be imported is not used.
    poll = jobd.beside().prepare(**steps)
    assert poll["error"] == "imports_failed"
    head, *tail = poll["message"].splitlines()
    assert head.startswith("the project cannot be imported, so its repository's `setup` or `import_names` is wrong: ")
    assert tail[-1] == "ModuleNotFoundError: No module named 'widgets'"
    assert list_layers(jobd) == []
    done(jobd.beside().prepare(**{**steps, "imports": [import_command(sys.executable, "json")]}))
    assert len(list_layers(jobd)) == 1


# Cut short


def kill_stage(jobd: Jobd, stage: str) -> None:
    """Kill a stage, and nothing else, as a machine does that has no memory left."""
    os.kill(find_first(processes_with(f"{jobd.control}/{stage}.request")), signal.SIGKILL)


@pytest.mark.parametrize("cancelled", [False, True])
@needs_overlays
def test_a_base_whose_maker_was_killed_or_cancelled_is_gone_on_with(
    jobd: Jobd, tmp_path: Path, cancelled: bool
) -> None:
    marker = tmp_path / "go-on"
    setup = [COUNT, f"until [ -e {marker} ]; do sleep 0.01; done; {COUNT}"]
    jobd.call("prepare", **jobd.prepare_request(setup=setup))
    wait_until(lambda: b"until [ -e" in jobd.poll("prepare")["log"])
    if cancelled:
        jobd.call("clean")
        assert jobd.poll("prepare")["state"] == "absent"
    else:
        kill_stage(jobd, "prepare")
        wait_until(lambda: jobd.poll("prepare")["state"] == "lost")
    # What it ran dies a moment after it, also where it has not begun to run yet.
    wait_until(lambda: not processes_with(f"{jobd.control}/prepare.request"))
    wait_until(lambda: not processes_with(str(marker)))
    marker.touch()
    later = jobd.beside()
    poll = later.prepare(setup=setup)
    done(poll)
    assert b"[Continuing an interrupted build of this repository's base: later jobs start from it.]" in poll["log"]
    assert poll["log"].count(b"checkout") == 0
    assert later.find("../home/times").read_text() == "made\nmade\n"
    assert later.find("a.txt").read_text() == "one\ntwo\nthree\n"


# Refreshed


@pytest.mark.parametrize("way", ["overlay", "copy"])
@needs_overlays
def test_a_refresh_leaves_jobs_at_work_alone_and_the_next_job_has_it(
    jobd: Jobd, repository: Repository, way: str
) -> None:
    recipe: dict[str, Any] = {"setup": [COUNT], "ways": [way]}
    made = done(refresh(jobd.beside(), **recipe))  # There is none yet: the refresh makes it.
    poll = jobd.prepare(**recipe)
    assert done(poll)["base"] == made["base"]
    assert b"[Building this repository's base: later jobs start from it.]" not in poll["log"]
    jobd.start('until [ -e "$PTQ_NOTICE_FILE" ]; do sleep 0.01; done; cat a.txt "$HOME/times"; git log --format=%H')
    old = repository.git("rev-parse", "main")
    layers = read_entries(jobd.workspace / "bases", [])
    new = repository.commit({"a.txt": "newer\n"})
    refreshed = done(refresh(jobd.beside(), **recipe))
    assert refreshed["base"]["commit"] == new
    first = [path for path in find_differences(layers, read_entries(jobd.workspace / "bases")) if "/1/" in path]
    assert first == []
    later = jobd.beside()
    poll = later.prepare(**recipe)
    assert done(poll)["base"] == refreshed["base"]
    assert poll["log"].count(b"$ ") == 1  # To bring the clone up to date; the worktree needs nothing.
    jobd.call("notify", text="go on")
    assert jobd.wait("agent")["log"].decode() == f"one\ntwo\nthree\nmade\n{old}\n"
    assert read_log(later, 'cat a.txt "$HOME/times"; git status --short') == "newer\nmade\nmade\n"
    assert list_layers(jobd) == ["1", "2"]


def test_after_so_many_layers_a_base_is_made_anew(jobd: Jobd, repository: Repository) -> None:
    done(refresh(jobd))
    (shelf,) = list_shelves(jobd)
    record = json.loads((shelf / "base.json").read_text())
    if len(record["layers"]) != 1 or jobd.poll("base")["result"]["way"] != "overlay":
        pytest.skip("this machine mounts no overlays, and so no base has layers")
    record["layers"] = [str(number) for number in range(bases.MAX_LAYERS - 1, 0, -1)]
    for name in record["layers"][:-1]:  # As if nothing had changed in between.
        (shelf / name).mkdir()
    (shelf / "base.json").write_text(json.dumps(record))
    commit = repository.commit({"number": "newer\n"})
    done(refresh(jobd.beside()))
    newest = jobd.beside()
    done(newest.prepare())
    assert len(json.loads((shelf / "base.json").read_text())["layers"]) == bases.MAX_LAYERS
    assert read_log(newest, "cat number; git rev-parse HEAD") == f"newer\n{commit}\n"
    repository.commit({"number": "last\n"})
    poll = refresh(jobd.beside())
    assert b"[Building this repository's base: later jobs start from it.]" in poll["log"]
    assert json.loads((shelf / "base.json").read_text())["layers"] == [str(bases.MAX_LAYERS + 1)]
    later = jobd.beside()
    done(later.prepare())
    assert later.find("number").read_text() == "last\n"
    assert newest.find("a.txt").read_text() == "one\ntwo\nthree\n"


# What is still needed


def test_layers_that_nobody_needs_go_and_those_of_jobs_stay(jobd: Jobd, repository: Repository) -> None:
    way: dict[str, Any] = {"ways": ["copy"]}  # By which a base is one folder.
    done(jobd.prepare(**way))
    for number in range(2):
        repository.commit({"number": f"{number}\n"})
        done(refresh(jobd.beside(), **way))
    assert list_layers(jobd) == ["1", "3"]
    jobd.call("clean")
    repository.commit()
    done(refresh(jobd.beside(), **way))
    assert list_layers(jobd) == ["4"]


def test_what_was_thrown_away_is_gone_once_any_job_was_cleaned(jobd: Jobd) -> None:
    trash = jobd.workspace / "trash"
    (trash / "layer" / "closed" / "deep").mkdir(parents=True)
    (trash / "layer" / "closed").chmod(0o000)
    jobd.call("clean")
    wait_until(lambda: list(trash.iterdir()) == [])


def test_other_commands_make_another_base_and_one_that_nobody_began_from_for_long_goes(jobd: Jobd) -> None:
    used = jobd.beside()
    for job, name in ((used, "used"), (jobd, "unused")):
        poll = job.prepare(setup=[f"echo {name} > made"])
        done(poll)
        assert b"[Building this repository's base: later jobs start from it.]" in poll["log"]
        assert job.find("made").read_text() == f"{name}\n"
    assert len(list_shelves(jobd)) == 2
    jobd.call("clean")
    for shelf in list_shelves(jobd):
        os.utime(shelf, (0, time.time() - bases.UNUSED_S - 60))
    done(jobd.beside().prepare(setup=["echo newest > made"]))
    assert len(list_shelves(jobd)) == 2
    assert used.find("made").read_text() == "used\n"


# At another commit than the base's


def test_a_job_of_a_later_commit_has_it_and_its_update_commands_were_run_also_when_no_refresh_succeeds(
    jobd: Jobd, repository: Repository
) -> None:
    recipe: dict[str, Any] = {"setup": [COUNT, "test ! -e new.txt"], "update": ['git rev-parse HEAD > "$HOME/updated"']}
    base = done(jobd.prepare(**recipe))
    commit = repository.commit({"a.txt": "newer\n", "new.txt": "new\n"})
    failed = refresh(jobd.beside(), **recipe)
    assert (failed["state"], failed["error"]) == ("failed", "setup_failed")  # The base is then as it was.
    later = jobd.beside()
    prepared = done(later.prepare(**recipe))
    assert (prepared["base_commit"], prepared["base"]) == (commit, base["base"])
    said = read_log(later, 'cat a.txt new.txt "$HOME/times" "$HOME/updated"; git status --short; git rev-parse HEAD')
    assert said == f"newer\nnew\nmade\n{commit}\n{commit}\n"
    assert jobd.find("a.txt").read_text() == "one\ntwo\nthree\n"
    assert (jobd.find("../home/times").exists(), jobd.find("../home/updated").exists()) == (True, False)

    failed = jobd.beside().prepare(**{**recipe, "update": ["echo no such thing; exit 3"]})
    assert failed["error"] == "update_failed"
    assert failed["message"] == "the update command `echo no such thing; exit 3` failed (exit status 3):\nno such thing"


@pytest.fixture
def library(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "library", {"version": "1\n"})


def test_submodules_are_at_their_commits_also_when_a_later_one_moves_them(
    tmp_path: Path, repository: Repository, library: Repository
) -> None:
    with serve(tmp_path) as address:
        repository.git("submodule", "--quiet", "add", f"{address}/library/.git", "lib")
        repository.commit()
        first = Jobd(tmp_path, repository)
        poll = first.prepare(submodules=True)
        done(poll)
        library.commit({"version": "2\n"})
        repository.git("submodule", "--quiet", "update", "--remote")
        repository.commit()
        library.commit({"version": "3\n"})
        later = first.beside()
        done(later.prepare(submodules=True))
    look = "cat lib/version; git status --short; git -C lib rev-parse HEAD"
    newer, older = library.git("rev-parse", "main~1"), library.git("rev-parse", "main~2")
    assert read_log(later, look) == f"2\n{newer}\n"
    assert read_log(first, look) == f"1\n{older}\n"


def test_a_submodule_on_the_machines_own_disk_is_not_fetched(
    tmp_path: Path, repository: Repository, library: Repository
) -> None:
    repository.git("submodule", "--quiet", "add", library.url, "lib")
    repository.commit()
    poll = Jobd(tmp_path, repository).prepare(submodules=True)
    assert poll["error"] == "checkout_failed"
    assert "transport 'file' not allowed" in poll["message"]


# The smoke test


def test_a_smoke_test_that_fails_beside_the_agent_ends_it_and_says_why(jobd: Jobd, tmp_path: Path) -> None:
    """What Python and git write meanwhile is no change of the agent's. Bytecode that is new is, and can be forged."""
    marker = tmp_path / "broken"
    compiles = "cd dir; mkdir -p __pycache__; echo $$ > __pycache__/c.pyc; git status > /dev/null"
    smoke_test = [f"test $PYTHONDONTWRITEBYTECODE || ({compiles}); git status > /dev/null"]
    smoke_test.append(f"if [ -e {marker} ]; then echo no module named torch; exit 9; fi")
    done(jobd.prepare(smoke_test=smoke_test))
    marker.touch()
    began = time.monotonic()
    result = done(jobd.agent("sleep 60"))
    assert time.monotonic() - began < 40
    head, *tail = result["objection"].splitlines()
    assert head == f"the environment failed its smoke test `{smoke_test[1]}` (exit status 9):"
    assert tail == ["no module named torch"]


EDITS: Mapping[str, str] = {
    "a file edited": "echo oops >> $PTQ_WORKTREE/a.txt",
    "bytecode written": "mkdir -p $PTQ_WORKTREE/dir/__pycache__; echo > $PTQ_WORKTREE/dir/__pycache__/c.pyc",
    "a file renamed": "mv $PTQ_WORKTREE/b.txt $PTQ_WORKTREE/dir/",
    "a package installed": "mkdir $VIRTUAL_ENV/package; touch $VIRTUAL_ENV/package/module.py",
    "a package installed for the user": "mkdir -p ~/.local/lib/python3.9; touch ~/.local/lib/python3.9/module.py",
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_kind_of_edit_since_the_agent_began_is_found(tmp_path: Path, edit: str) -> None:
    worktree, venv, home = places = [tmp_path / name for name in ("worktree", "venv", "home")]
    for folder in (*places, worktree / "dir", worktree / ".git"):
        folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (worktree / name).touch()
    time.sleep(0.02)  # The clock of files has ticks.
    began = tmp_path / "began"
    began.touch()
    time.sleep(0.02)
    (worktree / ".git" / "index").touch()
    looked_at = (worktree, venv, home / ".local" / "lib")
    assert not has_changed(looked_at, began)
    env = {**os.environ, "PTQ_WORKTREE": str(worktree), "VIRTUAL_ENV": str(venv), "HOME": str(home)}
    subprocess.run(["/bin/sh", "-ec", edit], env=env, check=True)
    assert has_changed(looked_at, began)


@pytest.mark.parametrize(
    ("way", "edit"),
    [("overlay", "a file renamed"), ("copy", "a package installed for the user"), ("slot", "a package installed")],
)
def test_a_smoke_test_that_fails_after_the_agent_began_its_changes_is_told_and_ends_nothing(
    jobd: Jobd, tmp_path: Path, way: str, edit: str
) -> None:
    smoke_test = [f"if [ -e {tmp_path}/gate ]; then until [ -e /tmp/edited ]; do sleep 0.01; done; exit 9; fi"]
    done(jobd.prepare(smoke_test=smoke_test, ways=[way]))
    (tmp_path / "gate").touch()
    jobd.start(f'{EDITS[edit]}; touch /tmp/edited; until [ -e "$TMPDIR/go-on" ]; do sleep 0.01; done; echo done')
    wait_until(jobd.job.watcher_warning.exists)
    time.sleep(0.3)  # An objection would have come by now.
    (jobd.job.tmp / "go-on").touch()
    result = done(jobd.wait("agent"))
    assert (result["exit_status"], result["objection"]) == (0, None)
    assert result["doubt"] == f"the environment failed its smoke test `{smoke_test[0]}` (exit status 9):\n"


def test_by_a_base_for_each_slot_there_is_nothing_to_refresh(jobd: Jobd) -> None:
    done(jobd.prepare(ways=["slot"]))
    later = jobd.beside()
    assert done(refresh(later, ways=["slot"], only_existing=True)) == {"way": "slot", "base": None}
    asked = refresh(jobd.beside(), ways=["slot"])
    assert (asked["state"], asked["error"]) == ("failed", "slots_own")
