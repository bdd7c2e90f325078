"""The story of the README, as it happens: a label goes in, a report comes out, a human note opens a draft PR."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from tests.support.world import NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow


async def test_a_label_becomes_a_report_and_a_human_note_becomes_a_draft_pull_request(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True, repository_toml='lint = ["echo linted > lint.txt"]') as world:
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        assert_the_report_says_all(report)
        assert "lint.txt" in report, "the lint command ran before the diff was taken"
        assert len(world.statuses()) == 1
        assert "succeeded" in world.statuses()[0]
        issue = world.github.issue(NAME, world.number)
        assert [reaction.content for reaction in issue.reactions] == ["eyes"]

        await world.comment(f"/ptq pr {world.digest()}")
        refusal = await world.wait_for_reply("<!-- ptq:reply=")
        assert "own words" in refusal
        assert world.pulls() == []

        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert_the_pull_request_is_right(world, pull.body)
        assert pull.draft
        assert pull.title == "Keep the last, shorter chunk in chunked()"
        assert_the_branch_works(world, pull.head, tmp_path / "clone")
        assert len(world.reports()) == 1


def assert_the_report_says_all(report: str) -> None:
    for part in ("Fix staged", "Root cause", "len(items)", "worklog", "machine `gpu-1`", "agent `script`", "/ptq pr "):
        assert part in report
    assert "+    for start in range(0, len(items), size):" in report


def assert_the_pull_request_is_right(world: World, body: str) -> None:
    assert body.startswith(f"**@maintainer wrote:**\n\n{NOTE}")
    assert f"Fixes #{world.number}" in body
    for part in (
        "@maintainer",
        world.digest(),
        "coding agent",
        "The agent's repro",
        "The agent's worklog",
        "from widgets import chunked",
    ):
        assert part in body


def assert_the_branch_works(world: World, branch: str, clone: Path) -> None:
    assert world.git("rev-parse", f"{branch}^").strip() == world.playground.base_commit
    world.git("clone", "--quiet", "--branch", branch, ".", str(clone))
    tests = subprocess.run([sys.executable, "-m", "unittest"], cwd=clone, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stderr
    assert "Ran 3 tests" in tests.stderr


EVERY_KIND = """
import subprocess
os.chmod("tests/test_chunks.py", 0o755)
os.rename("widgets/chunks.py", "widgets/pieces.py")
pathlib.Path("widgets/__init__.py").write_text("from widgets.pieces import chunked\\n")
os.remove("README.md")
pathlib.Path("deep/er").mkdir(parents=True)
os.symlink("../../widgets/pieces.py", "deep/er/link")
pathlib.Path("data.bin").write_bytes(bytes(range(256)))
pathlib.Path("with space \u00fc.txt").write_text("no newline at its end")
subprocess.run(["git", "commit", "--quiet", "--all", "--message=nobody asked for this"])
sys.stdout.buffer.write(b"\\xff\\xfe log\\n")
(output / "report.md").write_bytes(b"fix staged\\n\\n## Summary\\n\\xff fixed\\n")
"""
"""Every kind of change that git knows, some of it in a commit that nobody asked for, and texts that are no UTF-8."""


async def test_every_kind_of_change_is_in_the_draft_pull_request_as_it_was_in_the_worktree(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + EVERY_KIND) as world:
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        assert "fixed" in report
        shown = "`data.bin` is shown as binary"
        for warning in ("`tests/test_chunks.py` is executable now", shown, "`deep/er/link` is a link"):
            assert warning in report.split("<details>", maxsplit=1)[0], "it is named above the diff"
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        base, branch = world.playground.base_commit, pull.head
        raw = world.git("-c", "core.quotePath=false", "diff", "--raw", "--no-abbrev", "-M", f"{base}..{branch}")
        told = {
            " ".join((*line.split()[:2], line.split("\t", 1)[1].replace("\t", " -> "))) for line in raw.splitlines()
        }
        assert told == {
            ":100644 000000 README.md",
            ":000000 100644 data.bin",
            ":000000 120000 deep/er/link",
            ":100644 100755 tests/test_chunks.py",
            ":100644 100644 widgets/__init__.py",
            ":100644 100644 widgets/chunks.py -> widgets/pieces.py",
            ":000000 100644 with space \u00fc.txt",
        }
        assert world.git("show", f"{branch}:deep/er/link") == "../../widgets/pieces.py"
        assert world.git("show", f"{branch}:with space \u00fc.txt") == "no newline at its end"
        assert world.git("show", f"{branch}:data.bin").encode(errors="surrogateescape") == bytes(range(256))
        assert world.git("rev-parse", f"{branch}^").strip() == base


async def test_a_comment_asks_for_a_diagnosis_and_gets_no_diff(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.open_issue()
        await world.comment("/ptq diagnose please start with the last chunk")
        report = await world.wait_for_report()
        assert "Reproduced" in report
        assert "```diff" not in report
        assert "`/ptq fix`" in report
        job = (await world.jobs())[0]
        assert "please start with the last chunk" in job.prompt

        await world.comment(f"/ptq pr\n\n{NOTE}")
        assert "no diff to open" in await world.wait_for_reply("<!-- ptq:reply=")
