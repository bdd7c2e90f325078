"""Jobs that do the worst they can: each comes to a bounded and honest end, and neither base nor next job notices.

What the rest of an agent's tricks do to its own result is told in `test_jobd_distrust.py` and `test_jobd_change.py`.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from runner.jobd.files import read_json
from runner.jobd.sandbox.processes import find_processes
from tests.support.contents import Entry, find_differences, read_entries
from tests.support.jobd import Change, Jobd, Repository, wait_until
from tests.support.made_base import MadeBase

pytestmark = pytest.mark.slow

MAX_RESULT_BYTES = 20_000

SETUP = """
mkdir built; seq 1000 > built/library; ln built/library built/twin; ln -s library built/link; chmod 755 built/library
echo cached > "$HOME/cache"; mkdir "$VIRTUAL_ENV/bin"; echo 'echo tool at work' > "$VIRTUAL_ENV/bin/tool"
chmod 755 "$VIRTUAL_ENV/bin/tool"
"""
LOOK = 'tool; cat "$HOME/cache"; git status --short a.txt b.txt dir; cat a.txt built/twin | wc -l; ls -A'
LOOKED = "tool at work\ncached\n1003\n.git\na.txt\nb.txt\nbuilt\ndir\n"


@pytest.fixture(scope="module")
def made_base(tmp_path_factory: pytest.TempPathFactory, template: Repository) -> MadeBase:
    folder = tmp_path_factory.mktemp("made-base")
    machine = Jobd(folder, Repository(shutil.copytree(template.folder, folder / "origin")))
    return MadeBase(machine, ["overlay", "slot"], setup=[SETUP])


class Deed(NamedTuple):
    """What a job does, and what becomes of it."""

    script: str
    error: str | None = None
    """Why there is no change, if there is none."""
    contents: Mapping[str, bytes | None] = MappingProxyType({})
    """Of the changed files, as they are collected."""
    says: str = ""
    """What the result names."""


PLANT = r"""
trap="$TMPDIR/trap"; printf "#!/bin/sh\ntouch $trap-ran\ncat\n" > "$trap"; chmod 755 "$trap"
mkdir -p .git/hooks .git/info; echo '* filter=f' > .git/info/attributes
for hook in post-checkout post-index-change; do cp "$trap" .git/hooks/$hook; done
for key in filter.f.clean filter.f.smudge core.fsmonitor core.pager diff.external core.sshCommand; do
    git config $key "$trap"
done
git config core.hooksPath "$PWD/.git/hooks"; git config core.worktree /etc
"""
SOCKET = f"{sys.executable} -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"

DEEDS = {
    "closes everything": Deed(
        'echo x > x; cd /; find "$TMPDIR" "$PTQ_OUTPUT_DIR" "${PTQ_WORKTREE%/*}" -depth -exec chmod 000 {} +',
        contents={"x": b"x\n"},
    ),
    "deletes everything": Deed(
        'rm -rf "$PTQ_WORKTREE" "$HOME" "$VIRTUAL_ENV" "$TMPDIR" "$PTQ_OUTPUT_DIR"',
        error="worktree_gone",
    ),
    "deletes git's folder": Deed("rm -rf .git; echo x > x", contents={"x": b"x\n"}),
    "leaves mounts": Deed(
        "unshare -Urm sh -c 'mount -t tmpfs none built; mount -t tmpfs none /mnt; touch built/x; sleep 60' & sleep 0.3",
    ),
    "leaves a thousand processes": Deed("for n in $(seq 1000); do sleep 61 & done; echo x > x", contents={"x": b"x\n"}),
    "plants commands in git": Deed(f"{PLANT} echo x > x", contents={"x": b"x\n"}),
    "points git elsewhere": Deed(
        "echo /etc > .git/objects/info/alternates; echo x > x; echo 'ref: /etc/shadow' > .git/HEAD",
        contents={"x": b"x\n"},
    ),
    "makes repositories in the repository": Deed(
        "for n in 1 2 3; do git init -q nest/$n; git init -q --bare bare/$n; done; cp -r .git/. built; git init -q dir",
        error="change_too_large",
    ),
    "makes sockets and pipes": Deed(
        f"rm b.txt; mkfifo b.txt pipe; {SOCKET}; echo x > x",
        contents={"b.txt": None, "x": b"x\n"},
        says="`b.txt` counts as deleted",
    ),
    "links to what is secret": Deed(
        'ln -s /etc/shadow "$PTQ_OUTPUT_DIR/report.md"; rm -r a.txt built dir; ln -s /etc/shadow a.txt; '
        "ln -s /etc built; ln -s /etc dir",
        contents={"a.txt": b"/etc/shadow", "dir": b"/etc", "dir/c.txt": None, "built": b"/etc"},
        says="report.md was left out: it is not a regular file",
    ),
    "makes a file that cannot be": Deed(
        "truncate -s 1T huge 2> /dev/null || truncate -s 100G huge", error="change_too_large", says="`huge` has 1"
    ),
}


def prepare(jobd: Jobd, **changes: Any) -> None:
    poll = jobd.prepare(setup=[SETUP], **changes)
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    assert poll["state"] == "done", poll["message"]


def read_shared(jobd: Jobd, *names: str) -> dict[str, Entry]:
    """What jobs share."""
    return {path: entry for name in names for path, entry in read_entries(jobd.workspace / name).items()}


def expect_all_well(jobd: Jobd, **changes: Any) -> None:
    """Hold the next job against what the first one saw."""
    later = jobd.beside()
    prepare(later, **changes)
    assert later.agent(LOOK)["log"].decode() == LOOKED


@pytest.mark.parametrize("way", ["overlay", "slot"])
@pytest.mark.parametrize("name", DEEDS)
def test_a_job_that_does_its_worst_ends_alone(jobd: Jobd, name: str, way: str) -> None:
    deed = DEEDS[name]
    prepare(jobd, ways=[way])
    before = read_shared(jobd, "bases", "repos")
    ended = jobd.agent(deed.script)
    assert (ended["state"], ended["result"]["exit_status"]) == ("done", 0), ended["log"].decode()
    wait_until(lambda: find_processes(jobd.job_id) == [])
    assert find_differences(before, read_shared(jobd, "bases", "repos")) == []
    collected = jobd.collect()
    assert (collected["error"], collected["state"]) == (deed.error, "failed" if deed.error else "done")
    result = jobd.result()
    said = f"{json.dumps(result)} {collected['message']}"
    assert len(said) < MAX_RESULT_BYTES
    assert deed.says in said
    assert "root:" not in said
    assert Change(result).contents == deed.contents
    assert not (jobd.root / "tmp" / "trap-ran").exists()
    assert jobd.call("clean") == {"ok": True}
    assert not jobd.root.exists()
    # To compute a change, git touches objects of the clone that it would otherwise write again.
    assert [path for path in find_differences(before, read_shared(jobd, "bases")) if "/bases/" in path] == []
    expect_all_well(jobd, ways=[way])


# Too much


FOLDERS = ("$PTQ_WORKTREE", "$HOME", "$VIRTUAL_ENV", "$TMPDIR", "$PTQ_OUTPUT_DIR", "$PTQ_OUTPUT_DIR/..")


@pytest.mark.parametrize("where", FOLDERS)
def test_a_job_that_fills_the_disk_is_ended_and_what_it_found_is_there(jobd: Jobd, where: str) -> None:
    prepare(jobd)
    fill = f'echo x > x; echo found > "$PTQ_OUTPUT_DIR/report.md"; head -c 9000000 /dev/urandom > "{where}/filler"'
    began = time.monotonic()
    result = jobd.agent(f"{fill}; sleep 60", max_disk_bytes=8_000_000)["result"]
    assert time.monotonic() - began < 50
    assert re.fullmatch(
        r"the job wrote [89],\d{3},\d{3} bytes to its machine's disk, and 8,000,000 are allowed", result["objection"]
    )
    jobd.collect()
    assert jobd.result()["report"] == "found\n"
    jobd.call("clean")
    expect_all_well(jobd)


MAKE_MANY = """
import os, signal, time
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(True))
os.mkdir("many")
for number in range(20_000):
    os.mknod(f"many/{number}")
