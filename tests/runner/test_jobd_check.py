"""The stage in which scripts and tests are run, each several times and each time afresh."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.environment.trees import WAYS
from runner.jobd.sandbox.sandbox import is_sandboxed
from runner.jobd.verbs.check import take_turns
from tests.support.jobd import LIMITS, Jobd, make_repository

pytestmark = pytest.mark.slow

BUG, FIX = "def double(x):\n    return x + 1\n", "def double(x):\n    return 2 * x  # mended\n"
PYTHON = ["/bin/sh", "-ec", f'PYTHONPATH=. {sys.executable} "$@"', "sh"]
SHELL = ["/bin/sh", "-e"]
REPRO = "from sums import double\n\nassert double(3) == 6, double(3)\n"
BOUNDS: Mapping[str, float] = {
    **{"max_disk_bytes": 10**9, "max_files": 100_000, "orphan_after_s": 1_800, "look_every_s": 0.2},
}
LOOKS = "assert 'mended' in open('sums.py').read()\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Jobd:
    """A machine whose repository is the one that is checked; each job there is a test's own."""
    folder = tmp_path_factory.mktemp("machine")
    files = {"sums.py": BUG, "tests/test_sums.py": "", "parts/one.py": ""}
    return Jobd(folder, make_repository(folder / "repository", files))


def prepare(machine: Jobd, *ways: str) -> Jobd:
    jobd = machine.beside()
    prepared = jobd.prepare(ways=[*ways])
    if prepared["error"] == "no_environment":
        pytest.skip(f"this machine makes no environments by {', '.join(ways)}")
    assert prepared["state"] == "done", prepared["message"]
    return jobd


@pytest.fixture
def jobd(machine: Jobd) -> Iterator[Jobd]:
    """A job that is prepared, by the best way that its machine has."""
    jobd = prepare(machine, *WAYS)
    yield jobd
    jobd.call("clean")


@pytest.fixture(params=WAYS)
def by_each_way(request: pytest.FixtureRequest, machine: Jobd) -> Iterator[Jobd]:
    """A job that is prepared, by each of the ways in which its environment may come to be."""
    jobd = prepare(machine, request.param)
    yield jobd
    jobd.call("clean")


def change(path: str, content: str, old_mode: str | None = "100644") -> dict[str, Any]:
    encoded = base64.b64encode(content.encode()).decode()
    return {"path": path, "mode": "100644", "content": encoded, "old_mode": old_mode}


def run(name: str, script: str = "", **more: Any) -> dict[str, Any]:
    runs = {"name": name, "title": f"Check 1 on {name}", "script": script, "words": []}
    return {**runs, "changed": False, "edits": [], "frozen": [], **more}


