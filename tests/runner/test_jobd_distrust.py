"""What an agent may do to keep its result from being read, or to have something run or read that it must not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobd import Jobd, make_repository

pytestmark = pytest.mark.slow

REPORT = 'echo report > "$PTQ_OUTPUT_DIR/report.md"; echo log > "$PTQ_OUTPUT_DIR/worklog.md";'
JOB_ROOT = '"${PTQ_OUTPUT_DIR%/*}"'
PLACE = '"${PTQ_WORKTREE%/*}"'


def collect_after(jobd: Jobd, agent: str, **limits: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How collecting ended, and the result, after a run of an agent that may do anything."""
    jobd.prepare()
    ended = jobd.agent(agent)
    assert ended["result"]["exit_status"] == 0, ended["log"].decode()
    return jobd.collect(**limits), jobd.result()


# The worktree


@pytest.mark.parametrize(
    "deed",
    [
        f"cd {PLACE}; rm -rf worktree",
        f"cd {PLACE}; mv worktree elsewhere; ln -s elsewhere worktree",
        f"cd {PLACE}; rm -rf worktree; ln -s /etc worktree",
        f"cd {PLACE}; rm -rf worktree; mkfifo worktree",
    ],
)
def test_a_worktree_that_is_gone_is_told_and_the_texts_are_there(jobd: Jobd, deed: str) -> None:
    collected, result = collect_after(jobd, f"{REPORT} {deed}", lint=["touch lint-ran"])
    assert (collected["state"], collected["error"]) == ("failed", "worktree_gone")
    assert (result["report"], result["worklog"]) == ("report\n", "log\n")
    assert (result["changes"], result["patch"], result["problems"]) == ([], "", [])
    assert not list(jobd.root.glob("*/lint-ran"))
    assert not Path("/etc/lint-ran").exists()


def test_a_lint_may_not_replace_the_worktree_either(jobd: Jobd) -> None:
    collected, _ = collect_after(jobd, "true", lint=[f"cd {PLACE}; mv worktree x; ln -s x worktree", "touch ran"])
    assert collected["error"] == "worktree_gone"
    assert not (jobd.root / "x" / "ran").exists()


# The texts


@pytest.mark.parametrize(
    "deed",
    [
        "ln -s /etc/passwd report.md",
        "ln -s worklog.md report.md",
        "mkfifo report.md",
        "mkdir report.md",
    ],
)
def test_a_report_that_is_no_plain_file_is_left_out_and_named(jobd: Jobd, deed: str) -> None:
    collected, result = collect_after(jobd, f'{REPORT} cd "$PTQ_OUTPUT_DIR"; rm report.md; {deed}')
    assert collected["state"] == "done"
    assert (result["report"], result["worklog"]) == ("", "log\n")
    assert result["problems"] == ["report.md was left out: it is not a regular file"]


@pytest.mark.parametrize("deed", ["true", "ln -s x output", "ln -s /etc/passwd output", "mkfifo output"])
def test_an_output_folder_that_is_gone_is_told_and_the_change_is_there(jobd: Jobd, deed: str) -> None:
    agent = f"echo x > new; {REPORT} cd {JOB_ROOT}; mkdir x; echo evil > x/report.md; rm -rf output; {deed}"
    collected, result = collect_after(jobd, agent)
    assert collected["state"] == "done"
    assert [result[name] for name in ("report", "worklog", "pr_title", "repro")] == [""] * 4
    assert result["problems"] == ["the agent deleted the folder for its report, or put something else in its place"]
    assert [change["path"] for change in result["changes"]] == ["new"]


def test_texts_that_nobody_may_read_are_read(jobd: Jobd) -> None:
    collected, result = collect_after(jobd, f'{REPORT} chmod 000 "$PTQ_OUTPUT_DIR"/report.md "$PTQ_OUTPUT_DIR"')
    assert (collected["state"], result["report"], result["problems"]) == ("done", "report\n", [])


def test_a_report_that_is_too_long_is_cut_which_is_said(jobd: Jobd) -> None:
    agent = 'truncate -s 1T "$PTQ_OUTPUT_DIR/worklog.md" || truncate -s 100G "$PTQ_OUTPUT_DIR/worklog.md"; wc -c "$_"'
    agent += '; printf "ab\\303\\251\\377" > "$PTQ_OUTPUT_DIR/report.md"; cat "$PTQ_OUTPUT_DIR/report.md" > new'
    _, result = collect_after(jobd, agent.replace('; wc -c "$_"', ""), max_text_bytes=4)
    size = (jobd.root / "output" / "worklog.md").stat().st_size
    assert result["problems"] == [
        "report.md was cut: it has 5 bytes, and 4 are allowed",
        f"worklog.md was cut: it has {size} bytes, and 4 are allowed",
    ]
    assert (result["report"], result["worklog"]) == ("abé", "\0\0\0\0")


def test_texts_and_contents_may_hold_any_bytes(jobd: Jobd) -> None:
    _, result = collect_after(jobd, 'printf "a\\377\\000\\302\\205" | tee new > "$PTQ_OUTPUT_DIR/report.md"')
    assert result["report"] == "a\N{REPLACEMENT CHARACTER}\0\x85"
    assert result["changes"][0]["content"] == "Yf8AwoU="


# Too much


HUGE = "truncate -s 1T {0} 2> /dev/null || truncate -s 100G {0}"


