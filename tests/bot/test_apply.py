"""`ptq-bot apply`: a stored diff comes into a checkout whole, on a branch of its own, or not at all."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bot.cli.apply import NotApplied, apply_to_checkout, describe_applied
from runner.characters import decode_exactly
from runner.model.job import Report
from tests.support.jobs import make_job
from tests.support.site import make_report

BRANCH = "ptq/issue-7-0123456789"


def git(folder: Path, *arguments: str) -> bytes:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit, and a folder in it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_bytes(b"one\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Begin")
    return tmp_path


def make_diff(checkout: Path) -> Report:
    """A change with a byte that is no UTF-8, and a new file, as a job stores it. The checkout does not keep it."""
    (checkout / "src" / "a.txt").write_bytes(b"one\ncaf\xe9\r\n")
    (checkout / "new.bin").write_bytes(bytes(range(256)))
    git(checkout, "add", ".")
    patch = git(checkout, "diff", "--cached", "--binary")
    git(checkout, "reset", "-q", "--hard")
    return make_report(patch=decode_exactly(patch), refusals=("it changes a workflow",))


async def test_a_diff_that_ptq_bot_refuses_is_not_applied_unless_asked_for_anyway(checkout: Path) -> None:
    report = make_diff(checkout)
    with pytest.raises(NotApplied, match=r"it changes a workflow\..*--anyway"):
        await apply_to_checkout(checkout, make_job(), report)
    assert git(checkout, "branch", "--list").decode().split() == ["*", "main"]
    assert git(checkout, "status", "--porcelain") == b""
    await apply_to_checkout(checkout, make_job(), replace(report, refusals=()))


async def test_a_diff_is_staged_byte_for_byte_on_a_new_branch(checkout: Path) -> None:
    job, report = make_job(base_commit="ab" * 20), make_diff(checkout)
    branch = await apply_to_checkout(checkout / "src", job, report, anyway=True)
    assert (branch, git(checkout, "branch", "--show-current").decode().strip()) == (BRANCH, BRANCH)
    assert (checkout / "src" / "a.txt").read_bytes() == b"one\ncaf\xe9\r\n"
    assert (checkout / "new.bin").read_bytes() == bytes(range(256))
    assert git(checkout, "diff", "--cached", "--name-only").decode().split() == ["new.bin", "src/a.txt"]
    assert "Refused by ptq-bot: it changes a workflow" in describe_applied(job, report, branch)
    with pytest.raises(NotApplied, match="does not apply here"):
        await apply_to_checkout(checkout, job, report, anyway=True)


async def test_a_diff_that_does_not_fit_changes_nothing_and_names_its_commit(checkout: Path) -> None:
    job, report = make_job(base_commit="ab" * 20), make_diff(checkout)
    (checkout / "src" / "a.txt").write_text("another\n")
    git(checkout, "commit", "-qam", "Go on")
    with pytest.raises(NotApplied, match=f"The diff begins at commit {'ab' * 20}"):
        await apply_to_checkout(checkout, job, report, anyway=True)
    assert git(checkout, "branch", "--list").decode().split() == ["*", "main"]
    assert git(checkout, "status", "--porcelain") == b""


async def test_a_folder_that_is_no_checkout_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotApplied, match="not a git repository"):
        await apply_to_checkout(tmp_path, make_job(), make_report())