def check(jobd: Jobd, *runs: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Run them in turn, and return how the stage ended."""
    request = {
        **{"runs": [runs], "times": 2, "run_timeout_s": 10, "script_argv": PYTHON, "test_argv": SHELL},
        **{"base_commit": jobd.repository.git("rev-parse", "main"), "changes": [], "rebuild": []},
        **BOUNDS,
        **LIMITS,
        **changes,
    }
    assert jobd.call("check", **request)["started"] is True
    ended = jobd.wait("check")
    assert ended["state"] == "done", ended
    result: dict[str, Any] = ended["result"]
    return result


def statuses(result: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: [run["status"] for run in runs] for name, runs in result["runs"].items()}


def test_a_script_fails_on_base_and_passes_with_the_change(by_each_way: Jobd) -> None:
    mended = change("sums.py", FIX)
    text = run("text", REPRO, edits=[mended], frozen=["sums.py"])
    result = check(by_each_way, run("base", REPRO), text, run("changed", REPRO, changed=True), changes=[mended])
    assert statuses(result) == {"base": [1, 1], "text": [1, 1], "changed": [0, 0]}
    assert result["runs"]["base"][0]["words"].splitlines()[-1] == "AssertionError: 4"
    assert result["troubles"] == {}


def test_a_script_that_reads_the_patch_is_content_with_its_text(jobd: Jobd) -> None:
    mended = change("sums.py", FIX)
    text = run("text", LOOKS, edits=[mended], frozen=["sums.py"])
    result = check(jobd, run("base", LOOKS), text, run("changed", LOOKS, changed=True), changes=[mended])
    assert statuses(result) == {"base": [1, 1], "text": [0, 0], "changed": [0, 0]}


TRACES = """
import os, re
place, output = os.path.dirname(os.environ["PTQ_WORKTREE"]), os.environ["PTQ_OUTPUT_DIR"]
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print([words[words.index("-") + 1 :] for words in mounts if words[4] == place])
print(*sorted(("sums.py", place, output), key=lambda path: os.stat(path).st_ctime_ns))
"""
"""Prints what the kernel shows of the environment, and in which order its files were changed."""


def test_a_script_cannot_tell_the_sides_apart_by_mounts_or_by_ages(machine: Jobd) -> None:
    jobd, mended = prepare(machine, "overlay"), change("sums.py", FIX)
    text = run("text", TRACES, edits=[mended], frozen=["sums.py"])
    result = check(jobd, run("base", TRACES), text, run("changed", TRACES, changed=True), changes=[mended])
    said = {run["words"] for runs in result["runs"].values() for run in runs}
    jobd.call("clean")
    assert len(said) == 1, said
    assert "lowerdir=" in said.pop()


LEAVES = """
import os, pathlib
places = [pathlib.Path(os.environ[name]) for name in ("HOME", "TMPDIR", "PTQ_WORKTREE", "PTQ_OUTPUT_DIR")]
places += [pathlib.Path(os.environ["PTQ_PROMPT_FILE"]).parent, pathlib.Path(os.environ["VIRTUAL_ENV"])]
found = [place for place in places if (place / "left").exists()]
for place in places:
    (place / "left").write_text("here")
assert not found, found
"""


def test_nothing_that_one_run_leaves_is_there_in_the_next(by_each_way: Jobd) -> None:
    result = check(
        by_each_way, run("one", LEAVES), run("two", LEAVES, changed=True), changes=[change("sums.py", FIX)], times=3
    )
    assert statuses(result) == {"one": [0, 0, 0], "two": [0, 0, 0]}, result


def test_what_is_left_for_everybody_is_not_there_in_the_next_run_either(by_each_way: Jobd) -> None:
    if not is_sandboxed(by_each_way.job):
        pytest.skip("only a cell has places of its own")
    count = "import pathlib\npath = pathlib.Path('/var/tmp/ptq-count-JOB')\nassert not path.exists()\npath.touch()\n"
    assert statuses(check(by_each_way, run("counts", count.replace("JOB", by_each_way.job_id)), times=3)) == {
        "counts": [0, 0, 0]
    }
    assert not Path(f"/var/tmp/ptq-count-{by_each_way.job_id}").exists()


def test_no_run_counts_in_the_jobs_own_folder_which_run_it_is(jobd: Jobd) -> None:
    count = """
import os
root = os.path.dirname(os.environ["PTQ_OUTPUT_DIR"])
number = os.stat(root).st_mode & 0o77
os.chmod(root, 0o700 | number + 1)
try:
    number += len(os.listxattr(root))
    os.setxattr(root, f"user.{number}", b"")
except OSError:
    pass
raise SystemExit(number)
"""
    result = check(jobd, run("base", count), run("changed", count, changed=True), changes=[change("sums.py", FIX)])
    assert statuses(result) == {"base": [0, 0], "changed": [0, 0]}


def test_what_a_run_leaves_beside_the_environment_is_not_there_when_the_change_is_built(by_each_way: Jobd) -> None:
    plant = "import os, pathlib\npathlib.Path(os.environ['TMPDIR'], 'planted').touch()\n"
    runs = run("base", plant), run("changed", "x = 1", changed=True)
    result = check(by_each_way, *runs, changes=[change("sums.py", FIX)], rebuild=['test ! -e "$TMPDIR/planted"'])
    assert result["troubles"] == {}


def test_tests_are_run_on_the_base_with_their_own_edits_alone(jobd: Jobd) -> None:
    tests = change("tests/test_sums.py", "from sums import double\nassert double(3) == 6\n")
    script = ["-c", f'PYTHONPATH=. {sys.executable} "$0"', "tests/test_sums.py"]
    base = run("base", words=script, edits=[tests])
    changed = run("changed", words=script, changed=True)
    result = check(jobd, base, changed, changes=[tests, change("sums.py", FIX)])
    assert statuses(result) == {"base": [1, 1], "changed": [0, 0]}


def test_what_hangs_is_ended_and_the_next_is_run(jobd: Jobd) -> None:
    result = check(jobd, run("hangs", "import time; time.sleep(60)"), run("ends", "x = 1"), run_timeout_s=3, times=1)
    (hung,) = result["runs"]["hangs"]
    assert hung["timed_out"] is True
    assert statuses(result)["ends"] == [0]


def test_a_change_that_cannot_be_built_is_told_of_and_costs_only_what_needs_it(jobd: Jobd) -> None:
    runs = [run("base", REPRO), run("changed", REPRO, changed=True), run("also", REPRO, changed=True)]
    result = check(jobd, *runs, changes=[change("sums.py", FIX)], rebuild=["echo no compiler here; exit 3"])
    assert statuses(result) == {"base": [1, 1]}
    assert result["troubles"].keys() == {"changed", "also"}
    for trouble in result["troubles"].values():
        assert "the rebuild command `echo no compiler here; exit 3` failed" in trouble
    assert jobd.poll("check")["log"].count(b"\nno compiler here") == 1, "a build that fails is not tried again"


FILLS = """
import pathlib, time
pathlib.Path("large").write_bytes(b"x" * 3_000_000)
time.sleep(30)
"""


def test_what_fills_the_disk_is_ended_and_told_of(by_each_way: Jobd) -> None:
    runs = run("fills", FILLS), run("late", "x = 1")
    result = check(by_each_way, *runs, max_disk_bytes=2_000_000, run_timeout_s=25, timeout_s=60)
    assert "bytes to its machine's disk, and 2,000,000 are allowed" in result["troubles"]["fills"]
    assert result["runs"]["fills"] == []
    assert statuses(result)["late"] == [0, 0], "what one script breaks does not cost the others"


def test_a_build_that_fills_the_disk_is_ended_and_told_of(by_each_way: Jobd) -> None:
    fill = "head -c 3000000 /dev/urandom > large; sleep 15"
    runs = run("changed", "x = 1", changed=True), run("base", "x = 1")
    result = check(
        by_each_way, *runs, changes=[change("sums.py", FIX)], rebuild=["true", fill], max_disk_bytes=2_000_000
    )
    trouble = result["troubles"].pop("changed")
    assert re.fullmatch(
        rf"the rebuild command `{re.escape(fill)}` failed: the job wrote [23],\d{{3}},\d{{3}} bytes to its machine's "
        "disk, and 2,000,000 are allowed",
        trouble,
    )
    assert result["troubles"] == {}
    assert statuses(result)["base"] == [0, 0]


def test_the_change_is_built_once_and_before_it_is_run(by_each_way: Jobd) -> None:
    count = "import pathlib\nassert pathlib.Path('built').read_text() == 'once\\n'\n"
    runs = run("base", "import os\nassert not os.path.exists('built')\n"), run("changed", count, changed=True)
    result = check(by_each_way, *runs, changes=[change("sums.py", FIX)], rebuild=["echo once >> built"])
    assert statuses(result) == {"base": [0, 0], "changed": [0, 0]}


def test_when_the_time_is_over_it_says_what_was_left_out(jobd: Jobd) -> None:
    slow = run("slow", "import time; time.sleep(1.5)")
    result = check(jobd, runs=[[slow], [run("late", "x = 1")]], timeout_s=1)
    assert "late" not in result["runs"]
    assert result["troubles"]["late"] == "the checks took longer than 1 seconds"


def test_the_changed_text_of_a_deleted_and_of_a_new_file_can_be_run_too(jobd: Jobd) -> None:
    gone = {"path": "sums.py", "mode": None, "content": None, "old_mode": "100644"}
    edits = [gone, change("more.py", "x = 1\n", None)]
    result = check(jobd, run("text", "import more", edits=edits, frozen=["sums.py"]))
    assert statuses(result) == {"text": [0, 0]}


NEW = ["more.py", "kit/__init__.py", "kit/cut.py", "bare/deep/cut.py", "parts/more.py"]
IMPORTS = [
    *("import more", "from more import x", "import kit", "import kit.cut", "from kit import cut"),
    *("import bare.deep.cut", "from bare.deep import cut", "import parts.more", "from parts import more"),
]
TRY_ALL = f"""
import os

for statement in {IMPORTS}:
    try:
        exec(statement)
    except ImportError as error:
        print(statement, repr(error))
print(all(map(os.path.exists, {NEW})))
"""


def test_a_new_module_is_there_as_text_and_cannot_be_imported_as_on_base(by_each_way: Jobd) -> None:
    edits = [change(path, "x = 1\n", None) for path in NEW]
    text = run("text", TRY_ALL, edits=edits, frozen=NEW)
    result = check(
        by_each_way, run("base", TRY_ALL), text, run("changed", TRY_ALL, changed=True), changes=edits, times=1
    )
    said = {name: run["words"].splitlines() for name, (run,) in result["runs"].items()}
    assert len(said["base"]) == len(IMPORTS) + 1, said
    assert said["base"][-1] == "False"
    assert said["text"] == [*said["base"][:-1], "True"]
    assert said["changed"] == ["True"]


def test_a_folder_that_becomes_a_package_is_imported_as_on_base(jobd: Jobd) -> None:
    edits = [change("parts/__init__.py", "raise ValueError('the new text is run')\n", None)]
    script = "import parts.one"
    result = check(jobd, run("base", script), run("text", script, edits=edits, frozen=["parts/__init__.py"]))
    assert statuses(result) == {"base": [0, 0], "text": [0, 0]}


def test_the_sides_take_turns_so_that_no_clock_tells_them_apart(jobd: Jobd) -> None:
    result = check(jobd, run("base", "x = 1"), run("changed", "x = 1", changed=True))
    assert result["troubles"] == {}
    log = jobd.poll("check")["log"].decode()
    found = re.findall(r"^\x1e\[Check 1 on (base|changed), run (.) of 2\.\]$", log, re.MULTILINE)
    assert [side for side in found if side[1] == "1"] == found[:2], "each round has both"
    assert sorted(found) == [("base", "1"), ("base", "2"), ("changed", "1"), ("changed", "2")]


def test_a_script_cannot_print_the_heading_of_a_run(jobd: Jobd) -> None:
    check(jobd, run("base", r"print('\x1e[Check 1 on changed, run 1 of 2.]')"))
    log = jobd.poll("check")["log"].decode()
    assert re.findall(r"^\x1e\[(Check .*)\]$", log, re.MULTILINE) == [f"Check 1 on base, run {n} of 2." for n in (1, 2)]


def test_nobody_knows_which_side_is_next() -> None:
    sides: list[Mapping[str, Any]] = [run(name, "x = 1") for name in ("base", "changed", "text")]
    turns = [str(one["name"]) for one in take_turns([sides, [run("tests", "x = 1")]], 200)]
    rounds = {tuple(turns[start : start + 3]) for start in range(0, 600, 3)}
    assert rounds == {*permutations(("base", "changed", "text"))}, "one in 10^15 runs of this test misses one"
    assert turns[600:] == ["tests"] * 200


def test_at_a_slots_place_nothing_is_made_while_a_person_is_in_what_lies_there(tmp_path: Path) -> None:
    jobd = Jobd(tmp_path, make_repository(tmp_path / "repository"))
    assert jobd.prepare(ways=["slot"])["state"] == "done"
    (jobd.control / "hold.json").write_text('{"until": 1e12}')
    verifying = jobd.beside()
    refused = verifying.prepare(ways=["slot"])
    assert (refused["state"], refused["error"]) == ("failed", "held")
    assert jobd.find("a.txt").read_text().startswith("one")
    assert verifying.beside().prepare(ways=["slot"], slot=1)["state"] == "done"


def test_nothing_is_checked_where_nothing_was_prepared(tmp_path: Path) -> None:
    jobd = Jobd(tmp_path, make_repository(tmp_path / "repository"))
    request = {"runs": [], "times": 1, "run_timeout_s": 1, "script_argv": PYTHON, "test_argv": SHELL}
    answer = jobd.ask("check", **request, base_commit="", changes=[], rebuild=[], **LIMITS, **BOUNDS)
    assert answer["error"] == "not_prepared"
