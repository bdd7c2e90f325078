"""The home of a job: what is laid out there before its agent starts, what shells tell it, and what is kept of it."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from pathlib import Path

import pytest

from runner.jobd.environment.home import PROFILE, SHOW_NOTICE, write_home_files
from runner.jobd.environment.skills import MAX_SKILL_BYTES, list_files
from runner.jobd.files import Failure, JobPaths
from runner.jobd.git import open_throwaway
from tests.support.jobd import Jobd, Repository, wait_until
from tests.support.plain_worktree import check_out_files

pytestmark = pytest.mark.slow


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


# Files


def test_files_lie_in_the_home_before_the_agent_starts_whose_words_and_variables_may_begin_with_it(jobd: Jobd) -> None:
    jobd.prepare()
    dashes = re.sub("[^a-zA-Z0-9]", "-", str(jobd.worktree))
    files = {"a.txt": b"a", ".x/projects/{worktree}/s.jsonl": b"\0\xff", "{home}/b": b"b"}
    show = f"stat -c '%a %n' a.txt .x .x/projects/{dashes}/s.jsonl; od -An -tx1 .x/projects/*/s.jsonl; cat '{{home}}/b'"
    argv = ["/bin/sh", "-c", f'cd "$HOME"; {show}; echo; echo "$@" "$A" "$B"']
    words = ["{home}/x", "{home}/x y", "x={home}/y", "{home}", "{home}/"]
    env = {"A": "{home}/s", "B": "b:{home}/s"}
    encoded = {path: encode(content) for path, content in files.items()}
    log = jobd.agent("", argv=[*argv, *words], env=env, files=encoded)["log"].decode()
    home = jobd.place / "home"
    assert log.splitlines() == [
        *("600 a.txt", "700 .x", f"600 .x/projects/{dashes}/s.jsonl", " 00 ff", "b"),
        f"{home}/x y x={{home}}/y {{home}} {home}/ {home}/s b:{{home}}/s",
    ]


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ('ln -s "$TMPDIR" "$HOME/x"', "x/f"),
        ('ln -s "$TMPDIR" "$HOME/x"', "x/y/f"),
        ('rmdir home; ln -s "$TMPDIR" home', "f"),
        ('mkdir -p "$HOME/f"', "f"),
        (': > "$HOME/x"', "x/f"),
    ],
)
def test_what_stands_in_a_files_way_is_told_and_nothing_is_written_through_a_link(
    tmp_path: Path, script: str, path: str
) -> None:
    job = JobPaths({"workspace": str(tmp_path), "job_id": "0123456789"})
    for folder in (job.home, job.tmp):
        folder.mkdir(parents=True)
    env = {**os.environ, "HOME": str(job.home), "TMPDIR": str(job.tmp)}
    subprocess.run(["/bin/sh", "-ec", script], cwd=job.place, env=env, check=True)
    with pytest.raises(Failure, match=f"^`{path}` cannot be written to the agent's home: ") as failure:
        write_home_files(job, {path: encode(b"x")})
    assert failure.value.name == "home_unusable"
    assert list(job.tmp.iterdir()) == []


def test_a_link_in_place_of_a_file_gives_way_to_it(jobd: Jobd) -> None:
    assert jobd.prepare(ways=["slot"])["state"] == "done"
    (jobd.job.tmp / "f").write_text("old\n")
    (jobd.job.home / "f").symlink_to(jobd.job.tmp / "f")
    assert jobd.agent('cat "$HOME/f" "$TMPDIR/f"', files={"f": encode(b"new\n")})["log"] == b"new\nold\n"


# Skills


@pytest.fixture
def repository(repository: Repository) -> Repository:
    """A repository that has skills."""
    skill = repository.folder / "skills" / "review"
    repository.commit({"skills/review/SKILL.md": "how\n", "skills/review/sub/run.sh": "echo\n", "skills/b/x": "x\n"})
    (skill / "link").symlink_to("/etc/passwd")
    (skill / "sub" / "run.sh").chmod(0o755)
    repository.commit()
    return repository


def test_skills_are_the_base_commits_and_what_is_not_there_is_a_line_in_the_log(jobd: Jobd) -> None:
    jobd.prepare()
    base = jobd.repository.git("rev-parse", "main")
    for name in ("SKILL.md", "new"):
        jobd.write(f"skills/review/{name}", "evil\n")
    show = 'cd "$HOME"; cat .s/r/SKILL.md; find .s -mindepth 1 -printf "%m %P\\n" | sort'
    missing = ["no-such", "a.txt", "skills/no-such", "skills/review/link", "--help"]
    skills = {".s/r": "skills/review", **{f".s/{name}": name for name in missing}, ".s/b": "skills/b"}
    *left_out, shown = jobd.agent(show, base_skills=skills, base_commit=base)["log"].decode().split("]\n")
    assert left_out == [f"[The skill `{folder}` was left out: it is not in the repository." for folder in missing]
    assert shown == "how\n600 b/x\n600 r/SKILL.md\n700 b\n700 r\n700 r/sub\n700 r/sub/run.sh\n"


@pytest.mark.parametrize("base", ["", "0" * 40])
def test_of_a_commit_that_nobody_has_there_are_no_files_of_skills(tmp_path: Path, base: str) -> None:
    with open_throwaway(check_out_files(tmp_path, {"skills/b/x": "x\n"}).folders, base, 20) as git:
        assert list_files(git, base, "skills/b") == []


def test_each_folder_in_a_folder_of_skills_that_has_a_description_is_a_skill(jobd: Jobd) -> None:
    paths = ("skills/own/SKILL.md", "skills/README.md", "skills/deep/er/SKILL.md", "other/own/SKILL.md")
    more = {"other/review/SKILL.md": "x\n", "other/last/SKILL.md": "last\n", "none/x/y": "y\n"}
    big = {name: os.urandom(MAX_SKILL_BYTES * 2 // 3) for name in ("big/x", "huge/x")}
    base = jobd.repository.commit({**{path: f"{path}\n" for path in paths}, **more, **big})
    jobd.prepare()
    operators = {"s/own/SKILL.md": encode(b"the operator's\n")}
    folders = {"skills": "s", "other": "s", "none": "s", "gone": "s"}
    show = 'cd "$HOME"; ls; cd s; find . -type f -printf "%P\\n" | sort; cat own/SKILL.md review/SKILL.md last/SKILL.md'
    skills = {"base_skills": {"big": "big", "huge": "huge"}, "skill_folders": folders}
    log = jobd.agent(show, files=operators, base_commit=base, **skills)["log"].decode()
    assert log.splitlines() == [
        "[The skill `huge` was left out: the skills are too large together.]",
        "[The skill `skills/own` was left out: another skill has its name.]",
        "[The skill `other/own` was left out: another skill has its name.]",
        "[The skill `other/review` was left out: another skill has its name.]",
        "[The skill `none/*/SKILL.md` was left out: it is not in the repository.]",
        "[The skill `gone/*/SKILL.md` was left out: it is not in the repository.]",
        *("big", "s", "last/SKILL.md", "own/SKILL.md", "review/SKILL.md", "review/sub/run.sh"),
        *("the operator's", "how", "last"),
    ]


def make_tree(repository: Repository, mode: str, name: str, inner: str) -> str:
    """A tree with one entry of any name, also of one that git would not give it."""
    words = ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"]
    entry = f"{mode} {name}\0".encode() + bytes.fromhex(inner)
    made = subprocess.run(words, cwd=repository.folder, input=entry, capture_output=True, check=True)
    return made.stdout.decode().strip()


def test_a_skill_whose_tree_leads_elsewhere_is_not_followed(jobd: Jobd) -> None:
    jobd.prepare()
    origin = jobd.repository
    tree = make_tree(origin, "100644", "evil", origin.git("rev-parse", "main:a.txt"))
    for name in ("..", "..", "skill"):
        tree = make_tree(origin, "40000", name, tree)
    base = origin.git("commit-tree", "-m", "evil", tree)
    origin.git("update-ref", "refs/heads/evil", base)
    (clone,) = (path for path in (jobd.workspace / "repos").iterdir() if path.is_dir())
    subprocess.run(["git", f"--git-dir={clone}", "fetch", "--quiet", origin.url, "evil"], check=True)
    poll = jobd.agent("echo ran", base_skills={"x": "skill"}, base_commit=base)
    assert (poll["error"], poll["log"]) == ("home_unusable", b"")
    assert not (jobd.root / "evil").exists()


# Notices


def test_an_agent_is_told_once_by_one_of_the_next_shells_that_it_runs(jobd: Jobd) -> None:
    assert jobd.call("notify", text="x")["written"] is False, "for nobody"
    assert not jobd.root.exists()
    jobd.prepare()
    wait = 'echo done; until [ -e "$TMPDIR/go" ]; do sleep 0.01; done; rm "$TMPDIR/go"\n'
    jobd.start(
        'cat "$PTQ_NOTICE_FILE" 2> /dev/null || echo none; '
        f"{wait}"
        'for i in 1 2; do bash -c "echo $i" 2>&1; done; cat "$PTQ_NOTICE_FILE.read"; ls "$PTQ_NOTICE_FILE" 2>&1 || :; '
        f"{wait}"
        "for i in 1 2; do env -u BASH_ENV bash -lc 'echo login' 2>&1; done; "
        f"{wait}"
        'for i in $(seq 20); do bash -c : & done; wait; mkdir "$PTQ_NOTICE_FILE"'
    )

    def tell_next(count: int, *texts: str) -> None:
        wait_until(lambda: jobd.poll("agent")["log"].count(b"done\n") == count)
        for text in texts:
            assert jobd.call("notify", text=text)["written"] is True
        (jobd.job.tmp / "go").touch()

    tell_next(1, "an earlier one", "Come to an end.\nPlease.")
    tell_next(2, "To the login shells.")
    tell_next(3, "To one of many at once.")
    first, second = "Come to an end.\nPlease.\n", "To the login shells.\nlogin\nlogin\n"
    gone = f"ls: cannot access '{jobd.root}/notice.txt': No such file or directory\n"
    assert jobd.wait("agent")["log"].decode() == (
        f"none\ndone\n{first}1\n2\n{first}{gone}done\n{second}done\nTo one of many at once.\n"
    )
    assert jobd.call("notify", text="x")["written"] is False, "there is a folder in its place"


@pytest.mark.parametrize("options", ["", "-e", "-u", "-eu", "-eux", "-eC", "-f"])
@pytest.mark.parametrize("text", [SHOW_NOTICE, PROFILE], ids=["BASH_ENV", ".profile"])
@pytest.mark.parametrize("notice", ["", "{}/none", "{}/folder", "{}/locked/notice", "unset"])
def test_a_script_does_not_notice_that_there_is_no_notice(tmp_path: Path, options: str, text: str, notice: str) -> None:
    (tmp_path / "env").write_text(text)
    (tmp_path / "folder").mkdir()
    script = 'echo "$?" >&2; (exit 7)'
    env = {"BASH_ENV": str(tmp_path / "env"), "PATH": os.environ["PATH"], "PTQ_NOTICE_FILE": notice.format(tmp_path)}
    if notice == "unset":
        del env["PTQ_NOTICE_FILE"]
    words = ["bash", *([options] if options else []), "-c", script]
    done = subprocess.run(words, env=env, capture_output=True, check=False)
    traces = [line for line in done.stderr.decode().splitlines() if not line.startswith("+")]
    assert (done.returncode, traces, done.stdout) == (7, ["0"], b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env", "folder"]


def test_a_script_with_closed_outputs_goes_on_when_there_is_a_notice(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(SHOW_NOTICE)
    (tmp_path / "notice").write_text("told\n")
    env = {"BASH_ENV": str(tmp_path / "env"), "PATH": os.environ["PATH"], "PTQ_NOTICE_FILE": str(tmp_path / "notice")}
    words = ["sh", "-c", f"bash -euc 'echo ran > {tmp_path}/ran; exit 3' <&- >&- 2>&-"]
    assert subprocess.run(words, env=env, check=False).returncode == 3
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_notice_does_not_disturb_descriptors_and_statuses_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(SHOW_NOTICE)
    (tmp_path / "notice").write_text("told\n")
    env = {"BASH_ENV": str(tmp_path / "env"), "PATH": os.environ["PATH"], "PTQ_NOTICE_FILE": str(tmp_path / "notice")}
    words = ["sh", "-c", f"bash -euc 'echo $? three >&3' 3> {tmp_path}/three"]
    done = subprocess.run(words, env=env, check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"told\n")
    assert (tmp_path / "three").read_text() == "0 three\n"
