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

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

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


class Attack(NamedTuple):
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

EVERYWHERE = {
    "closes everything": Attack(
        'echo x > x; cd /; find "$TMPDIR" "$PTQ_OUTPUT_DIR" "${PTQ_WORKTREE%/*}" -depth -exec chmod 000 {} +',
        contents={"x": b"x\n"},
    ),
    "deletes everything": Attack(
        'rm -rf "$PTQ_WORKTREE" "$HOME" "$VIRTUAL_ENV" "$TMPDIR" "$PTQ_OUTPUT_DIR"',
        error="worktree_gone",
    ),
    "links to what is secret": Attack(
        'ln -s /etc/shadow "$PTQ_OUTPUT_DIR/report.md"; rm -r a.txt built dir; ln -s /etc/shadow a.txt; '
        "ln -s /etc built; ln -s /etc dir; "
        "echo /etc > .git/objects/info/alternates; echo x > x; echo 'ref: /etc/shadow' > .git/HEAD",
        contents={"a.txt": b"/etc/shadow", "dir": b"/etc", "dir/c.txt": None, "built": b"/etc", "x": b"x\n"},
        says="report.md was left out: it is not a regular file",
    ),
}
IN_A_WORKTREE = {
    "deletes git's folder, and leaves mounts and processes": Attack(
        "rm -rf .git; echo x > x; for n in $(seq 200); do sleep 61 & done; "
        "unshare -Urm sh -c 'mount -t tmpfs none built; mount -t tmpfs none /mnt; touch built/x; sleep 60' & sleep 0.3",
        contents={"x": b"x\n"},
    ),
    "plants commands in git, and makes sockets and pipes": Attack(
        f"{PLANT} rm b.txt; mkfifo b.txt pipe; {SOCKET}; echo x > x",
        contents={"b.txt": None, "x": b"x\n"},
        says="`b.txt` counts as deleted",
    ),
    "makes repositories in the repository": Attack(
        "for n in 1 2 3; do git init -q nest/$n; git init -q --bare bare/$n; done; cp -r .git/. built; git init -q dir",
        error="change_too_large",
    ),
}
"""What a job does to its worktree and processes, which are the same in each way."""


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


@pytest.mark.parametrize(("way", "attacks"), [("overlay", EVERYWHERE | IN_A_WORKTREE), ("slot", EVERYWHERE)])
def test_a_job_that_does_its_worst_ends_alone(jobd: Jobd, way: str, attacks: Mapping[str, Attack]) -> None:
    for name, attack in attacks.items():
        expect_to_end_alone(jobd.beside(), way, name, attack)
    expect_all_well(jobd, ways=[way])


def expect_to_end_alone(job: Jobd, way: str, name: str, attack: Attack) -> None:
    """Run a job that looks for what the one before it left, and then does its own worst."""
    prepare(job, ways=[way])
    before = read_shared(job, "bases", "repos")
    ended = job.agent(f"{LOOK}; {attack.script}")
    log = ended["log"].decode()
    assert log.startswith(LOOKED), f"before it {name}, something of another job was there: {log}"
    assert (ended["state"], ended["result"]["exit_status"]) == ("done", 0), log
    wait_until(lambda: find_processes(job.job_id) == [])
    assert find_differences(before, read_shared(job, "bases", "repos")) == []
    expect_collected(job, attack)
    assert job.call("clean") == {"ok": True}
    assert not job.root.exists()
    # To compute a change, git touches objects of the clone that it would otherwise write again.
    assert [path for path in find_differences(before, read_shared(job, "bases")) if "/bases/" in path] == []


def expect_collected(job: Jobd, attack: Attack) -> None:
    collected = job.collect()
    assert (collected["error"], collected["state"]) == (attack.error, "failed" if attack.error else "done")
    result = job.result()
    said = f"{json.dumps(result)} {collected['message']}"
    assert len(said) < MAX_RESULT_BYTES
    assert attack.says in said
    assert "root:" not in said
    assert Change(result).contents == attack.contents
    assert not (job.root / "tmp" / "trap-ran").exists()


