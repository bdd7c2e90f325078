"""What an agent may do to keep its result from being read, or to have something run or read that it must not.

What it may do is done without an agent, where its environment lies on the disk. Where only git or the texts matter,
`collect` has done its work in this process: nothing of it depends on how a stage was started.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.files import Failure, require_worktree
from runner.jobd.git import GitFolders, find_git_folders
from runner.jobd.verbs.collect import read_texts
from tests.support.jobd import Change, Jobd, Repository
from tests.support.made_base import MadeBase, copy
from tests.support.plain_worktree import PlainWorktree, check_out_files, run_script

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

REPORT = 'echo report > "$PTQ_OUTPUT_DIR/report.md"; echo log > "$PTQ_OUTPUT_DIR/worklog.md";'
JOB_ROOT = '"${PTQ_OUTPUT_DIR%/*}"'
PLACE = '"${PTQ_WORKTREE%/*}"'


def prepare_and_do(jobd: Jobd, script: str) -> None:
    assert jobd.prepare(ways=["slot"])["state"] == "done"
    run_script(jobd.worktree, script, jobd.job.environment())


def collect_after(jobd: Jobd, script: str, **limits: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How collecting ended, and the result, after an agent that did this."""
    prepare_and_do(jobd, script)
    return jobd.collect(**limits), jobd.result()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, template: Repository, made_base: MadeBase) -> PlainWorktree:
    """The worktree of a job of `template` on which no agent has worked."""
    folder = tmp_path_factory.mktemp("original")
    jobd = Jobd(folder, Repository(shutil.copytree(template.folder, folder / "origin")))
    made_base.lay_out(jobd)
    assert jobd.prepare(ways=["slot"])["state"] == "done"
    return PlainWorktree(find_git_folders(jobd.job), jobd.repository.git("rev-parse", "main"))


@pytest.fixture
def worktree(tmp_path: Path, original: PlainWorktree) -> PlainWorktree:
    """The same, to be changed."""
    folders = GitFolders(tmp_path / "worktree", original.folders.clone, tmp_path / "throwaways")
    copy(original.folders.worktree, folders.worktree)
    folders.throwaways.mkdir()
    return PlainWorktree(folders, original.base_commit)


# The worktree


def test_a_worktree_that_is_gone_is_told_and_the_texts_are_there(jobd: Jobd) -> None:
    script = f"{REPORT} cd {PLACE}; mv worktree elsewhere; ln -s elsewhere worktree"
    collected, result = collect_after(jobd, script, lint=["touch lint-ran"])
    assert (collected["state"], collected["error"]) == ("failed", "worktree_gone")
    assert (result["report"], result["worklog"]) == ("report\n", "log\n")
    assert (result["changes"], result["patch"], result["problems"]) == ([], "", [])
    assert not (jobd.place / "elsewhere" / "lint-ran").exists()