@pytest.mark.parametrize(
    ("deed", "names"),
    [
        (HUGE.format("huge"), "`huge` has 1"),
        (HUGE.format("a.txt"), "`a.txt` has 1"),
        (f"rm -r dir; {HUGE.format('dir')}", "`dir` has 1"),
        (HUGE.format(".gitattributes"), "`.gitattributes` has 1"),
        ("head -c 60000 /dev/urandom > x; head -c 60001 /dev/urandom > y; echo z > z", "`y` has 60001"),
        ("for i in $(seq 60); do : > empty$i; done", "60 files are changed, and 50 are allowed"),
    ],
)
def test_a_change_that_is_too_large_is_told_at_once(jobd: Jobd, deed: str, names: str) -> None:
    jobd.prepare()
    jobd.agent(f"{REPORT} {deed}")
    begin = time.monotonic()
    collected = jobd.collect()
    assert time.monotonic() - begin < 30
    assert (collected["state"], collected["error"]) == ("failed", "change_too_large")
    assert names in collected["message"]
    result = jobd.result()
    assert (result["report"], result["changes"], result["patch"]) == ("report\n", [], "")


def test_files_that_only_grew_are_counted_by_what_they_hold_now(tmp_path: Path) -> None:
    jobd = Jobd(tmp_path, make_repository(tmp_path / "origin", dict.fromkeys(("a", "b"), "x" * 40000)))
    collected, _ = collect_after(jobd, "for x in a b; do head -c 60000 /dev/urandom > $x; done")
    assert collected["error"] == "change_too_large"
    assert collected["message"].endswith(" has 60000")


def test_deleting_what_is_large_makes_a_diff_that_is_too_long(tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(100_000))
    jobd = Jobd(tmp_path, make_repository(tmp_path / "origin", {"large.txt": lines}))
    collected, _ = collect_after(jobd, "rm large.txt")
    assert (collected["error"], collected["message"]) == ("change_too_large", "the diff is larger than 410000 bytes")


def test_a_gitignore_that_is_a_pipe_holds_nobody_up(jobd: Jobd) -> None:
    collected, result = collect_after(jobd, f"{REPORT} mkfifo .gitignore", timeout_s=1)
    assert (collected["error"], result["report"]) == ("timed_out", "report\n")


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
    change = jobd.run(TRAP + TRAPS[where] + CONFIG + CHANGE)
    assert set(change.modes) == {".gitattributes", "new.txt", "b.txt", "a.txt"}
    assert change.contents["a.txt"] == b"one\ntwo\nthree\nfour\n"
    assert "+four\n" in change.patch
    later = jobd.beside()
    assert later.run("echo y > y").contents == {"y": b"y\n"}
    later.call("clean")
    assert not (jobd.root / "tmp" / "trap-ran").exists()


@pytest.mark.parametrize("where", TRAPS)
def test_the_traps_of_these_tests_do_catch(jobd: Jobd, where: str) -> None:
    jobd.can_seal = where != "the shared clone"
    jobd.prepare()
    ended = jobd.agent(TRAP + TRAPS[where] + CONFIG + CHANGE + 'git --git-dir="${config%/*}" --work-tree=. add -A || :')
    assert ended["result"]["exit_status"] == 0
    assert (jobd.root / "tmp" / "trap-ran").exists()


@pytest.mark.parametrize(
    "deed",
    [
        "git add -A; git -c user.name=a -c user.email=a@b commit -qm mine",
        "git add -A; git -c user.name=a -c user.email=a@b commit -q --amend -m mine; git gc -q --prune=now",
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
def test_whatever_an_agent_does_with_git_the_change_is_against_the_base(jobd: Jobd, deed: str) -> None:
    identity = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b"
    change = jobd.run(f"{identity}; printf 'one\\ntwo\\n' > a.txt; echo x > new; {deed}")
    assert change.contents == {"a.txt": b"one\ntwo\n", "new": b"x\n"}
    assert "-three\n" in change.patch


@pytest.mark.parametrize(
    "poison",
    [
        "mkdir -p info; echo '* text eol=crlf' > info/attributes; echo '*' > info/exclude",
        "printf '[core' > config; touch config.lock; rm HEAD",
        'evil="$TMPDIR/evil"; cp -r . "$evil"; mkdir -p "$evil/info"; echo "* filter=f" > "$evil/info/attributes"\n'
        'git config --file "$evil/config" filter.f.smudge "$trap"; echo "$evil" > commondir',
        "mkdir -p refs/replace; echo $evil > refs/replace/$blob",
    ],
)
def test_what_an_agent_left_in_the_shared_clone_does_not_reach_the_next_job(unsealed: Jobd, poison: str) -> None:
    jobd = unsealed
    names = "blob=$(git rev-parse HEAD:a.txt)"
    evil = "evil=$(echo evil | git --git-dir=. hash-object -w --stdin)"
    agent = f"echo x > x; {TRAP}{names}; cd $(dirname $(cat .git/objects/info/alternates)); {evil}; {poison}"
    assert jobd.run(agent).contents == {"x": b"x\n"}
    later = jobd.beside()
    assert later.run("echo y > y").contents == {"y": b"y\n"}
    assert later.find("a.txt").read_bytes() == b"one\ntwo\nthree\n"
    assert not (jobd.root / "tmp" / "trap-ran").exists()
