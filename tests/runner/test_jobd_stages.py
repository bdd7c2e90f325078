"""The machine-side program as a service meets it: its requests, its three stages, and what can go wrong in each."""

from __future__ import annotations

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.jobd.stages import command
from runner.jobd.stages.command import NotRunnable
from runner.jobd.stages.log import LineFilter
from tests.support.jobd import LIMITS, START, Jobd, Repository, make_repository, wait_until
from tests.support.sandboxes import MISSING

pytestmark = pytest.mark.slow


REPORT = """
printf 'It is fixed.\\n' > "$PTQ_OUTPUT_DIR/report.md"
printf 'looked\\n' > "$PTQ_OUTPUT_DIR/worklog.md"
printf 'Fix it' > "$PTQ_OUTPUT_DIR/pr_title.txt"
printf 'assert 1' > "$PTQ_OUTPUT_DIR/repro.py"
"""


def test_a_job_runs_from_a_clone_to_a_change(jobd: Jobd, repository: Repository) -> None:
    prepared = jobd.prepare(create_venv=[sys.executable, "-m", "venv", "--without-pip"], setup=["python -V; pwd"])
    assert (prepared["state"], prepared["error"], prepared["message"]) == ("done", None, None)
    assert prepared["result"]["base_commit"] == repository.git("rev-parse", "main")
    assert b"Python 3." in prepared["log"]
    assert f"\n{jobd.worktree}\n".encode() in prepared["log"]
    before = time.monotonic()
    ended = jobd.agent(f'command -v python; cat "$PTQ_PROMPT_FILE"; echo bee >> a.txt; {REPORT}')
    assert ended["log"].decode() == f"{jobd.place}/venv/bin/python\nFix it.\n"
    assert 0 < ended["result"].pop("run_s") < time.monotonic() - before
    told = {"timed_out": False, "stopped": False, "objection": None, "doubt": None, "log_truncated": False}
    assert ended["result"] == {"exit_status": 0, **told}
    assert jobd.collect()["state"] == "done"
    result = jobd.call("result")
    assert [result[name] for name in ("report", "worklog", "pr_title", "repro")] == [
        *("It is fixed.\n", "looked\n", "Fix it", "assert 1"),
    ]
    assert [change["path"] for change in result["changes"]] == ["a.txt"]
    assert "+bee\n" in result["patch"]
    assert result["problems"] == []


def test_a_growing_worklog_is_sent_to_its_end_and_only_when_it_has_changed(jobd: Jobd) -> None:
    jobd.prepare()
    steps = 'cd "$PTQ_OUTPUT_DIR"; {}; echo done; while [ ! -e go ]; do sleep 0.05; done; '.format
    write = 'echo "## Look" > worklog.md', 'printf "at \\377 it\n" >> worklog.md', "rm worklog.md go; mkfifo worklog.md"
    jobd.start(f"{steps(write[0])} rm go; {steps(write[1])} {write[2]}; {steps(':')}", timeout_s=60)

    def read(mark: str, limit: int = 1_000) -> Any:
        return jobd.poll("agent", worklog_mark=mark, worklog_limit=limit)["worklog"]

    def wait_for(count: int) -> None:
        wait_until(lambda: jobd.poll("agent")["log"].count(b"done") == count)

    wait_for(1)
    first = read("")
    assert (first["text"], first["is_cut"]) == ("## Look\n", False)
    assert read(first["mark"]) is None
    assert read("", 0) is None, "nobody wants any of it"
    (jobd.root / "output" / "go").touch()
    wait_for(2)
    second = read(first["mark"])
    assert (second["text"], second["is_cut"]) == ("## Look\nat \ufffd it\n", False)
    assert read("", 5) == {"mark": second["mark"], "text": "\ufffd it\n", "is_cut": True}
    (jobd.root / "output" / "go").touch()
    wait_for(3)
    assert read(second["mark"]) is None, "a pipe is never opened"
    jobd.call("kill")


