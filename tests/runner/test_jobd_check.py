"""The stage in which scripts and tests are run, each several times and each time afresh."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.jobd.environment.trees import WAYS
from runner.jobd.sandbox.sandbox import is_sandboxed
from runner.jobd.verbs.check import take_turns
from tests.support.jobd import LIMITS, Jobd, make_repository

pytestmark = pytest.mark.slow

BUG, FIX = "def double(x):\n    return x + 1\n", "def double(x):\n    return 2 * x  # fixed\n"
PYTHON = ["/bin/sh", "-ec", f'PYTHONPATH=. {sys.executable} "$@"', "sh"]
SHELL = ["/bin/sh", "-e"]
REPRO = "from sums import double\n\nassert double(3) == 6, double(3)\n"
BOUNDS: Mapping[str, float] = {
    **{"max_disk_bytes": 10**9, "max_files": 100_000, "orphan_after_s": 1_800, "look_every_s": 0.2},
}


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


# By each way


LEAVES = """
import os, pathlib
places = [pathlib.Path(os.environ[name]) for name in ("HOME", "TMPDIR", "PTQ_WORKTREE", "PTQ_OUTPUT_DIR")]
places += [pathlib.Path(os.environ["PTQ_PROMPT_FILE"]).parent, pathlib.Path(os.environ["VIRTUAL_ENV"])]
places += [pathlib.Path("/var/tmp/ptq-JOB")] if SEALED else []
found = [place for place in places if (place / "left").exists()]
for place in places:
    place.mkdir(exist_ok=True)
    (place / "left").write_text("here")
assert not found, found

root = os.path.dirname(os.environ["PTQ_OUTPUT_DIR"])
number = os.stat(root).st_mode & 0o77
os.chmod(root, 0o700 | number + 1)
try:
    number += len(os.listxattr(root))
    os.setxattr(root, f"user.{number}", b"")
except OSError:
    pass
assert number == 0, number
"""
"""Leaves something everywhere, and fails if any of it is there, or if it can count in the job's own folder."""

FORGES = r"print('\x1e[Check 1 on changed, run 1 of 2.]')"
IS_BUILT = "import pathlib\nassert pathlib.Path('built').read_text() == 'once\\n'\n"


def test_a_script_fails_on_base_and_passes_with_the_change_and_no_run_notices_another(by_each_way: Jobd) -> None:
    jobd, fixed = by_each_way, change("sums.py", FIX)
    leaves = LEAVES.replace("JOB", jobd.job_id).replace("SEALED", str(is_sandboxed(jobd.job)))
    text = run("text", REPRO, edits=[fixed], frozen=["sums.py"])
    on_base, leaving = [run("base", REPRO), text], FORGES + leaves + "assert not os.path.exists('built')\n"
    changed = [run("changed", REPRO, changed=True), run("two", leaves + IS_BUILT, changed=True)]
    # The change is built right after a run that has left something.
    rebuild = ['test ! -e "$TMPDIR/left"', 'test ! -e "$HOME/left"', "echo once >> built"]
    result = check(jobd, runs=[on_base, [run("one", leaving)], changed], changes=[fixed], rebuild=rebuild)
    assert result["troubles"] == {}
    assert statuses(result) == {"base": [1, 1], "text": [1, 1], "one": [0, 0], "changed": [0, 0], "two": [0, 0]}, result
    assert result["runs"]["base"][0]["words"].splitlines()[-1] == "AssertionError: 4"
    assert not Path(f"/var/tmp/ptq-{jobd.job_id}").exists()

    # A script cannot print the heading of a run.
    found = re.findall(r"^\x1e\[Check 1 on (.*), run (.) of 2\.\]$", jobd.poll("check")["log"].decode(), re.MULTILINE)
    assert [number for _, number in found] == [*"1122", *"12", *"1122"], "each round has all sides"
    assert sorted(found) == sorted((name, number) for name in statuses(result) for number in "12")


FILLS = """
import pathlib, time
pathlib.Path("large").write_bytes(b"x" * 3_000_000)
time.sleep(30)
"""


