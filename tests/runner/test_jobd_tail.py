"""A file that an agent writes while it runs, and whose lines join its log, between the lines of its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.jobd.safe_paths import find_newest
from runner.jobd.sandbox.sandbox import SHARED_MEMORY
from runner.jobd.stages import tail as tail_module
from runner.jobd.stages.command import StopConditions, follow, start
from runner.jobd.stages.log import Log, PipeOutput
from runner.jobd.stages.tail import Followed, TailReader
from tests.support.jobd import Jobd, wait_until

pytestmark = pytest.mark.slow

GLOB = "sessions/**/s-*.jsonl"
WORD = '"tokens"'
SESSION = 'mkdir -p "$HOME/sessions/day"; s="$HOME/sessions/day/s-1.jsonl";'


DEEP = (
    "import os\nfor _ in range(1100):\n    os.mkdir('d' * 100)\n    os.chdir('d' * 100)\nopen('s.jsonl', 'w').close()\n"
)
WIDE = "import os\nfor name in range(25_000):\n    os.mkdir(str(name))\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def follow_agent(home: Path, agent: str | list[str], max_log_bytes: int = 100_000) -> tuple[bytes, Log]:
    """The log of an agent that runs beside this process, as the stage of a job without a sandbox follows it."""
    argv = ["/bin/sh", "-ec", SESSION + agent] if isinstance(agent, str) else agent
    log, file = Log(max_log_bytes), home.parent / "log"
    child = os.fork()
    if not child:  # A stage reaps all of its children, and its log is its standard output.
        try:
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 1)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it is open already
            follow_here(home, argv, log)
            os._exit(log.truncated)
        finally:
            os._exit(2)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, 1)
    log.truncated = ended == 1
    return file.read_bytes(), log


def follow_here(home: Path, argv: list[str], log: Log) -> None:
    env = {"HOME": str(home), "TMPDIR": str(home.parent), "PATH": os.environ["PATH"]}
    tail = TailReader(home, GLOB, WORD, 0.05)
    process = start(argv, env, home, Path(os.devnull), None)
    assert process.stdout
    output = PipeOutput(process.stdout.fileno(), log, [], tail)
    follow(process, output, StopConditions(time.monotonic() + 30, None, 1))
    output.finish()
    assert process.wait(10) == 0


def lines(log: bytes) -> list[str]:
    return log.decode().splitlines()


def test_lines_with_the_word_join_the_log_while_the_agent_runs_but_none_that_were_there_before(jobd: Jobd) -> None:
    jobd.prepare()
    old = {"sessions/s-0.jsonl": "eyJ0b2tlbnMiOiAwfQo="}  # {"tokens": 0}
    agent = """ cat $HOME/sessions/s-0.jsonl; sleep 0.1; echo '{"tokens": 1}' >> $HOME/sessions/s-0.jsonl
        echo '{"other": 2}' >> $HOME/sessions/s-0.jsonl; sleep 60"""
    jobd.start(SESSION + agent, files=old, tail_glob=GLOB, tail_word=WORD, tail_every_s=0.05)
    wait_until(lambda: lines(jobd.poll("agent")["log"]) == ['{"tokens": 0}', '{"tokens": 1}'])
    jobd.call("kill")


def test_what_is_unread_when_the_agent_ends_is_read_then(home: Path) -> None:
    agent = """
        echo start; sleep 0.3
        for i in $(seq 500); do echo "{\\"tokens\\": $i}"; done >> $s; printf '"tokens"' >> $s
    """
    log = lines(follow_agent(home, agent)[0])
    assert log == ["start", *(json.dumps({"tokens": number}) for number in range(1, 501))]


def test_a_line_of_the_agents_own_is_never_broken_up(home: Path) -> None:
    agent = """
        printf 'be'; sleep 0.3; echo '{"tokens": 1}' >> $s; sleep 0.3
        printf 'gin\\nmid'; sleep 1; echo '{"tokens": 2}' >> $s; printf dle
    """
    log = lines(follow_agent(home, agent)[0])
    assert log == ["begin", '{"tokens": 1}', "middle", '{"tokens": 2}']


def test_an_agent_that_never_stops_talking_is_followed_too(home: Path) -> None:
    program = """
import os, time
os.makedirs(os.path.expanduser("~/sessions"))
print("x" * 70_000, end="", flush=True)
end = time.monotonic() + 1
while time.monotonic() < end:
    print("x\\n" * 100 + "x", end="", flush=True)
    with open(os.path.expanduser("~/sessions/s-1.jsonl"), "a") as file:
        file.write('{"tokens": 1}\\n')
    time.sleep(0.01)