def test_a_command_cannot_print_a_line_of_jobds(jobd: Jobd) -> None:
    forge = r"printf '\036[The base is built.]\n\036$ git push\n\036'; printf unfinished"
    prepared = jobd.prepare(setup=[forge])
    assert prepared["state"] == "done"
    lines = prepared["log"].decode().split("\n")
    at = lines.index("[The base is built.]")
    assert lines[at - 2 : at + 3] == [
        *("\x1e[Running the setup commands.]", f"\x1e$ {forge}", "[The base is built.]", "$ git push", "unfinished"),
    ]
    assert lines[at + 3].startswith("\x1e["), "a line of jobd's begins on a line of its own"
    assert lines.count("\x1e[The base is built.]") == 1


def test_an_agent_gets_its_own_environment_and_nothing_of_the_machine_but_the_path(
    tmp_path: Path, repository: Repository
) -> None:
    jobd = Jobd(tmp_path, repository, env={"SECRET": "hunter2", "PATH": os.environ["PATH"], "PYTHONPATH": "/nowhere"})
    jobd.prepare()
    script = "env; echo; pwd; cat; readlink /proc/self/fd/0; mkdir -p $VIRTUAL_ENV/bin; bash -lc 'echo $PATH'"
    log = jobd.agent(script, env={"MODEL": "x y", "LANG": "de"})["log"]
    variables, _, rest = log.decode().partition("\n\n")
    job = {"PTQ_WORKTREE": f"{jobd.place}/worktree", "PTQ_OUTPUT_DIR": f"{jobd.root}/output"}
    job["PTQ_ENVIRONMENT"] = "slot" if MISSING else "overlay"
    assert dict(line.split("=", 1) for line in variables.splitlines()) == {
        "PATH": f"{jobd.place}/venv/bin:{os.environ['PATH']}",
        "HOME": f"{jobd.place}/home",
        "TMPDIR": f"{jobd.root}/tmp",
        "VIRTUAL_ENV": f"{jobd.place}/venv",
        "PTQ_JOB_ID": jobd.job_id,
        "PTQ_PROMPT_FILE": f"{jobd.root}/prompt.md",
        "PTQ_NOTICE_FILE": f"{jobd.root}/notice.txt",
        "PTQ_TOLD_FILE": f"{jobd.root}/told.md",
        "BASH_ENV": f"{jobd.place}/home/.bash_env",
        **job,
        **{"LANG": "de", "MODEL": "x y", "PWD": str(jobd.worktree)},
    }
    *lines, login_path = rest.splitlines()
    assert lines == [str(jobd.worktree), "/dev/null"]
    assert login_path.startswith(f"{jobd.place}/venv/bin:"), "a login shell finds the virtual environment first, too"


def test_a_stage_is_started_once_even_by_many_at_once(jobd: Jobd) -> None:
    assert jobd.prepare()["state"] == "done"
    assert jobd.call("prepare", **jobd.prepare_request())["started"] is False
    count = {"argv": ["/bin/sh", "-c", "echo ran"], "env": {}, "prompt": "", **START, **LIMITS}
    with ThreadPoolExecutor(10) as pool:
        starts = list(pool.map(lambda _: jobd.call("start", **count)["started"], range(10)))
    assert starts.count(True) == 1
    assert jobd.wait("agent")["log"] == b"ran\n"
    assert jobd.call("start", **count)["started"] is False
    assert jobd.wait("agent")["log"] == b"ran\n"


def test_jobs_prepare_at_once_from_one_clone(jobd: Jobd) -> None:
    jobs = [jobd, *(jobd.beside() for _ in range(2))]
    with ThreadPoolExecutor(len(jobs)) as pool:
        assert [poll["state"] for poll in pool.map(Jobd.prepare, jobs)] == ["done"] * len(jobs)
    assert len([path for path in (jobd.workspace / "repos").iterdir() if path.is_dir()]) == 1
    assert all(job.find("a.txt").read_text() == "one\ntwo\nthree\n" for job in jobs)


def test_a_branch_may_be_rewritten_and_its_name_may_become_a_folder(jobd: Jobd, repository: Repository) -> None:
    repository.git("branch", "release")
    assert jobd.prepare(base_branch="release")["state"] == "done"
    repository.git("branch", "--delete", "--force", "release")
    repository.git("branch", "release/1.0")
    assert jobd.beside().prepare(base_branch="release/1.0")["state"] == "done"
    repository.git("commit", "--quiet", "--amend", "--message=rewritten")
    assert jobd.beside().prepare()["result"]["base_commit"] == repository.git("rev-parse", "main")


