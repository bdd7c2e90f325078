"""A person in a job: at a real terminal, with real namespaces, after agents that left traps for them."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runner.jobd.access.enter import choose_terminal, run_enter
from runner.jobd.environment.home import notify
from runner.jobd.files import try_lock
from runner.jobd.sandbox.processes import find_processes
from tests.support.jobd import LIMITS, START, Jobd, Repository, processes_with, wait_until
from tests.support.made_base import MadeBase
from tests.support.sandboxes import SEALED
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

needs_cells = pytest.mark.skipif(not SEALED, reason="this machine seals no jobs")

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDJ0PUABuj6t3Mn2bKImLBfLzt131jvOJ3Um3hWPUbEK me@home"

TRAPS = """
for file in .bashrc .bash_profile .bash_login .profile .bash_logout .zshrc .bash_env; do
    echo "echo $file >> $PTQ_OUTPUT_DIR/sprung" > $HOME/$file
done
printf '"\\\\r": "touch $PTQ_OUTPUT_DIR/sprung\\\\n"\\n' > $HOME/.inputrc
printf '[core]\\n\\thooksPath = %s/hooks\\n\\tpager = touch %s/sprung\\n' $HOME $PTQ_OUTPUT_DIR > $HOME/.gitconfig
mkdir -p $VIRTUAL_ENV/bin $HOME/hooks .git/hooks
for file in $VIRTUAL_ENV/bin/activate .envrc .git/hooks/post-checkout .git/hooks/pre-commit $HOME/hooks/pre-commit \
        $VIRTUAL_ENV/bin/bash $VIRTUAL_ENV/bin/sh .git/hooks/fsmonitor; do
    printf '#!/bin/sh\\necho %s >> %s/sprung\\n' $file $PTQ_OUTPUT_DIR > $file
    chmod +x $file