@pytest.mark.parametrize("script", ["true", "ln -s elsewhere worktree", "ln -s /etc worktree", "mkfifo worktree"])
def test_what_stands_in_place_of_a_worktree_is_none(tmp_path: Path, script: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    run_script(tmp_path, script, os.environ)
    with pytest.raises(Failure) as failure:
        require_worktree(tmp_path / "worktree")
    assert failure.value.name == "worktree_gone"


def test_a_lint_may_not_replace_the_worktree_either(jobd: Jobd) -> None:
    collected, _ = collect_after(jobd, "true", lint=[f"cd {PLACE}; mv worktree x; ln -s x worktree", "touch ran"])
    assert collected["error"] == "worktree_gone"
    assert (jobd.place / "x").is_dir()
    assert not (jobd.place / "x" / "ran").exists()


# The texts


@pytest.mark.parametrize("script", ["ln -s /etc/passwd report.md", "ln -s worklog.md report.md", "mkfifo report.md"])
def test_a_report_that_is_no_plain_file_is_left_out_and_named(tmp_path: Path, script: str) -> None:
    run_script(tmp_path, f"echo log > worklog.md; {script}", os.environ)
    problems: list[str] = []
    assert read_texts(tmp_path, 100, problems) == {"report": "", "worklog": "log\n", "pr_title": "", "repro": ""}
    assert problems == ["report.md was left out: it is not a regular file"]


NO_OUTPUT = "the agent deleted the folder for its report, or put something else in its place"


@pytest.mark.parametrize("script", ["true", "ln -s /etc output", "mkfifo output"])
def test_what_stands_in_place_of_the_output_folder_has_no_texts(tmp_path: Path, script: str) -> None:
    run_script(tmp_path, script, os.environ)
    problems: list[str] = []
    assert {*read_texts(tmp_path / "output", 100, problems).values()} == {""}
    assert problems == [NO_OUTPUT]


def test_an_output_folder_that_is_gone_is_told_and_the_change_is_there(jobd: Jobd) -> None:
    script = f"echo x > new; {REPORT} cd {JOB_ROOT}; mkdir x; echo evil > x/report.md; rm -rf output; ln -s x output"
    collected, result = collect_after(jobd, script)
    assert collected["state"] == "done"
    assert [result[name] for name in ("report", "worklog", "pr_title", "repro")] == [""] * 4
    assert result["problems"] == [NO_OUTPUT]
    assert [change["path"] for change in result["changes"]] == ["new"]


HUGE = "truncate -s 1T {0} 2> /dev/null || truncate -s 100G {0}"


def test_texts_are_cut_which_is_said_also_if_the_change_is_too_large(jobd: Jobd) -> None:
    script = f'{HUGE.format("huge")}; cd "$PTQ_OUTPUT_DIR"; {HUGE.format("worklog.md")}'
    collected, result = collect_after(jobd, f"{script}; printf 'ab\\303\\251\\377' > report.md", max_text_bytes=4)
    assert (collected["state"], collected["error"]) == ("failed", "change_too_large")
    size = (jobd.root / "output" / "worklog.md").stat().st_size
    assert result["problems"] == [
        "report.md was cut: it has 5 bytes, and 4 are allowed",
        f"worklog.md was cut: it has {size} bytes, and 4 are allowed",
    ]
    assert (result["report"], result["worklog"]) == ("abé", "\0\0\0\0")
    assert (result["changes"], result["patch"]) == ([], "")


def test_texts_and_contents_may_hold_any_bytes_and_be_closed_to_everybody(jobd: Jobd) -> None:
    write = 'printf "a\\377\\000\\302\\205" | tee new > "$PTQ_OUTPUT_DIR/report.md"'
    close = 'mkdir "$PTQ_OUTPUT_DIR/repro.py"; chmod 000 "$PTQ_OUTPUT_DIR"/* "$PTQ_OUTPUT_DIR"'
    collected, result = collect_after(jobd, f"{write}; {close}")
    assert collected["state"] == "done"
    assert result["report"] == "a\N{REPLACEMENT CHARACTER}\0\x85"
    assert result["problems"] == ["repro.py was left out: it is not a regular file"]
    assert result["changes"][0]["content"] == "Yf8AwoU="


# Too much


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (HUGE.format("a.txt"), "`a.txt` has 1"),
        (f"rm -r dir; {HUGE.format('dir')}", "`dir` has 1"),
        (HUGE.format(".gitattributes"), "`.gitattributes` has 1"),
        ("head -c 60000 /dev/urandom > x; head -c 60001 /dev/urandom > y; echo z > z", "`y` has 60001"),
        ("for i in $(seq 60); do : > empty$i; done", "60 files are changed, and 50 are allowed"),
    ],
)
def test_a_change_that_is_too_large_is_told_at_once(worktree: PlainWorktree, script: str, names: str) -> None:
    worktree.run(script)
    begin = time.monotonic()
    failure = worktree.find_failure()
    assert time.monotonic() - begin < 10
    assert failure.name == "change_too_large"
    assert names in failure.message


def test_files_that_only_grew_are_counted_by_what_they_hold_now(tmp_path: Path) -> None:
    worktree = check_out_files(tmp_path, dict.fromkeys(("a", "b"), "x" * 40000))
    worktree.run("for x in a b; do head -c 60000 /dev/urandom > $x; done")
    failure = worktree.find_failure()
    assert failure.name == "change_too_large"
    assert failure.message.endswith(" has 60000")


def test_deleting_what_is_large_makes_a_diff_that_is_too_long(tmp_path: Path) -> None:
    worktree = check_out_files(tmp_path, {"large.txt": "".join(f"{number}\n" for number in range(100_000))})
    worktree.run("rm large.txt")
    failure = worktree.find_failure()
    assert (failure.name, failure.message) == ("change_too_large", "the diff is larger than 410000 bytes")


def test_a_gitignore_that_is_a_pipe_holds_nobody_up(worktree: PlainWorktree) -> None:
    worktree.run("mkfifo .gitignore")
    assert worktree.find_failure(timeout_s=1).name == "timed_out"


# Git as a trap