print()
print("end")
"""
    log = lines(follow_agent(home, [sys.executable, "-c", program], 10**7)[0])
    assert '{"tokens": 1}' in log[: log.index("end")]
    assert {line for line in log if line.strip("x")} == {'{"tokens": 1}', "end"}


def test_the_newest_file_is_followed_and_an_older_one_to_its_end(home: Path) -> None:
    agent = """
        echo '{"tokens": 1}' > $s; sleep 0.5; echo '{"tokens": 2}' >> $s; sleep 0.01
        echo '{"tokens": 3}' > $HOME/sessions/s-2.jsonl; sleep 0.5; echo '{"tokens": 4}' >> $s
    """
    assert lines(follow_agent(home, agent)[0]) == [json.dumps({"tokens": n}) for n in range(1, 5)]


def test_a_file_that_is_written_anew_is_read_from_its_beginning(home: Path) -> None:
    agent = """ echo '{"tokens": 1, "x": 1}' > $s; sleep 0.5; echo '{"tokens": 2}' > $s"""
    assert lines(follow_agent(home, agent)[0]) == ['{"tokens": 1, "x": 1}', '{"tokens": 2}']


@pytest.mark.parametrize(
    "script",
    [
        "ln -s $TMPDIR/s-1.jsonl sessions/s-1.jsonl",
        "ln -s $TMPDIR sessions/day",
        "rmdir sessions; ln -s $TMPDIR sessions",
        "cd ..; rm -r home; mkdir $TMPDIR/sessions; cp $TMPDIR/s-1.jsonl $TMPDIR/sessions; ln -s $TMPDIR home",
        "mkfifo sessions/s-1.jsonl",
        "mkdir sessions/s-1.jsonl; cp $TMPDIR/s-1.jsonl sessions/s-1.jsonl/x",
        "cp $TMPDIR/s-1.jsonl sessions/x-1.jsonl",
    ],
)
def test_what_is_no_plain_file_below_the_home_is_not_followed(home: Path, script: str) -> None:
    make = """mkdir $HOME/sessions; echo '{"tokens": 1}' > $TMPDIR/s-1.jsonl; cd $HOME;"""
    tail = TailReader(home, GLOB, WORD)
    env = {"HOME": str(home), "TMPDIR": str(home.parent), "PATH": os.environ["PATH"]}
    subprocess.run(["/bin/sh", "-ec", f"{make} {script}"], env=env, check=True)
    assert [*tail.read(), *tail.read_rest()] == []


def test_the_log_is_bounded_with_the_lines_that_join_it(home: Path) -> None:
    agent = """ echo start; yes '{"tokens": 1}' | head -n 100000 > $s"""
    said, log = follow_agent(home, agent, max_log_bytes=1000)
    assert len(said) < 1100
    assert log.truncated


def test_a_session_of_a_terabyte_holds_nobody_up(home: Path) -> None:
    agent = """ truncate -s 1T $s || truncate -s 100G $s; echo end"""
    assert follow_agent(home, agent)[0] == b"end\n"


@given(st.lists(st.binary(max_size=5).map(lambda data: data.replace(b"x", b"\n"))))
def test_however_a_file_grows_its_lines_are_whole(pieces: list[bytes]) -> None:
    followed = Followed(0)
    got = b"".join(line for piece in pieces for line in followed.feed(piece))
    whole = b"".join(pieces)
    assert got == whole[: whole.rfind(b"\n") + 1]
    assert followed.offset == len(whole)


def test_a_line_that_is_too_long_is_left_out_and_the_next_is_not() -> None:
    followed = Followed(0)
    pieces = [b"a\nb", b"b" * tail_module.MAX_LINE, b"b" * 9, b"b\nc\n"]
    assert [line for piece in pieces for line in followed.feed(piece)] == [b"a\n", b"c\n"]


def test_a_tail_looks_now_and_then_only(tmp_path: Path) -> None:
    tail = TailReader(tmp_path, "*.jsonl", "")
    (tmp_path / "s.jsonl").write_text("one\n")
    assert list(tail.read()) == [b"one\n"]
    (tmp_path / "s.jsonl").write_text("one\ntwo\n")
    assert list(tail.read()) == []
    assert list(tail.read_rest()) == [b"two\n"]


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("a.txt", "a.txt"),
        ("*.txt", "a.txt"),
        ("**/*.txt", "a.txt"),
        ("**/*.txt", "x/y/z/a.txt"),
        ("x/**/z/**/*.txt", "x/y/z/a.txt"),
        ("x/*/z/a.txt", "x/y/z/a.txt"),
        (".x/**/a.txt", ".x/a.txt"),
    ],
)
def test_a_pattern_finds_files_in_folders(tmp_path: Path, pattern: str, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    found = find_newest(tmp_path, pattern)
    assert found
    assert found.path == path


@pytest.mark.parametrize("pattern", ["", "b.txt", "x", "x/a.txt", "../a.txt", "*/a.txt/*", "**/a", "x/**"])
def test_a_pattern_finds_nothing_else(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "a.txt").touch()
    assert find_newest(tmp_path, pattern) is None


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Path]:
    """A folder, in memory where there is one, for what is deeper than pytest's own way to remove it can go."""
    folder = Path(mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path))
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize(("program", "seconds"), [(DEEP, 5), (WIDE, 5)], ids=["deep", "wide"])
def test_a_home_without_end_is_not_searched_to_its_end(endless: Path, program: str, seconds: float) -> None:
    subprocess.run([sys.executable, "-c", program], cwd=endless, check=True)
    began = time.monotonic()
    assert find_newest(endless, "**/*.jsonl") is None
    assert time.monotonic() - began < seconds