done
git config core.fsmonitor .git/hooks/fsmonitor
git config core.pager "touch $PTQ_OUTPUT_DIR/sprung"
"""


either_way = pytest.mark.parametrize("jobd", ["sealed", "unsealed"], indirect=True)
SHOW_LIMIT = "grep core /proc/self/limits | tr -s ' '"


def prepare(folder: Path, repository: Repository, made_base: MadeBase, way: str) -> Jobd:
    """A job that was prepared, on a machine of either kind, and a home of the account for a key that may enter it."""
    if way == "sealed" and not SEALED:
        pytest.skip("this machine seals no jobs")
    (folder / "account").mkdir()
    jobd = Jobd(folder, repository, {"HOME": str(folder / "account")})
    made_base.lay_out(jobd)
    jobd.can_seal = way == "sealed"
    assert jobd.prepare()["state"] == "done"
    return jobd


@pytest.fixture(scope="module")
def entered(
    tmp_path_factory: pytest.TempPathFactory, template: Repository, made_base: MadeBase
) -> Iterator[Callable[[str], Jobd]]:
    """A job by its way, whose agent has set its traps and has ended. People come and go, one test after the other."""
    jobs: dict[str, Jobd] = {}

    def find(way: str) -> Jobd:
        if way not in jobs:
            folder = tmp_path_factory.mktemp("entered")
            origin = Repository(shutil.copytree(template.folder, folder / "origin"))
            jobs[way] = prepare(folder, origin, made_base, way)
            assert jobs[way].agent(f"{TRAPS}{SHOW_LIMIT}")["result"]["exit_status"] == 0
        return jobs[way]

    yield find
    for jobd in jobs.values():
        jobd.call("kill")


@pytest.fixture
def jobd(request: pytest.FixtureRequest, entered: Callable[[str], Jobd]) -> Jobd:
    """Such a job, on a machine that seals jobs if this one does, or of the kind that a test names."""
    return entered(getattr(request, "param", "sealed" if SEALED else "unsealed"))


def admit(jobd: Jobd, lasts_s: int = 60) -> None:
    jobd.call("admit", public_key=KEY, lasts_s=lasts_s, context="What is known.\n")


def come(jobd: Jobd, **env: str) -> Terminal:
    """A person, on the way into the job."""
    words = [sys.executable, "-I", "-S", str(jobd.program), "enter", str(jobd.workspace), jobd.job_id]
    return Terminal(words, {**jobd.env, "TERM": "dumb", **env}, before=jobd.be_its_machine)


def enter(jobd: Jobd, **env: str) -> Terminal:
    """A person in the job."""
    person = come(jobd, **env)
    person.wait_for(f"[ptq {jobd.job_id}]")
    person.be_quiet()
    return person


def leave(person: Terminal) -> int:
    person.type("exit")
    return person.end()


@either_way
def test_a_person_is_in_the_worktree_with_the_jobs_environment_and_nothing_of_the_callers(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd, SECRET="hunter2", LD_LIBRARY_PATH="/x", SSH_AUTH_SOCK="/agent")
    assert f"[ptq {jobd.job_id}] worktree" in person.shown
    assert str(jobd.job.context) in person.shown
    assert person.ask("pwd; cat $PTQ_CONTEXT_FILE") == f"{jobd.worktree}\nWhat is known.\n"
    assert person.ask("echo $VIRTUAL_ENV ${PATH%%:*} $HOME") == f"{jobd.job.venv} {jobd.job.venv}/bin {jobd.job.home}\n"
    assert person.ask("env | grep -c -e hunter2 -e LD_LIB -e SSH_A") == "0\n"
    assert person.ask("echo more >> a.txt; git status --short a.txt") == " M a.txt\n"
    # With a limit of 1 byte, Linux starts no program for core dumps, either. Nobody raises a limit of 0 again.
    limit = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    limits = {jobd.poll("agent")["log"].decode(), person.ask(SHOW_LIMIT)}
    assert limits == {f"Max core file size {limit} {limit} bytes \n"}, "crashed programs leave their memory"
    assert leave(person) == 0
    assert jobd.find("a.txt").read_text().endswith("more\n")


@either_way
def test_nothing_that_an_agent_planted_is_run_for_a_person(jobd: Jobd) -> None:
    sprung = jobd.job.output / "sprung"
    sprung.unlink(missing_ok=True)
    admit(jobd)
    person = enter(jobd, TERM="xterm")
    person.ask("echo x >> a.txt; git -c user.name=a -c user.email=a@b commit -qam mine; git status")
    assert "mine" in person.ask("git checkout -q --detach HEAD; git log -1")
    assert not sprung.exists(), sprung.read_text()
    person.ask("/bin/bash -ic true; cd . ; . $VIRTUAL_ENV/bin/activate")
    assert sprung.read_text().split() == [".bashrc", f"{jobd.job.venv}/bin/activate"], "what a person runs does run"
    assert leave(person) == 0


def test_a_terminal_that_the_system_does_not_describe_gets_a_name_that_nobody_foresees(tmp_path: Path) -> None:
    names = {choose_terminal("xterm", [str(tmp_path)])["TERM"] for _ in range(2)}
    assert len(names) == 2
    (tmp_path / "64").mkdir()
    (tmp_path / "64/dumb").touch()
    assert choose_terminal("../64/dumb", [str(tmp_path)]) == {"TERM": "dumb", "TERMINFO": str(tmp_path)}


@needs_cells
def test_a_job_is_not_entered_while_its_agent_is_at_work_nor_with_its_worktree_put_elsewhere(
    tmp_path: Path, repository: Repository, made_base: MadeBase
) -> None:
    jobd = prepare(tmp_path, repository, made_base, "sealed")
    admit(jobd)
    jobd.start('cd /; mv "$PTQ_WORKTREE" "$PTQ_WORKTREE.old"; ln -s / "$PTQ_WORKTREE"; echo moved; exec sleep 60')
    wait_until(lambda: jobd.poll("agent")["log"] == b"moved\n")
    person = come(jobd)
    assert person.end() == 1
    assert "its agent is at work" in person.shown
    assert jobd.poll("agent")["state"] == "running"
    jobd.call("stop")
    jobd.wait("agent")
    person = come(jobd)
    assert person.end() == 1
    assert "put something else in its place" in person.shown


def test_of_two_people_one_is_in_a_job(jobd: Jobd) -> None:
    admit(jobd)
    first = enter(jobd)
    second = come(jobd)
    assert second.end() == 1
    assert "another process is using" in second.shown
    assert first.ask("echo here") == "here\n"
    leave(first)
    assert leave(enter(jobd)) == 0


ENDS: Mapping[str, Callable[[Terminal, Jobd], object]] = {
    "leaves": lambda person, _: leave(person),
    "is cut off": lambda person, _: person.hang_up(),
    "is killed": lambda person, _: person.kill(),
    "is dismissed": lambda person, jobd: (jobd.call("dismiss"), person.end()),
}


def begin_stray(person: Terminal, mark: str) -> None:
    """Begin a process that does what it can to outlive the session."""
    stray = "import os, signal, time; os.fork() and os._exit(0); os.setsid(); signal.signal(1, 1); time.sleep(60)"
    person.ask(f"env -i {sys.executable} -c '{stray}' {mark} < /dev/null > /dev/null 2>&1")
    person.ask("trap '' HUP")
    assert processes_with(mark)


@either_way
@pytest.mark.parametrize("end", ENDS)
def test_what_a_person_began_ends_with_the_session(jobd: Jobd, tmp_path: Path, end: str) -> None:
    if end == "is killed" and not jobd.can_seal:
        pytest.skip("only a namespace ends with its first process")
    mark = f"stray-of-{tmp_path}"
    admit(jobd)
    person = enter(jobd)
    begin_stray(person, mark)
    ENDS[end](person, jobd)
    wait_until(lambda: processes_with(mark) == [])
    wait_until(lambda: find_processes(jobd.job_id) == [])
    with jobd.job.tree_lock.open() as lock:
        assert try_lock(lock.fileno())


def test_a_person_is_out_when_the_time_is_over(jobd: Jobd) -> None:
    admit(jobd, lasts_s=2)
    person = enter(jobd)
    person.type("trap '' HUP TERM; exec sleep 60")
    assert person.end() == 0
    assert "your time in this job is over" in person.shown
    late = come(jobd)
    assert late.end() == 1
    assert "nobody has access to this job" in late.shown


def test_without_a_hold_nobody_enters(jobd: Jobd) -> None:
    admit(jobd)
    jobd.call("dismiss")
    person = come(jobd)
    assert person.end() == 1
    assert "nobody has access to this job" in person.shown


def test_a_key_runs_no_command_and_needs_a_terminal(jobd: Jobd) -> None:
    admit(jobd)
    person = come(jobd, SSH_ORIGINAL_COMMAND="cat a.txt")
    assert person.end() == 1
    assert "it cannot run commands" in person.shown
    words = [sys.executable, "-I", "-S", str(jobd.program), "enter", str(jobd.workspace), jobd.job_id]
    done = subprocess.run(words, env=jobd.env, input=b"echo hi\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"use ssh -t" in done.stderr


@pytest.mark.parametrize("words", [["../../x"], ["0123456789\n"], [""], ["ABCDEF0123"]])
def test_names_that_are_no_jobs_are_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_enter(str(tmp_path), *words) == 1
    assert "ten hexadecimal digits" in capsys.readouterr().err


@needs_cells
def test_a_job_reaches_no_terminal_but_its_own(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd)
    seen = jobd.beside()
    assert seen.prepare()["state"] == "done"
    assert seen.agent("ls /dev/pts")["log"] == b"ptmx\n"
    assert person.ask("tty; ls -x /dev/pts") == "/dev/pts/0\n0  ptmx\n"
    leave(person)


def test_much_is_pasted_and_much_is_shown_at_once(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd)
    person.type("tee $TMPDIR/pasted | sed 's/^/got /'")
    lines = [f"line {number} " + "x" * 60 for number in range(2_000)]
    for line in lines:
        person.type(line)
    person.wait_for("got line 1999")
    person.type("\x04")
    assert person.ask("wc -l < $TMPDIR/pasted").split()[-1] == "2000"
    leave(person)
    assert (jobd.job.tmp / "pasted").read_text().splitlines() == lines


def test_the_terminal_is_as_large_as_the_persons_also_when_that_changes(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd)
    for size in ((33, 77), (50, 120)):
        person.resize(*size)
        deadline = time.monotonic() + 10
        while (said := person.ask("stty size")) != f"{size[0]} {size[1]}\n":
            assert time.monotonic() < deadline, said
    leave(person)


def test_a_link_in_the_place_of_a_file_of_ours_is_not_followed(jobd_without_base: Jobd, tmp_path: Path) -> None:
    jobd = jobd_without_base
    jobd.job.make_folders()
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (jobd.root / f"notice.txt.{os.getpid()}.part").symlink_to(precious)
    assert notify(json.loads(jobd.body(text="hello"))) == {"written": False}
    assert precious.read_text() == "kept"


# The environment passes to the job that follows


@pytest.mark.parametrize("way", ["sealed", "unsealed"])
def test_what_a_person_changed_is_collected_as_the_next_jobs_who_is_still_in_is_put_out(
    tmp_path: Path, repository: Repository, made_base: MadeBase, way: str
) -> None:
    jobd = prepare(tmp_path, repository, made_base, way)
    jobd.agent("echo agent > a.txt; echo told > $PTQ_OUTPUT_DIR/report.md")
    assert jobd.collect()["state"] == "done"
    admit(jobd)
    person = enter(jobd)
    person.ask("echo person > b.txt; echo new > n.txt")
    later = jobd.beside()
    assert later.call("adopt", earlier=jobd.job_id) == {"ok": True}
    person.end()
    assert find_processes(jobd.job_id) == []
    assert later.call("adopt", earlier=jobd.job_id) == {"ok": True}
    assert later.collect()["state"] == "done"
    result = later.result()
    assert {change["path"] for change in result["changes"]} == {"a.txt", "b.txt", "n.txt"}
    assert result["report"] == "told\n"
    assert not jobd.root.exists()
    start = {"argv": ["true"], "env": {}, "prompt": "", **START, **LIMITS}
    assert jobd.ask("prepare", **jobd.prepare_request())["error"] == "ended"
    assert jobd.ask("start", **start)["ok"] is False
    assert come(jobd).end() == 1, "the key led into the earlier job"
    expect_job_to_take_everybody_with_it(later, f"stray-of-{tmp_path}")


def expect_job_to_take_everybody_with_it(jobd: Jobd, mark: str) -> None:
    admit(jobd)
    person = enter(jobd)
    begin_stray(person, mark)
    jobd.call("clean")
    person.end()
    wait_until(lambda: processes_with(mark) == [])
    wait_until(lambda: find_processes(jobd.job_id) == [])
    assert jobd.beside().ask("adopt", earlier=jobd.job_id)["error"] == "gone"
    assert [*(jobd.workspace / "jobs").iterdir()] == []