def test_a_later_job_starts_from_the_newest_commit_whatever_a_killed_git_left_in_the_clone(
    jobd: Jobd, repository: Repository
) -> None:
    jobd.prepare()
    newest = repository.commit({"a.txt": "newer\n"})
    (clone,) = (path for path in (jobd.workspace / "repos").iterdir() if path.is_dir())
    (ref,) = (clone / "refs" / "ptq").iterdir()
    for left in (clone / "config.lock", clone / "packed-refs.lock", ref.with_name(f"{ref.name}.lock")):
        left.touch()
    later = jobd.beside()
    prepared = later.prepare()
    assert prepared["state"] == "done", prepared["message"]
    assert prepared["result"]["base_commit"] == newest
    assert later.find("a.txt").read_text() == "newer\n"
    assert jobd.find("a.txt").read_text() == "one\ntwo\nthree\n"


# What goes wrong


def test_a_repository_that_is_not_there_is_told_in_gits_words(jobd: Jobd) -> None:
    poll = jobd.prepare(clone_url="file:///nowhere/at-all.git")
    assert (poll["state"], poll["error"]) == ("failed", "clone_failed")
    assert "'/nowhere/at-all.git' does not appear to be a git repository" in poll["message"]


def test_a_branch_that_is_not_there_is_told_by_name(jobd: Jobd) -> None:
    poll = jobd.prepare(base_branch="no-such")
    assert (poll["error"], poll["message"]) == ("branch_missing", "the repository has no branch no-such")


@pytest.mark.parametrize("url", ["ext::touch {marker}", "--upload-pack=touch {marker}"])
def test_a_repositorys_address_runs_nothing(jobd: Jobd, tmp_path: Path, url: str) -> None:
    assert jobd.prepare(clone_url=url.format(marker=tmp_path / "ran"))["error"] == "clone_failed"
    assert not (tmp_path / "ran").exists()


def test_a_setup_command_that_fails_is_told_with_its_last_words(jobd: Jobd) -> None:
    poll = jobd.prepare(setup=["echo first", "seq 100; nonsense; echo not reached", "touch never"])
    assert poll["error"] == "setup_failed"
    head, *tail = poll["message"].splitlines()
    assert head.startswith("the setup command `seq 100; nonsense; echo not reached` failed (exit status 127)")
    assert len(tail) == 20
    assert "nonsense" in tail[-1]
    assert b"first\n" in poll["log"]
    assert not jobd.find("never").exists()


@pytest.mark.parametrize(
    ("venv_command", "reason"),
    [(["/bin/sh", "-c", "echo no ensurepip; exit 3"], "no ensurepip"), (["/no/such/python"], "cannot run")],
)
def test_an_environment_that_cannot_be_made_is_told(jobd: Jobd, venv_command: list[str], reason: str) -> None:
    poll = jobd.prepare(create_venv=venv_command)
    assert poll["error"] == "venv_failed"
    assert reason in poll["message"]


def test_a_machine_without_git_is_told_as_such(tmp_path: Path, repository: Repository) -> None:
    jobd = Jobd(tmp_path, repository, env={"PATH": str(tmp_path / "empty")})
    assert jobd.call("version") == {"ok": True, "python": "{}.{}.{}".format(*sys.version_info), "git": None}
    assert jobd.prepare()["error"] == "no_git"


def test_an_agent_waits_for_its_environment(jobd: Jobd) -> None:
    request = {"argv": ["true"], "env": {}, "prompt": "", **START, **LIMITS}
    assert jobd.ask("start", **request)["error"] == "not_prepared"
    jobd.prepare(base_branch="no-such")
    assert jobd.ask("start", **request)["error"] == "not_prepared"
    assert jobd.poll("agent")["state"] == "absent"