TRAP = """
trap="$TMPDIR/trap"
printf "#!/bin/sh\\ntouch $trap-ran\\ncat\\n" > "$trap"; chmod +x "$trap"
"""
CONFIG = """
for key in core.fsmonitor core.sshCommand core.editor core.pager diff.external diff.d.textconv diff.d.command \\
    filter.f.clean filter.f.smudge filter.f.process core.gitProxy uploadpack.packObjectsHook credential.helper \\
    core.alternateRefsCommand; do git config --file "$config" $key "$trap"; done
git config --file "$config" core.hooksPath "$trap-hooks"
git config --file "$config" core.worktree /etc
git config --file "$config" core.excludesFile "$trap.ignore"; echo '*' > "$trap.ignore"
mkdir -p "$trap-hooks" "$hooks"
for hook in post-checkout post-index-change pre-auto-gc reference-transaction post-merge; do
    cp "$trap" "$trap-hooks/$hook"; cp "$trap" "$hooks/$hook"
done
"""
TRAPS = {
    "its own git folder": "rm -r .git; git init -q; config=.git/config hooks=.git/hooks; git add -A\n",
    "the shared clone": (
        "common=$(dirname $(cat .git/objects/info/alternates)); config=$common/config hooks=$common/hooks\n"
    ),
}
CHANGE = "\necho '* filter=f diff=d' > .gitattributes; echo x > new.txt; rm b.txt; echo four >> a.txt\n"


@pytest.mark.parametrize("where", TRAPS)
def test_nothing_that_an_agent_set_up_in_git_is_run(jobd: Jobd, where: str) -> None:
    jobd.can_seal = where != "the shared clone"  # Where it can, no job writes there.
    sprung = jobd.root / "tmp" / "trap-ran"
    spring = 'git --git-dir="${config%/*}" --work-tree=. add -A || :'
    prepare_and_do(jobd, TRAP + TRAPS[where] + CONFIG + CHANGE + spring)
    sprung.unlink()  # The traps do catch.
    assert jobd.collect()["state"] == "done"
    change = Change(jobd.result())
    assert set(change.modes) == {".gitattributes", "new.txt", "b.txt", "a.txt"}
    assert change.contents["a.txt"] == b"one\ntwo\nthree\nfour\n"
    assert "+four\n" in change.patch
    later = jobd.beside()
    expect_a_whole_job(later)
    later.call("clean")
    assert not sprung.exists()


def expect_a_whole_job(jobd: Jobd) -> None:
    assert jobd.prepare()["state"] == "done"
    jobd.write("y", "y\n")
    assert jobd.collect()["state"] == "done"
    assert Change(jobd.result()).contents == {"y": b"y\n"}


@pytest.mark.parametrize(
    "script",
    [
        "git add -A; git commit -qm mine",
        "git add -A; git commit -q --amend -m mine; git gc -q --prune=now",
        "git checkout -q --orphan new; git rm -rfq --cached .",
        "git update-index --assume-unchanged a.txt; git update-index --skip-worktree b.txt",
        "rm -r .git",
        "rm -r .git; ln -s /etc .git",
        "rm -r .git; mkfifo .git",
        "rm -r .git; echo 'gitdir: /nowhere' > .git",
        "git branch mine; git update-ref -d HEAD",
        "git sparse-checkout set dir 2> /dev/null; echo four >> a.txt; echo bee > b.txt; printf 'one\\ntwo\\n' > a.txt",
        "git replace -f HEAD $(git commit-tree -m evil $(git mktree < /dev/null))",
    ],
)
def test_whatever_an_agent_does_with_git_the_change_is_against_the_base(worktree: PlainWorktree, script: str) -> None:
    worktree.run(f"printf 'one\\ntwo\\n' > a.txt; echo x > new; {script}")
    change = worktree.collect()
    assert change.contents == {"a.txt": b"one\ntwo\n", "new": b"x\n"}
    assert "-three\n" in change.patch


@pytest.mark.parametrize(
    "poison",
    [
        "mkdir -p info refs/replace; echo '* text eol=crlf' > info/attributes; echo '*' > info/exclude\n"
        "echo $evil > refs/replace/$blob",
        "printf '[core' > config; touch config.lock; rm HEAD",
        'evil="$TMPDIR/evil"; cp -r . "$evil"; mkdir -p "$evil/info"; echo "* filter=f" > "$evil/info/attributes"\n'
        'git config --file "$evil/config" filter.f.smudge "$trap"; echo "$evil" > commondir',
    ],
)
def test_what_an_agent_left_in_the_shared_clone_does_not_reach_the_next_job(unsealed: Jobd, poison: str) -> None:
    jobd = unsealed
    names = "blob=$(git rev-parse HEAD:a.txt)"
    evil = "evil=$(echo evil | git --git-dir=. hash-object -w --stdin)"
    prepare_and_do(
        jobd, f"echo x > x; {TRAP}{names}; cd $(dirname $(cat .git/objects/info/alternates)); {evil}; {poison}"
    )
    assert jobd.collect()["state"] == "done"
    assert Change(jobd.result()).contents == {"x": b"x\n"}
    later = jobd.beside()
    expect_a_whole_job(later)
    assert later.find("a.txt").read_bytes() == b"one\ntwo\nthree\n"
    assert not (jobd.root / "tmp" / "trap-ran").exists()