@pytest.mark.parametrize("by_each_way", ["overlay", "slot"], indirect=True)
def test_a_script_or_a_build_that_fills_the_disk_is_ended_and_told_of(by_each_way: Jobd) -> None:
    """What is written lies in the job's folder, but by slots."""
    fill = "head -c 3000000 /dev/urandom > large; sleep 15"
    runs = [[run("fills", FILLS), run("late", "x = 1")], [run("changed", "x = 1", changed=True), run("base", "x = 1")]]
    limits: dict[str, Any] = {"max_disk_bytes": 2_000_000, "run_timeout_s": 25, "timeout_s": 60}
    result = check(by_each_way, runs=runs, changes=[change("sums.py", FIX)], rebuild=["true", fill], **limits)
    assert result["troubles"].keys() == {"fills", "changed"}
    assert "bytes to its machine's disk, and 2,000,000 are allowed" in result["troubles"]["fills"]
    assert re.fullmatch(
        rf"the rebuild command `{re.escape(fill)}` failed: the job wrote [23],\d{{3}},\d{{3}} bytes to its machine's "
        "disk, and 2,000,000 are allowed",
        result["troubles"]["changed"],
    )
    assert result["runs"]["fills"] == []
    sound = {name: runs for name, runs in statuses(result).items() if runs}
    assert sound == {"late": [0, 0], "base": [0, 0]}, "what one script breaks does not cost the others"


# By the best way


LOOKS = "assert 'fixed' in open('sums.py').read()\n"

TRACES = """
import os, re
place, output = os.path.dirname(os.environ["PTQ_WORKTREE"]), os.environ["PTQ_OUTPUT_DIR"]
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print([words[words.index("-") + 1 :] for words in mounts if words[4] == place])
print(*sorted(("sums.py", place, output), key=lambda path: os.stat(path).st_ctime_ns))
"""
"""Prints what the kernel shows of the environment, and in which order its files were changed."""

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

FIXED = change("sums.py", FIX)
TESTS = change("tests/test_sums.py", "from sums import double\nassert double(3) == 6\n")
MORE = [change(path, "x = 1\n", None) for path in NEW]
GONE = {"path": "sums.py", "mode": None, "content": None, "old_mode": "100644"}
PACKAGE = change("parts/__init__.py", "raise ValueError('the new text is run')\n", None)
RUN_TESTS = ["-c", f'PYTHONPATH=. {sys.executable} "$0"', "tests/test_sums.py"]


