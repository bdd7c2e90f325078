"""A person in a job: at a real terminal, with real namespaces, after agents that left traps for them."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runner.jobd.access.enter import choose_terminal
from runner.jobd.files import try_lock
from runner.jobd.sandbox import namespaces
from runner.jobd.sandbox.processes import find_processes
from tests.support.jobd import LIMITS, START, Jobd, Repository, processes_with, wait_until
from tests.support.made_base import MadeBase
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

SEALED = namespaces.can_sandbox(namespaces.find_missing(Path("/var/tmp")))
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


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The account's home."""
    home = tmp_path / "account"
    home.mkdir()
    return home


@pytest.fixture(params=["sealed", "unsealed"])
def jobd(
    request: pytest.FixtureRequest, tmp_path: Path, repository: Repository, made_base: MadeBase, home: Path
) -> Iterator[Jobd]:
    """A job that was prepared, on a machine of either kind, and a key that may enter it."""
    if request.param == "sealed" and not SEALED:
        pytest.skip("this machine seals no jobs")
    jobd = Jobd(tmp_path, repository, {"HOME": str(home)})
    made_base.lay_out(jobd)
    jobd.can_seal = request.param == "sealed"
    assert jobd.prepare()["state"] == "done"
    yield jobd
    jobd.call("kill")


def admit(jobd: Jobd, lasts_s: int = 60) -> None:
    jobd.call("admit", public_key=KEY, lasts_s=lasts_s, context="What is known.\n")


def come(jobd: Jobd, **env: str) -> Terminal:
    """A person, on the way into the job."""
    words = [sys.executable, "-I", str(jobd.program), "enter", str(jobd.workspace), jobd.job_id]
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


def test_a_person_is_in_the_worktree_with_the_jobs_environment_and_nothing_of_the_callers(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd, SECRET="hunter2", LD_LIBRARY_PATH="/x", SSH_AUTH_SOCK="/agent")
    assert f"[ptq {jobd.job_id}] worktree" in person.shown
    assert str(jobd.job.context) in person.shown
    assert person.ask("pwd; cat $PTQ_CONTEXT_FILE") == f"{jobd.worktree}\nWhat is known.\n"
    assert person.ask("echo $VIRTUAL_ENV ${PATH%%:*} $HOME") == f"{jobd.job.venv} {jobd.job.venv}/bin {jobd.job.home}\n"
    assert person.ask("env | grep -c -e hunter2 -e LD_LIB -e SSH_A") == "0\n"
    assert person.ask("echo more >> a.txt; git status --short") == " M a.txt\n"
    assert leave(person) == 0
    assert jobd.find("a.txt").read_text().endswith("more\n")


def test_nothing_that_an_agent_planted_is_run_for_a_person(jobd: Jobd) -> None:
    sprung = jobd.job.output / "sprung"
    assert jobd.agent(TRAPS)["result"]["exit_status"] == 0
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


SHOW_LIMIT = "grep core /proc/self/limits | tr -s ' '"


def test_no_program_of_a_job_leaves_its_memory_on_the_machine_when_it_crashes(jobd: Jobd) -> None:
    """With a limit of 1 byte, Linux starts no program for core dumps, either. Nobody raises a limit of 0 again."""
    limit = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    expected = f"Max core file size {limit} {limit} bytes \n"
    assert jobd.agent(SHOW_LIMIT)["log"].decode() == expected
    admit(jobd)
    person = enter(jobd)
    assert person.ask(SHOW_LIMIT) == expected
    assert leave(person) == 0


def test_a_job_whose_agent_is_at_work_is_not_entered(jobd: Jobd) -> None:
    admit(jobd)
    jobd.start("sleep 60")
    person = come(jobd)
    assert person.end() == 1
    assert "its agent is at work" in person.shown
    assert jobd.poll("agent")["state"] == "running"


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
    "loses the job": lambda person, jobd: (jobd.call("clean"), person.end()),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_a_person_began_ends_with_the_session(jobd: Jobd, tmp_path: Path, end: str) -> None:
    if end == "is killed" and not jobd.can_seal:
        pytest.skip("only a namespace ends with its first process")
    mark = f"stray-of-{tmp_path}"
    stray = "import os, signal, time; os.fork() and os._exit(0); os.setsid(); signal.signal(1, 1); time.sleep(60)"
    admit(jobd)
    person = enter(jobd)
    person.ask(f"env -i {sys.executable} -c '{stray}' {mark} < /dev/null > /dev/null 2>&1")
    person.ask("trap '' HUP")
    assert processes_with(mark)
    ENDS[end](person, jobd)
    wait_until(lambda: processes_with(mark) == [])
    wait_until(lambda: find_processes(jobd.job_id) == [])
    if jobd.root.exists():
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
    person = come(jobd)
    assert person.end() == 1
    assert "nobody has access to this job" in person.shown
    admit(jobd)
    jobd.call("dismiss")
    assert come(jobd).end() == 1


