"""The home of a job: what is laid out there before its agent starts, what shells tell it, and what is kept of it."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from pathlib import Path

import pytest

from runner.jobd.environment.home import PROFILE, SHOW_NOTICE
from runner.jobd.environment.skills import MAX_SKILL_BYTES
from tests.support.jobd import Jobd, Repository, wait_until

pytestmark = pytest.mark.slow


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


# Files


def test_files_lie_in_the_home_before_the_agent_starts(jobd: Jobd) -> None:
    jobd.prepare()
    dashes = re.sub("[^a-zA-Z0-9]", "-", str(jobd.worktree))
    files = {"a.txt": b"a", ".x/projects/{worktree}/s.jsonl": b"\0\xff", "{home}/b": b"b"}
    agent = (
        f"stat -c '%a %n' a.txt .x .x/projects/{dashes}/s.jsonl; od -An -tx1 .x/projects/*/s.jsonl; cat '{{home}}/b'"
    )
    encoded = {path: encode(content) for path, content in files.items()}
    log = jobd.agent(f'cd "$HOME"; {agent}', files=encoded)["log"].decode()
    assert log == f"600 a.txt\n700 .x\n600 .x/projects/{dashes}/s.jsonl\n 00 ff\nb"


def test_a_leading_home_is_the_jobs_home_in_words_and_variables_and_nowhere_else(jobd: Jobd) -> None:
    jobd.prepare()
    words = ["/bin/sh", "-c", 'echo "$@" "$A" "$B"', "{home}/x", "{home}/x y", "x={home}/y", "{home}", "{home}/"]
    log = jobd.agent("", argv=words, env={"A": "{home}/s", "B": "b:{home}/s"})["log"].decode()
    home = jobd.place / "home"
    assert log == f"{home}/x y x={{home}}/y {{home}} {home}/ {home}/s b:{{home}}/s\n"


@pytest.mark.parametrize(
    ("setup", "path"),
    [
        ('ln -s "$TMPDIR" "$HOME/x"', "x/f"),
        ('ln -s "$TMPDIR" "$HOME/x"', "x/y/f"),
        ('cd ..; rm -r home; ln -s "$TMPDIR" home', "f"),
        ('mkdir -p "$HOME/f"', "f"),
        (': > "$HOME/x"', "x/f"),
    ],
)
def test_what_stands_in_a_files_way_is_told_and_nothing_is_written_through_a_link(
    jobd: Jobd, setup: str, path: str
) -> None:
    assert jobd.prepare(setup=[setup])["state"] == "done"
    poll = jobd.agent("echo ran", files={path: encode(b"x")})
    assert (poll["state"], poll["error"], poll["log"]) == ("failed", "home_unusable", b"")
    assert poll["message"].startswith(f"`{path}` cannot be written to the agent's home: ")
    assert list((jobd.root / "tmp").iterdir()) == []


def test_a_link_in_place_of_a_file_gives_way_to_it(jobd: Jobd) -> None:
    jobd.prepare(setup=['echo old > "$TMPDIR/f"; ln -s "$TMPDIR/f" "$HOME/f"'])
    assert jobd.agent('cat "$HOME/f" "$TMPDIR/f"', files={"f": encode(b"new\n")})["log"] == b"new\nold\n"


# Skills


@pytest.fixture
def skilled(tmp_path: Path, repository: Repository) -> Jobd:
    """A job of a repository that has skills."""
    skill = repository.folder / "skills" / "review"
    repository.commit({"skills/review/SKILL.md": "how\n", "skills/review/sub/run.sh": "echo\n", "skills/b/x": "x\n"})
    (skill / "link").symlink_to("/etc/passwd")
    (skill / "sub" / "run.sh").chmod(0o755)
    repository.commit()
    jobd = Jobd(tmp_path, repository)
    jobd.prepare()
    return jobd


def test_skills_are_the_base_commits_and_not_the_worktrees(skilled: Jobd) -> None:
    base = skilled.repository.git("rev-parse", "main")
    for name in ("SKILL.md", "new"):
        skilled.write(f"skills/review/{name}", "evil\n")
    show = 'cd "$HOME"; cat .s/r/SKILL.md; find .s -mindepth 1 -printf "%m %P\\n" | sort'
    skills = {".s/r": "skills/review", ".s/b": "skills/b"}
    log = skilled.agent(show, base_skills=skills, base_commit=base)["log"].decode()
    assert log == "how\n600 b/x\n600 r/SKILL.md\n700 b\n700 r\n700 r/sub\n700 r/sub/run.sh\n"


@pytest.mark.parametrize("folder", ["no-such", "a.txt", "skills/no-such", "skills/review/link", "--help"])
def test_a_skill_that_is_not_there_is_a_line_in_the_log(skilled: Jobd, folder: str) -> None:
    base = skilled.repository.git("rev-parse", "main")
    skills = {"s/x": folder, "s/b": "skills/b"}
    log = skilled.agent('ls "$HOME/s"', base_skills=skills, base_commit=base)["log"].decode()
    assert log == f"[The skill `{folder}` was left out: it is not in the repository.]\nb\n"


def test_skills_of_a_commit_that_nobody_has_are_lines_in_the_log(skilled: Jobd) -> None:
    for base in ("", "0" * 40):
        job = skilled.beside()
        job.prepare()
        log = job.agent("echo ran", base_skills={"x": "skills/b"}, base_commit=base)["log"]
        assert log == b"[The skill `skills/b` was left out: it is not in the repository.]\nran\n"


def test_each_folder_in_a_folder_of_skills_that_has_a_description_is_a_skill(skilled: Jobd) -> None:
    for path in ("skills/own/SKILL.md", "skills/README.md", "skills/deep/er/SKILL.md", "other/own/SKILL.md"):
        skilled.repository.commit({path: f"{path}\n"})
    base = skilled.repository.commit(
        {"other/review/SKILL.md": "x\n", "other/last/SKILL.md": "last\n", "none/x/y": "y\n"}
    )
    jobd = skilled.beside()
    jobd.prepare()
    operators = {"s/own/SKILL.md": encode(b"the operator's\n")}
    folders = {"skills": "s", "other": "s", "none": "s", "gone": "s"}
    show = 'cd "$HOME/s"; find . -type f -printf "%P\n" | sort; cat own/SKILL.md review/SKILL.md last/SKILL.md'
    log = jobd.agent(show, files=operators, skill_folders=folders, base_commit=base)["log"].decode()
    assert log.splitlines() == [
        "[The skill `skills/own` was left out: another skill has its name.]",
        "[The skill `other/own` was left out: another skill has its name.]",
        "[The skill `other/review` was left out: another skill has its name.]",
        "[The skill `none/*/SKILL.md` was left out: it is not in the repository.]",
        "[The skill `gone/*/SKILL.md` was left out: it is not in the repository.]",
        *("last/SKILL.md", "own/SKILL.md", "review/SKILL.md", "review/sub/run.sh"),
        *("the operator's", "how", "last"),
    ]


def test_skills_that_are_too_large_together_are_left_out(skilled: Jobd) -> None:
    size = MAX_SKILL_BYTES * 2 // 3
    base = skilled.repository.commit({"big/x": os.urandom(size), "huge/x": os.urandom(size)})
    skilled.repository.git("update-ref", "refs/heads/main", base)
    jobd = skilled.beside()
    jobd.prepare()
    log = jobd.agent('ls "$HOME"', base_skills={"big": "big", "huge": "huge"}, base_commit=base)["log"]
    assert log == b"[The skill `huge` was left out: the skills are too large together.]\nbig\n"


def make_tree(repository: Repository, mode: str, name: str, inner: str) -> str:
    """A tree with one entry of any name, also of one that git would not give it."""
    words = ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"]
    entry = f"{mode} {name}\0".encode() + bytes.fromhex(inner)
    made = subprocess.run(words, cwd=repository.folder, input=entry, capture_output=True, check=True)
    return made.stdout.decode().strip()


def test_a_skill_whose_tree_leads_elsewhere_is_not_followed(skilled: Jobd) -> None:
    origin = skilled.repository
    tree = make_tree(origin, "100644", "evil", origin.git("rev-parse", "main:a.txt"))
    for name in ("..", "..", "skill"):
        tree = make_tree(origin, "40000", name, tree)
    base = origin.git("commit-tree", "-m", "evil", tree)
    origin.git("update-ref", "refs/heads/evil", base)
    (clone,) = (path for path in (skilled.workspace / "repos").iterdir() if path.is_dir())
    subprocess.run(["git", f"--git-dir={clone}", "fetch", "--quiet", origin.url, "evil"], check=True)
    poll = skilled.agent("echo ran", base_skills={"x": "skill"}, base_commit=base)
    assert (poll["error"], poll["log"]) == ("home_unusable", b"")
    assert not (skilled.root / "evil").exists()


# Notices


def test_an_agent_is_told_once_by_the_next_shell_that_it_runs(jobd: Jobd) -> None:
    jobd.prepare()
    go = jobd.root / "tmp" / "go"
    jobd.start(
        f'cat "$PTQ_NOTICE_FILE" 2> /dev/null || echo none; until [ -e {go} ]; do sleep 0.01; done\n'
        'for i in 1 2; do bash -c "echo $i" 2>&1; done; cat "$PTQ_NOTICE_FILE.read"; ls "$PTQ_NOTICE_FILE" 2>&1 || :'
    )
    wait_until(lambda: jobd.poll("agent")["log"] == b"none\n")
    assert jobd.call("notify", text="an earlier one")["written"] is True
    assert jobd.call("notify", text="Come to an end.\nPlease.")["written"] is True
    go.touch()
    log = jobd.wait("agent")["log"].decode()
    notice = "Come to an end.\nPlease.\n"
    assert log == f"none\n{notice}1\n2\n{notice}ls: cannot access '{jobd.root}/notice.txt': No such file or directory\n"


def test_a_login_shell_tells_it_as_well(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.call("notify", text="Come to an end.")
    assert jobd.agent("for i in 1 2; do env -u BASH_ENV bash -lc 'echo ran' 2>&1; done")["log"] == (
        b"Come to an end.\nran\nran\n"
    )


def test_of_many_shells_at_once_one_tells_it(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.call("notify", text="told")
    assert jobd.agent("for i in $(seq 20); do bash -c : & done; wait")["log"] == b"told\n"


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


def test_a_notice_for_nobody_does_nothing(jobd: Jobd) -> None:
    assert jobd.call("notify", text="x")["written"] is False
    assert not jobd.root.exists()
    jobd.prepare()
    jobd.agent('mkdir "$PTQ_NOTICE_FILE"')
    assert jobd.call("notify", text="x")["written"] is False