def on_each_side(name: str, script: str, *edits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A script on base, with the text of these edits, and with the change."""
    text = run(f"{name}: text", script, edits=[*edits], frozen=[edit["path"] for edit in edits])
    return [run(f"{name}: base", script), text, run(f"{name}: changed", script, changed=True)]


class Checked(NamedTuple):
    """What many runs said, one after the other, and by which way their environments were made."""

    runs: Mapping[str, Mapping[str, Any]]
    way: str

    def statuses(self, name: str) -> dict[str, int]:
        sides = {one.partition(": ")[2]: run for one, run in self.runs.items() if one.startswith(f"{name}: ")}
        return {side: run["status"] for side, run in sides.items()}


@pytest.fixture(scope="module")
def checked(machine: Jobd) -> Checked:
    jobd = prepare(machine, *WAYS)
    runs = [
        on_each_side("looks", LOOKS, FIXED),
        on_each_side("traces", TRACES, FIXED),
        on_each_side("new", TRY_ALL, *MORE),
        [
            run("tests: base", words=RUN_TESTS, edits=[TESTS]),
            run("tests: changed", words=RUN_TESTS, changed=True),
            run("gone: text", "import more", edits=[GONE, MORE[0]], frozen=["sums.py"]),
            run("package: base", "import parts.one"),
            run("package: text", "import parts.one", edits=[PACKAGE], frozen=["parts/__init__.py"]),
        ],
    ]
    result = check(jobd, runs=runs, changes=[FIXED, TESTS, *MORE], times=1, timeout_s=60)
    way = jobd.poll("prepare")["result"]["way"]
    jobd.call("clean")
    assert result["troubles"] == {}
    return Checked({name: ran for name, (ran,) in result["runs"].items()}, way)


def test_a_script_that_reads_the_patch_is_content_with_its_text(checked: Checked) -> None:
    assert checked.statuses("looks") == {"base": 1, "text": 0, "changed": 0}


def test_a_script_cannot_tell_the_sides_apart_by_mounts_or_by_ages(checked: Checked) -> None:
    if checked.way != "overlay":
        pytest.skip("this machine makes no environments by overlay")
    said = {checked.runs[f"traces: {side}"]["words"] for side in ("base", "text", "changed")}
    assert len(said) == 1, said
    assert "lowerdir=" in said.pop()


def test_tests_are_run_on_the_base_with_their_own_edits_alone(checked: Checked) -> None:
    assert checked.statuses("tests") == {"base": 1, "changed": 0}


def test_the_changed_text_of_a_deleted_and_of_a_new_file_can_be_run_too(checked: Checked) -> None:
    assert checked.statuses("gone") == {"text": 0}


def test_a_new_module_is_there_as_text_and_cannot_be_imported_as_on_base(checked: Checked) -> None:
    said = {side: checked.runs[f"new: {side}"]["words"].splitlines() for side in ("base", "text", "changed")}
    assert len(said["base"]) == len(IMPORTS) + 1, said
    assert said["base"][-1] == "False"
    assert said["text"] == [*said["base"][:-1], "True"]
    assert said["changed"] == ["True"]


def test_a_folder_that_becomes_a_package_is_imported_as_on_base(checked: Checked) -> None:
    assert checked.statuses("package") == {"base": 0, "text": 0}


def test_a_change_that_cannot_be_built_or_a_script_that_hangs_costs_only_what_needs_it(jobd: Jobd) -> None:
    runs = [run("base", REPRO), run("changed", REPRO, changed=True), run("also", REPRO, changed=True)]
    runs.append(run("hangs", "import time; time.sleep(60)"))
    rebuild = ["echo no compiler here; exit 3"]
    result = check(jobd, *runs, changes=[FIXED], rebuild=rebuild, run_timeout_s=3, times=1)
    assert statuses(result)["base"] == [1]
    (hung,) = result["runs"]["hangs"]
    assert hung["timed_out"] is True
    assert result["troubles"].keys() == {"changed", "also"}
    for trouble in result["troubles"].values():
        assert "the rebuild command `echo no compiler here; exit 3` failed" in trouble
    assert jobd.poll("check")["log"].count(b"\nno compiler here") == 1, "a build that fails is not tried again"


def test_when_the_time_is_over_it_says_what_was_left_out(jobd: Jobd) -> None:
    slow = run("slow", "import time; time.sleep(1.5)")
    result = check(jobd, runs=[[slow], [run("late", "x = 1")]], timeout_s=1)
    assert "late" not in result["runs"]
    assert result["troubles"]["late"] == "the checks took longer than 1 seconds"


def test_nobody_knows_which_side_is_next() -> None:
    sides: list[Mapping[str, Any]] = [run(name, "x = 1") for name in ("base", "changed", "text")]
    turns = [str(one["name"]) for one in take_turns([sides, [run("tests", "x = 1")]], 200)]
    rounds = {tuple(turns[start : start + 3]) for start in range(0, 600, 3)}
    assert rounds == {*permutations(("base", "changed", "text"))}, "one in 10^15 runs of this test misses one"
    assert turns[600:] == ["tests"] * 200


def test_at_a_slots_place_nothing_is_made_while_a_person_is_in_what_lies_there(machine: Jobd) -> None:
    jobd = prepare(machine, "slot")
    (jobd.control / "hold.json").write_text('{"until": 1e12}')
    verifying, elsewhere = jobd.beside(), jobd.beside()
    refused = verifying.prepare(ways=["slot"])
    assert (refused["state"], refused["error"]) == ("failed", "held")
    assert jobd.find("sums.py").read_text() == BUG
    assert elsewhere.prepare(ways=["slot"], slot=1)["state"] == "done"
    for job in (jobd, verifying, elsewhere):
        job.call("clean")


def test_nothing_is_checked_where_nothing_was_prepared(tmp_path: Path) -> None:
    jobd = Jobd(tmp_path, make_repository(tmp_path / "repository"))
    request = {"runs": [], "times": 1, "run_timeout_s": 1, "script_argv": PYTHON, "test_argv": SHELL}
    answer = jobd.ask("check", **request, base_commit="", changes=[], rebuild=[], **LIMITS, **BOUNDS)
    assert answer["error"] == "not_prepared"
