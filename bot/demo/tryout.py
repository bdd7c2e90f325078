"""`ptq-bot demo --setup`: runs everything except ptq-bot, so that a new user can try its set-up.

It runs the GitHub stand-in and a machine. It also acts for two people: a stranger files an issue, and a maintainer
labels it as soon as the user's service is ready. It does not know how the set-up works.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from pathlib import Path

import aiohttp
from rich.console import Console

from bot.demo.loopback import ADDRESS
from bot.demo.playground import DIAGNOSE_LABEL, LABEL, MAINTAINER, STRANGER
from bot.demo.repository import BRANCH, ISSUE_BODY, ISSUE_TITLE, NAME, make_repository
from bot.demo.sshd import DEFAULT_PATH, EmbeddedSshServer
from github_standin import StandIn
from runner.jobd.sandbox.processes import kill_processes

LOOK_S = 0.5
AGENT = Path(__file__).with_name("agent.py")


class Tryout:
    """`async with Tryout(folder)` starts the GitHub stand-in, without an App, and a machine with SSH.

    `path` is the `PATH` of the machine's commands.
    """

    def __init__(self, folder: Path, path: str = DEFAULT_PATH) -> None:
        self.workspace = folder / "machine" / "workspace"
        self.ssh = EmbeddedSshServer(folder / "machine" / "ssh", path)
        self.github = StandIn.without_app()
        self.number = 0
        """The issue's number."""
        self._git_dir = folder / "octo" / "widgets.git"

    async def __aenter__(self) -> Tryout:
        """Create the repository and its issue, and start the servers."""
        make_repository(self._git_dir)
        for login in ("octo", MAINTAINER, STRANGER):
            self.github.add_user(login)
        self.github.add_repository(NAME, self._git_dir, default_branch=BRANCH, installed=False)
        self.github.set_permission(NAME, MAINTAINER, "write")
        for label in (DIAGNOSE_LABEL, LABEL):
            self.github.add_label(NAME, label)
        self.number = await self.github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
        await self.github.start()
        await self.ssh.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything, and kill the jobs' processes, which survive SSH connections."""
        await self.ssh.stop()
        await self.github.stop()
        for job in (self.workspace / "jobs").glob("*"):
            await asyncio.to_thread(kill_processes, job.name)

    def describe(self) -> str:
        """The input for the set-up pages, step by step."""
        # Absolute, because the virtual environment may not be active in another terminal.
        program = shlex.quote(str(Path(sys.argv[0]).absolute()))
        return f"""\
In another terminal, in an empty folder:  {program} setup

1. GitHub App    GitHub: {self.github.url}
                 leave the other fields; save, then create the App
2. Repositories  install it on {NAME}, come back and reload
                 tests: python -m unittest
                 an issue's script: PYTHONPATH=. python
3. Machines      host: {self.ssh.user}@{ADDRESS}:{self.ssh.port}
                 SSH private key: {self.ssh.client_key_file}
                 folder: {self.workspace}
4. Agents        kind: command
                 command: {sys.executable} {AGENT}
5. Finish        write it, then start the service in that folder:  {program} serve --config ptq.toml

A maintainer labels the issue as soon as the service answers: {self.github.url}/{NAME}/issues/{self.number}
"""

    async def label_once_it_answers(self) -> None:
        """Add the label to the issue as soon as the App is installed and the service is ready."""
        async with aiohttp.ClientSession() as session:
            while not await self._answers(session):  # noqa: ASYNC110 - polls another process
                await asyncio.sleep(LOOK_S)
        await self.github.label_issue(NAME, self.number, LABEL, MAINTAINER)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        url = self.github.webhook_url
        if not url or not self.github.is_installed(NAME):
            return False
        try:
            async with session.get(f"{url.removesuffix('/webhook')}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def wait_for_report(self) -> str:
        """Wait for the report, and return its URL."""
        while True:
            for comment in self.github.issue(NAME, self.number).comments:
                if "ptq:report" in comment.body:
                    return f"{self.github.url}/{NAME}/issues/{self.number}#issuecomment-{comment.id}"
            await asyncio.sleep(LOOK_S)


async def run_tryout(folder: Path, console: Console) -> None:
    """Run a try-out until cancelled, and print its progress."""
    async with Tryout(folder) as tryout:
        began = time.monotonic()
        console.print(tryout.describe(), highlight=False, soft_wrap=True, markup=False)
        await tryout.label_once_it_answers()
        console.print(f"@{MAINTAINER} has put the label {LABEL} on the issue.", highlight=False)
        address = await tryout.wait_for_report()
        minutes = (time.monotonic() - began) / 60
        console.print(
            f"The first report is there, {minutes:.1f} minutes after this began: {address}\nStop with Ctrl-C.",
            highlight=False,
            soft_wrap=True,
        )
        await asyncio.Event().wait()