def test_an_agent_that_cannot_be_run_is_told_with_the_reason(jobd: Jobd, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\0\1\2")
    (tmp_path / "odd").chmod(0o755)
    jobd.prepare()
    poll = jobd.agent("", argv=[f"{tmp_path}/odd"])
    assert poll["error"] == "agent_not_found"
    assert poll["message"] == f"the agent's program {tmp_path}/odd cannot run: exec format error"


def test_a_program_that_is_not_there_or_is_none_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    for program, reason in {"no-such": "no such file", f"{tmp_path}/data": "permission denied"}.items():
        with pytest.raises(NotRunnable, match=f"^{program} cannot run: {reason}"):
            command.start([program], {"PATH": os.environ["PATH"]}, tmp_path, Path(os.devnull), None)


def test_a_result_that_was_not_collected_is_told_as_such(jobd: Jobd) -> None:
    assert jobd.ask("result")["error"] == "no_result"


# Machines


def test_neither_a_hostile_git_configuration_nor_a_workspace_with_letters_of_any_kind_changes_anything(
    tmp_path: Path,
) -> None:
    repository = make_repository(tmp_path / "origin", {"a.txt": "one\n", ".gitattributes": "*.txt filter=evil\n"})
    home, marker = tmp_path / "home", tmp_path / "ran"
    hook = tmp_path / "hooks" / "post-checkout"
    for path, text in {
        home / ".gitconfig": f"[core]\n\thooksPath = {hook.parent}\n\tfsmonitor = {hook}\n\tautocrlf = true\n"
        f'[filter "evil"]\n\tclean = {hook}\n\tsmudge = {hook}\n[url "file:///nowhere/"]\n\tinsteadOf = file:///\n',
        home / ".config/git/ignore": "new.py\n",
        home / ".config/git/attributes": "*.py text eol=crlf\n* -diff\n",
        hook: f"#!/bin/sh\ntouch {marker}\ncat\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    hook.chmod(0o755)
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": str(hook.parent)}
    places = {name: str(tmp_path) for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")}
    (folder := tmp_path / "a 'b' \"ü\"").mkdir()
    jobd = Jobd(folder, repository, env={"HOME": str(home), "GIT_EXTERNAL_DIFF": str(hook), **settings, **places})
    change = jobd.run("printf 'x\\r\\n' > new.py; echo two >> a.txt")
    assert change.contents == {"a.txt": b"one\ntwo\n", "new.py": b"x\r\n"}
    assert "+two\n" in change.patch
    assert not marker.exists()


def test_an_agent_reads_its_prompt_where_it_wants_to_finds_its_programs_and_leaves_out_some_of_its_lines(
    jobd: Jobd,
) -> None:
    jobd.prepare()
    # An operator's path stands behind the job's own programs.
    show = 'echo "$PATH"; PATH=/set/by/the/host; . ~/.profile; echo "$PATH"; '
    script = "printf 'one\\nno: two\\nnot three\\nno'; sleep 0.2; printf ': four\\nfi'; sleep 0.2; printf 've'"
    settings: dict[str, Any] = {"env": {"PATH": "/opt/node/bin:/usr/bin:/bin"}, "drop_lines": ["no: ", "never"]}
    log = jobd.agent(f"cat; {show}{script}", prompt="Fix it.\n", prompt_on_stdin=True, **settings)["log"].decode()
    path = f"{jobd.place}/venv/bin:/opt/node/bin:/usr/bin:/bin"
    assert log == f"Fix it.\n{path}\n{path}\none\nnot three\nfive"


@given(
    st.lists(st.sampled_from([b"a", b"b", b"xy", b"z", b"\n", b"ab\n"])), st.sampled_from([(b"ab",), (b"a", b"xyz")])
)
def test_however_the_stream_is_cut_the_same_lines_are_kept(pieces: list[bytes], beginnings: tuple[bytes, ...]) -> None:
    line_filter = LineFilter(beginnings)
    kept = b"".join(map(line_filter.feed, pieces)) + line_filter.flush()
    lines = re.findall(rb"[^\n]*\n|[^\n]+", b"".join(pieces))
    wanted = b"".join(line for line in lines if not line.startswith(beginnings))
    assert kept == wanted