# Too much


FOLDERS = ("$PTQ_WORKTREE", "$HOME", "$VIRTUAL_ENV", "$TMPDIR", "$PTQ_OUTPUT_DIR", "$PTQ_OUTPUT_DIR/..")


def test_a_job_that_fills_the_disk_is_ended_and_what_it_found_is_there(jobd: Jobd) -> None:
    """It writes everywhere, and only all of it together is too much."""
    prepare(jobd)
    fill = "; ".join(f'head -c 1500000 /dev/urandom > "{folder}/filler"' for folder in FOLDERS)
    began = time.monotonic()
    ended = jobd.agent(f'echo found > "$PTQ_OUTPUT_DIR/report.md"; {fill}; sleep 60', max_disk_bytes=8_000_000)
    assert time.monotonic() - began < 50
    assert re.fullmatch(
        r"the job wrote [89],\d{3},\d{3} bytes to its machine's disk, and 8,000,000 are allowed",
        ended["result"]["objection"],
    )
    jobd.collect()
    assert jobd.result()["report"] == "found\n"


MAKE_MANY = """
import os, signal, time
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(True))
os.mkdir("many")
for number in range(4_000):
    os.mknod(f"many/{number}")
while not told:
    time.sleep(0.01)
"""


def test_a_job_that_makes_very_many_files_is_ended_and_that_it_did_is_told(jobd: Jobd) -> None:
    prepare(jobd)
    ended = jobd.agent("", argv=[sys.executable, "-c", MAKE_MANY], max_files=2_000, stop_grace_s=60)
    assert ended["log"] == b""
    result = ended["result"]
    assert re.fullmatch(r"the job made [234],\d{3} files on its machine, and 2,000 are allowed", result["objection"])
    collected = jobd.collect()
    assert collected["error"] == "change_too_large"
    assert collected["message"] == "4000 files are changed, and 50 are allowed"


@pytest.mark.parametrize("way", ["overlay", "slot"])
def test_all_that_the_agent_writes_is_counted_and_nothing_that_was_there_before(
    jobd_without_base: Jobd, way: str
) -> None:
    """A copy lies where an overlay's own files lie, and is whole as a slot's tree is."""
    earlier = jobd_without_base
    earlier.repository.commit({"large": random.randbytes(1_000_000), **{f"many/{number}": "" for number in range(100)}})
    poll = earlier.prepare(ways=[way])
    if poll["error"] == "no_environment":
        pytest.skip(poll["message"])
    earlier.call("clean")
    earlier.repository.commit({"larger": random.randbytes(1_000_000)})

    # Nor is what the job needs on top of an older base.
    jobd = earlier.beside()
    update = "head -c 1000000 /dev/urandom > $TMPDIR/x; for number in $(seq 30); do : > made-$number; done"
    poll = jobd.prepare(ways=[way], update=[update])
    assert poll["state"] == "done", poll["message"]
    result = jobd.agent("test -e larger; echo x > x; sleep 1", max_disk_bytes=500_000, max_files=20)["result"]
    assert (result["exit_status"], result["objection"]) == (0, None)
    jobd.call("clean")

    # What it writes in its first moment is counted. A look may come while it still writes.
    greedy = earlier.beside()
    assert greedy.prepare(ways=[way])["state"] == "done"
    result = greedy.agent("head -c 1000000 /dev/urandom > x; sleep 60", max_disk_bytes=500_000)["result"]
    assert re.fullmatch(r"the job wrote ([5-9]\d\d|1,\d{3}),\d{3} bytes to .*", result["objection"])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5_000, "\udcff"])
def test_what_cannot_be_read_as_json_counts_as_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
    assert read_json(tmp_path / "x.json") == {}