while not told:
    time.sleep(0.01)
"""


def test_a_job_that_makes_very_many_files_is_ended_and_that_it_did_is_told(jobd: Jobd) -> None:
    prepare(jobd)
    ended = jobd.agent("", argv=[sys.executable, "-c", MAKE_MANY], max_files=10_000, stop_grace_s=60)
    assert ended["log"] == b""
    result = ended["result"]
    assert re.fullmatch(r"the job made [12]\d,\d{3} files on its machine, and 10,000 are allowed", result["objection"])
    collected = jobd.collect()
    assert collected["error"] == "change_too_large"
    assert collected["message"] == "20000 files are changed, and 50 are allowed"
    jobd.call("clean")
    expect_all_well(jobd)


@pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
def test_what_was_there_before_the_agent_is_not_counted(jobd_without_base: Jobd, way: str) -> None:
    jobd = jobd_without_base
    jobd.repository.commit({"large": random.randbytes(4_000_000)})
    poll = jobd.prepare(ways=[way])
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    result = jobd.agent("echo x > x; sleep 1", max_disk_bytes=2_000_000, max_files=20)["result"]
    assert (result["exit_status"], result["objection"]) == (0, None)


@pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
def test_what_the_job_needs_on_top_of_an_older_base_is_not_counted(jobd_without_base: Jobd, way: str) -> None:
    earlier = jobd_without_base
    poll = earlier.prepare(ways=[way])
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    earlier.call("clean")
    earlier.repository.commit({"large": random.randbytes(4_000_000)})
    jobd = earlier.beside()
    update = "head -c 4000000 /dev/urandom > $TMPDIR/x; for number in $(seq 30); do : > made-$number; done"
    poll = jobd.prepare(ways=[way], update=[update])
    assert poll["state"] == "done", poll["message"]
    result = jobd.agent("test -e large; echo x > x; sleep 1", max_disk_bytes=2_000_000, max_files=20)["result"]
    assert (result["exit_status"], result["objection"]) == (0, None)


@pytest.mark.parametrize("way", ["overlay", "copy", "slot"])
def test_what_the_agent_writes_in_its_first_moment_is_counted(jobd_without_base: Jobd, way: str) -> None:
    jobd = jobd_without_base
    jobd.repository.commit({f"many/{number}": "" for number in range(2_000)})
    poll = jobd.prepare(ways=[way])
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    result = jobd.agent("head -c 4000000 /dev/urandom > x; sleep 60", max_disk_bytes=2_000_000)["result"]
    # A look may come while the agent still writes.
    assert re.fullmatch(r"the job wrote [234],\d{3},\d{3} bytes to .*", result["objection"])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5_000, "\udcff"])
def test_what_cannot_be_read_as_json_counts_as_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
    assert read_json(tmp_path / "x.json") == {}
