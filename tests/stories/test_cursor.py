"""What would command Cursor is out of its sight in every run, and what it writes there is shown.

Its program is closed, so a script stands in for it: it looks around in the worktree, and prints what Cursor would.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runner.model.job import Job
from runner.rows import job_rows
from tests.support.agent_runs import TRANSCRIPTS
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

PLANTED = {".cursor/hooks.json": "{}\n", ".cursorrules": "Obey.\n", "widgets/.cursor/hooks.json": "{}\n"}
"""On the base branch."""

FIRST = {".cursor/hooks.json": "first\n", "tests/.cursor/hooks.json": "first\n", "tests/.cursorrules/more": "first\n"}
SECOND = {"widgets/.cursor/hooks.json": "second\n", "widgets/.cursorrules": "second\n"}
"""What each attempt writes: over what was planted, and elsewhere."""

PROGRAM = f"""
import json
paths = pathlib.Path().rglob("*")
seen = [path.as_posix() for path in paths if not path.is_dir() and ".cursor" in path.as_posix().casefold()]
said = "I saw " + (", ".join(sorted(seen)) or "nothing") + "."
fixed = "size + 1" not in pathlib.Path("widgets/chunks.py").read_text()
for name, text in ({SECOND!r} if fixed else {FIRST!r}).items():
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(text)
for line in {(TRANSCRIPTS / "cursor" / "finished.jsonl").read_text()!r}.splitlines():
    print(line.replace("All done.", said), flush=True)
"""


@asynccontextmanager
async def open_cursor_world(folder: Path, kind: str) -> AsyncIterator[World]:
    """An issue is open, and its label has been set; `kind` is the backend that runs the script."""
    program = folder / "cursor-agent"
    program.write_text(f"#!{sys.executable}\n{WRITE_REPORT}{PROGRAM}{FIX}")
    program.chmod(0o700)
    toml = f'[agents.real]\nkind = "{kind}"\ncommand = [{json.dumps(str(program))}]\n'
    async with open_world(folder, more_toml=toml, repository_agent="real") as world:
        world.commit(PLANTED)
        await world.open_issue()
        await world.label()
        yield world


async def read_log(world: World, job: Job) -> str:
    """What the agent printed, once its job has ended."""
    async with world.playground.service.context.db.read() as connection:
        return (await job_rows.fetch_log(connection, job.id, "agent") or b"").decode()


async def read_change(world: World, job: Job) -> dict[str, str]:
    """The files of a job's diff, and what is in them now."""
    async with world.playground.service.context.db.read() as connection:
        report = await job_rows.fetch_report(connection, job.id)
    assert report
    return {change.path: (change.content or b"").decode() for change in report.changes}


def list_named(report: str) -> set[str]:
    """Of which files a report says that they command agents."""
    lines = (line for line in report.splitlines() if "configures coding agents" in line)
    return {line.split("`")[1] for line in lines}


async def test_cursor_sees_nothing_that_would_command_it_and_what_it_writes_there_is_shown(tmp_path: Path) -> None:
    async with open_cursor_world(tmp_path, "cursor") as world:
        report = await world.wait_for_report()
        (first,) = await world.jobs()
        assert "I saw nothing." in await read_log(world, first)
        change = await read_change(world, first)
        assert change.pop("widgets/chunks.py")
        assert change == FIRST, "what was only put aside for the run is no change"
        assert list_named(report) == FIRST.keys()
        assert "its API key was on the machine" in report

        await world.comment("/ptq retry and once more")
        report = await world.wait_for_report(2)
        second, _ = await world.jobs()
        assert "I saw nothing." in await read_log(world, second)
        change = await read_change(world, second)
        assert change.pop("widgets/chunks.py")
        assert change == FIRST | SECOND
        assert list_named(report) == FIRST.keys() | SECOND.keys()

        async with world.playground.service.context.db.read() as connection:
            meter = await job_rows.fetch_meter(connection, second.id)
        assert meter
        assert (meter.ending, meter.usage.input_tokens, meter.usage.output_tokens) == ("finished", 2000, 200)


async def test_the_same_program_sees_what_was_planted_where_nothing_is_hidden_from_it(tmp_path: Path) -> None:
    async with open_cursor_world(tmp_path, "command") as world:
        await world.wait_for_report()
        await world.comment("/ptq retry and once more")
        await world.wait_for_report(2)
        for job in await world.jobs():
            assert f"I saw {', '.join(PLANTED)}." in await read_log(world, job), "and nothing of the first attempt's"
