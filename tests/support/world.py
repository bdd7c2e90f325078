"""A whole installation to break, with the words that stories are told in."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import select

from bot.demo.playground import LABEL, MAINTAINER, PACE, SECRET, STRANGER, Playground, SshServer
from bot.demo.repository import ISSUE_BODY, ISSUE_TITLE, NAME
from bot.pace import Pace
from github_standin import Pull
from handlers.cases import casebook
from runner.db.schema import deliveries, jobs, leases, pulls, replies
from runner.model.job import ACTIVE, Job
from runner.rows import job_rows
from runner.transport.hosts import open_host
from tests.support import program
from tests.support.installed import install_program
from tests.support.jobs import write_database
from tests.support.machine_scan import find_on_machine
from tests.support.openapi import load_openapi
from tests.support.quick_machine import QuickMachine
from tests.support.scripted_github import app_key_pem, app_public_pem

Value = TypeVar("Value")

PATIENCE_S = 100.0
SIGNS = "signs"
"""The folder of a world in which agents leave signs for their story. Nothing else outside of a job is writable."""

LIKE_A_TOKEN = r"gh[a-z]_[A-Za-z0-9]{20,}|eyJ[\w-]+\.eyJ|x-access-token"

NOTE = (
    "The loop ended before the start of a shorter last chunk, so its items never came out. "
    "It now runs over every start, and slicing beyond the end is harmless."
)

WRITE_REPORT = """
import os, pathlib, sys, time
output = pathlib.Path(os.environ["PTQ_OUTPUT_DIR"])
(output / "report.md").write_text("fix staged\\n\\n## Summary\\nIt is fixed.\\n\\n## Root cause\\nAn early end.\\n")
(output / "worklog.md").write_text("looked, found, fixed\\n")
"""
"""The start of many a scripted agent: what every good run writes."""

BUSY = (
    select(leases.c.job_id).limit(1),
    select(jobs.c.id).where(jobs.c.state.in_(map(str, ACTIVE))).limit(1),
    select(deliveries.c.id).where(deliveries.c.state == "pending").limit(1),
    select(replies.c.id).where(replies.c.comment_id.is_(None), replies.c.abandoned.is_(None)).limit(1),
    select(pulls.c.job_id).where(pulls.c.number.is_(None), pulls.c.abandoned.is_(None)).limit(1),
)
"""Each query finds a row if the world has something to do. They are built once, because stories ask all the time."""

ORDERS = "orders.py"
"""The file among the signs with what the agents do now: Python that `as_told` runs."""

FIX = 'path = pathlib.Path("widgets/chunks.py"); path.write_text(path.read_text().replace(" - size + 1", ""))\n'


def as_told(folder: Path) -> str:
    """Source for an agent of the world in this folder. It runs the code of the last `World.tell_agents`."""
    return f"exec(pathlib.Path({str(folder / SIGNS / ORDERS)!r}).read_text())\n"


class World:
    def __init__(self, playground: Playground, patience_s: float = PATIENCE_S) -> None:
        self.playground, self.github = playground, playground.github
        self.patience_s = patience_s
        self.number = 0

    async def open_issue(self, body: str = ISSUE_BODY, by: str = STRANGER) -> int:
        self.number = await self.github.open_issue(NAME, ISSUE_TITLE, body, by)
        return self.number

    def tell_agents(self, source: str) -> None:
        """Set the code that agents with `as_told` run from now on."""
        (self.playground.folder / SIGNS / ORDERS).write_text(source)

    async def label(self, label: str = LABEL, by: str = MAINTAINER) -> None:
        await self.github.label_issue(NAME, self.number, label, by)

    async def comment(self, body: str, by: str = MAINTAINER) -> int:
        return await self.github.comment(NAME, self.number, body, by)

    async def operate(self, *words: str, status: int = 0) -> str:
        """Run the operator's command line. Returns its output, or its error if it is to end with another status.

        The service runs on this event loop and must go on meanwhile: it may hold the lock that a command waits for.
        """
        done = await asyncio.to_thread(program.run, *words, "--config", self.playground.config)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr if status else done.stdout

    def replies(self) -> list[str]:
        """Our comments on the issue, oldest first."""
        comments = self.github.issue(NAME, self.number).comments
        return [comment.body for comment in comments if comment.user.login == "ptq-bot[bot]"]

    def reports(self) -> list[str]:
        return [body for body in self.replies() if "<!-- ptq:report=" in body]

    def statuses(self) -> list[str]:
        return [body for body in self.replies() if "<!-- ptq:job=" in body]

    def pulls(self) -> list[Pull]:
        return self.github.pulls(NAME)

    async def jobs(self) -> list[Job]:
        async with self.playground.service.context.db.read() as connection:
            return await job_rows.fetch_recent_jobs(connection, 100)

    async def leases(self) -> int:
        async with self.playground.service.context.db.read() as connection:
            return len(await job_rows.fetch_leases(connection))

    async def wait_for_reply(self, words: str, count: int = 1) -> str:
        """The newest of our comments that hold these words, once there are `count` of them."""

        def look() -> str | None:
            found = [body for body in self.replies() if words in body]
            return found[-1] if len(found) >= count else None

        return await self.wait(look, f"{count} repl(ies) with {words!r}")

    async def wait_for_report(self, count: int = 1) -> str:
        """The newest report, once there are `count` of them and everything about the job is put away."""
        report = await self.wait_for_reply("<!-- ptq:report=", count)
        await self.wait_for_reply("[report](http", count)
        await self.settle()
        return report

    async def settle(self) -> None:
        """Wait until no job is active, no slot is taken, no delivery waits, and GitHub has all that we have to say."""
        deadline = time.monotonic() + self.patience_s
        while await self._is_busy():
            assert time.monotonic() < deadline, f"never settled: {await self.jobs()}, {await self.leases()} leases"
            await asyncio.sleep(0.05)

    async def _is_busy(self) -> bool:
        """Whether a job, a slot, a delivery, a comment or a pull request waits, or a job has no report yet."""
        async with self.playground.service.context.db.read() as connection:
            for query in BUSY:
                if (await connection.execute(query)).first():
                    return True
            return bool(await casebook.fetch_unreported_job_ids(connection))

    async def wait_for_job(self, state: str) -> Job:
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            async with self.playground.service.context.db.read() as connection:
                if found := await job_rows.fetch_recent_jobs(connection, 1, jobs.c.state == state):
                    return found[0]
            await asyncio.sleep(0.02)
        raise AssertionError(f"no job became {state}: {await self.jobs()}")

    async def wait_for_log(self, job_id: str, words: bytes) -> None:
        """Return once an agent's log, as far as it has come here, holds these words."""
        log = self.playground.folder / "var" / "spool" / f"{job_id}.agent.log"
        await self.wait(lambda: (log.exists() and words in log.read_bytes()) or None, f"{words!r} in {log}")

    async def wait_for_pull(self) -> Pull:
        pull = await self.wait(lambda: next(iter(self.pulls()), None), "a pull request")
        await self.wait_for_reply(f"Draft pull request #{pull.number}")
        return pull

    async def wait(self, look: Callable[[], Value | None], what: str) -> Value:
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            if (found := look()) is not None:
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"{what} never came; the thread is: {self.replies()}")

    def digest(self) -> str:
        found = re.search(r"^/ptq pr ([0-9a-f]{12})$", self.reports()[-1], re.MULTILINE)
        assert found, self.reports()[-1]
        return found[1]

    def git(self, *arguments: str) -> str:
        """What git says in the repository on "GitHub"."""
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.playground.git_dir, capture_output=True, check=True)
        return done.stdout.decode(errors="surrogateescape")

    def commit(self, files: Mapping[str, str]) -> None:
        """Put files on the base branch."""
        with tempfile.TemporaryDirectory() as folder:
            git = ["git", "-c", "user.name=Octo", "-c", "user.email=octo@example.org"]
            subprocess.run([*git, "clone", "--quiet", str(self.playground.git_dir), folder], check=True)
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            for words in (["add", "--all", "--force"], ["commit", "--quiet", "--message=plant"], ["push", "--quiet"]):
                subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)

    def secrets(self) -> list[str]:
        """What only the service may have: keys, and every token that GitHub has given it."""
        minted = [call for call in self.github.exchanges if call.path.endswith("/access_tokens")]
        tokens = [json.loads(call.response_body)["token"] for call in minted]
        files = (self.playground.folder / "app.pem", self.playground.ssh.client_key_file)
        keys = [file.read_text().splitlines() for file in files]
        return [SECRET, *tokens, *(lines[len(lines) // 2] for lines in keys)]  # How keys begin is always the same.

    def find_secrets(self, *more: str) -> list[str]:
        """Where on the machine one of them is, or one of these; or anything that reads like a token of GitHub's."""
        plain = [*self.secrets(), *more]
        # As Basic authentication has it: the user's name and the colon before it are a multiple of three bytes.
        encoded = [b64encode(text.encode()).decode().rstrip("=")[:-1] for text in plain]
        return self.find_on_machine("|".join([*map(re.escape, plain + encoded), LIKE_A_TOKEN]))

    def find_on_machine(self, pattern: str) -> list[str]:
        """Where on the machine something is that matches."""
        return find_on_machine(self.playground.folder / "machine", self.playground.ssh, pattern)


@asynccontextmanager
async def open_world(
    folder: Path,
    *,
    agent: str | None = None,
    ssh: SshServer | None = None,
    more_toml: str = "",
    repository_agent: str = "script",
    repository_toml: str = "",
    verify_runs: int = 0,
    pace: Pace = PACE,
    python: str = "",
    private: bool = False,
    on_real_machine: bool = False,
    writable: tuple[Path, ...] = (),
) -> AsyncIterator[World]:
    """A running installation; `agent` is the source of its agent, in place of the demo's.

    Its machine is a quick one, unless the story is about what only a real one has. It verifies nothing itself unless it
    is told to: few stories are about that, and all would wait for it.
    """
    signs = folder / SIGNS
    quick = None
    if not (on_real_machine or ssh or python or private):
        quick = QuickMachine(folder / "machine" / "ssh")
    else:
        install_program(folder / "machine" / "workspace")
    command = None
    if agent is not None:
        script = folder / "agent.py"
        script.write_text(agent)
        command = (sys.executable, str(script))
    playground = Playground(
        folder,
        ssh=quick or ssh,
        agent=command,
        more_toml=more_toml,
        repository_agent=repository_agent,
        repository_toml=repository_toml,
        verify_runs=verify_runs,
        pace=pace,
        python=python or sys.executable,
        private=private,
        opens=quick.open_host if quick else open_host,
        app_key=(app_key_pem(), app_public_pem()),
        writable=(str(signs), *map(str, writable)),
    )
    signs.mkdir(exist_ok=True)
    write_database(folder / "ptq.db")
    async with AsyncExitStack() as stack:
        if quick:
            stack.push_async_callback(quick.close)
        await stack.enter_async_context(playground)
        playground.github.observers.append(load_openapi().check)
        yield World(playground)
    assert playground.github.complaints == []
    assert playground.github.unknown_calls == []