def test_a_key_runs_no_command_and_needs_a_terminal(jobd: Jobd) -> None:
    admit(jobd)
    person = come(jobd, SSH_ORIGINAL_COMMAND="cat a.txt")
    assert person.end() == 1
    assert "it cannot run commands" in person.shown
    words = [sys.executable, "-I", str(jobd.program), "enter", str(jobd.workspace), jobd.job_id]
    done = subprocess.run(words, env=jobd.env, input=b"echo hi\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"use ssh -t" in done.stderr


@pytest.mark.parametrize("words", [["../../x"], ["0123456789\n"], [""], ["ABCDEF0123"]])
def test_names_that_are_no_jobs_are_refused(jobd: Jobd, words: list[str]) -> None:
    person = Terminal([sys.executable, "-I", str(jobd.program), "enter", str(jobd.workspace), *words], jobd.env)
    assert person.end() == 1
    assert "ten hexadecimal digits" in person.shown


@needs_cells
def test_a_job_reaches_no_terminal_but_its_own(tmp_path: Path, repository: Repository, home: Path) -> None:
    jobd = Jobd(tmp_path, repository, {"HOME": str(home)})
    assert jobd.prepare()["state"] == "done"
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
    person.type("tee pasted | sed 's/^/got /'")
    lines = [f"line {number} " + "x" * 60 for number in range(2_000)]
    for line in lines:
        person.type(line)
    person.wait_for("got line 1999")
    person.type("\x04")
    assert person.ask("wc -l < pasted").split()[-1] == "2000"
    leave(person)
    assert jobd.find("pasted").read_text().splitlines() == lines


def test_the_terminal_is_as_large_as_the_persons_also_when_that_changes(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd)
    for size in ((33, 77), (50, 120)):
        person.resize(*size)
        deadline = time.monotonic() + 10
        while (said := person.ask("stty size")) != f"{size[0]} {size[1]}\n":
            assert time.monotonic() < deadline, said
    leave(person)


def test_a_worktree_that_the_agent_put_elsewhere_is_not_entered(jobd: Jobd) -> None:
    admit(jobd)
    jobd.agent('cd /; mv "$PTQ_WORKTREE" "$PTQ_WORKTREE.old"; ln -s / "$PTQ_WORKTREE"')
    person = come(jobd)
    assert person.end() == 1
    assert "put something else in its place" in person.shown


def test_a_link_in_the_place_of_a_file_of_ours_is_not_followed(unsealed: Jobd, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    unsealed.prepare()
    plant = f"for number in $(seq $1 $2); do ln -s {precious} notice.txt.$number.part; done"
    near = int(subprocess.run(["sh", "-c", "echo $$"], check=True, capture_output=True).stdout)
    subprocess.run(["sh", "-c", plant, "sh", str(near), str(near + 500)], cwd=unsealed.root, check=True)
    unsealed.ask("notify", text="hello")
    assert precious.read_text() == "kept"


# The environment passes to the job that follows


def test_what_a_person_changed_is_collected_as_the_next_jobs(jobd: Jobd) -> None:
    jobd.agent("echo agent > a.txt; echo told > $PTQ_OUTPUT_DIR/report.md")
    assert jobd.collect()["state"] == "done"
    admit(jobd)
    person = enter(jobd)
    person.ask("echo person > b.txt; echo new > n.txt")
    leave(person)
    later = jobd.beside()
    for _ in range(2):
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
    later.call("clean")


def test_a_person_who_is_still_in_when_the_job_passes_on_is_put_out(jobd: Jobd) -> None:
    admit(jobd)
    person = enter(jobd)
    later = jobd.beside()
    later.call("adopt", earlier=jobd.job_id)
    person.end()
    assert find_processes(jobd.job_id) == []
    later.call("clean")


def test_an_environment_that_is_gone_is_not_adopted(jobd: Jobd) -> None:
    later = jobd.beside()
    jobd.call("clean")
    assert later.ask("adopt", earlier=jobd.job_id)["error"] == "gone"
    assert [*(jobd.workspace / "jobs").iterdir()] == []
