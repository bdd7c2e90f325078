"""`ptq-bot demo`: plays the main story on a playground, and shows each step in the terminal."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from bot.demo.playground import LABEL, MAINTAINER, STRANGER, Playground
from bot.demo.repository import BRANCH, ISSUE_BODY, ISSUE_TITLE, NAME
from bot.demo.tryout import run_tryout
from github_standin import Pull
from runner.model.job import Job, Topic
from runner.rows import job_rows

Value = TypeVar("Value")

PATIENCE_S = 60.0
"""How long the story waits for an expected result, in seconds."""

NOTE = """\
The range stopped at the last start of a full chunk, so a shorter last chunk was never reached and its items were lost \
without an error. Ending it at the length visits every start that has an item, and even lengths behave as before. The \
new test fails without the change."""


LOOK_S = 0.25
"""How often it looks for new events of the job, in seconds."""


class DemoFailed(Exception):  # noqa: N818
    """The story did not continue; the message says where it stopped."""


class Story:
    """The steps of the demo."""

    def __init__(self, playground: Playground, console: Console) -> None:
        self._playground = playground
        self._github = playground.github
        self._console = console
        self._started_at = time.monotonic()
        self._number = 0

    async def tell(self) -> None:
        """Play all steps, from the issue to the draft pull request. Raises `DemoFailed`."""
        await self._file_the_issue()
        job = await self._follow_the_job()
        digest = await self._read_the_report(job)
        await self._send_an_empty_note(digest)
        await self._send_a_note(digest)
        seconds = time.monotonic() - self._started_at
        self._console.print(f"\n[bold green]That was the whole story, in {seconds:.1f} s.[/]")

    async def _file_the_issue(self) -> None:
        self._act("A stranger files an issue", f"{self._github.url}/{NAME}")
        self._number = await self._github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
        self._console.print(Panel(Markdown(ISSUE_BODY), title=f"#{self._number} {ISSUE_TITLE}", title_align="left"))
        self._act("A maintainer labels it", f"@{MAINTAINER} adds the label {LABEL}")
        await self._github.label_issue(NAME, self._number, LABEL, MAINTAINER)
        delivery = self._github.deliveries[-1]
        self._say(f"delivery {delivery.guid} ({delivery.name}), signed: the service answered {delivery.status_code}")

    async def _follow_the_job(self) -> Job:
        """Show each event of the job when it happens, and then the logs."""
        self._act("A machine takes the job", "over SSH; the agent is a script, and really does what it says")
        job = await wait_for(self._last_job, "a job")
        shown = 0
        while job.active or shown == 0:
            async with self._playground.service.context.db.read() as connection:
                events = await job_rows.fetch_events(connection, job.id)
            for at, what in events[shown:]:
                self._say(f"{at:%H:%M:%S}  job {job.id}: {what}")
            shown = len(events)
            await asyncio.sleep(LOOK_S)
            job = await self._last_job() or job
        self._show_text(self._pick_commands(await self._fetch_log(job, "prepare")), "environment")
        self._show_text(await self._fetch_log(job, "agent"), "agent log")
        return job

    async def _fetch_log(self, job: Job, stage: str) -> str:
        async with self._playground.service.context.db.read() as connection:
            log = await job_rows.fetch_log(connection, job.id, stage) or b""
        return log.decode(errors="replace").strip()

    def _pick_commands(self, log: str) -> str:
        """The commands that built the environment, without git's `-c` options and the path of the demo's folder."""
        commands = [line for line in log.splitlines() if line.startswith("$ ")]
        return re.sub(r" -c \S+", "", "\n".join(commands)).replace(str(self._playground.folder), "…")

    async def _last_job(self) -> Job | None:
        async with self._playground.service.context.db.read() as connection:
            return await job_rows.fetch_last_job(connection, Topic(NAME, self._number))

    async def _read_the_report(self, job: Job) -> str:
        self._act("The issue gets its report", "one new comment; the status comment shrinks to a line that links it")
        report = await wait_for(partial(self._find_comment, "ptq:report"), "the report")
        self._show_comment(report)
        found = re.search(r"^/ptq pr ([0-9a-f]+)$", report, re.MULTILINE)
        if not found:
            raise DemoFailed(f"the report of job {job.id} offers no diff")
        return found[1]

    async def _send_an_empty_note(self, digest: str) -> None:
        self._act("The maintainer is in a hurry", f"@{MAINTAINER} replies with: /ptq pr {digest}")
        seen = len(self._comments())
        await self._github.comment(NAME, self._number, f"/ptq pr {digest}", MAINTAINER)
        self._show_comment(await wait_for(partial(self._find_comment, "ptq:reply", seen), "the refusal"))

    async def _send_a_note(self, digest: str) -> None:
        self._act("The maintainer writes a human note", "in their own words")
        self._console.print(Panel(f"/ptq pr {digest}\n\n{NOTE}", title=f"@{MAINTAINER}", title_align="left"))
        await self._github.comment(NAME, self._number, f"/ptq pr {digest}\n\n{NOTE}", MAINTAINER)
        pull = await wait_for(self._find_pull, "the pull request")
        self._act(f"Draft pull request #{pull.number}: {pull.title}", f"{self._github.url}/{NAME}/pull/{pull.number}")
        self._show_comment(pull.body)
        self._console.print(
            Syntax(await asyncio.to_thread(self._diff, pull), "diff", background_color="default", word_wrap=True)
        )
        self._show_comment(await wait_for(partial(self._find_comment, "Draft pull request"), "the link"))

    def _diff(self, pull: Pull) -> str:
        command = ["git", "diff", f"{BRANCH}...{pull.head}"]
        done = subprocess.run(command, cwd=self._playground.git_dir, capture_output=True, text=True, check=True)
        return done.stdout

    # The thread, and its display in the terminal

    def _comments(self) -> list[str]:
        return [comment.body for comment in self._github.issue(NAME, self._number).comments]

    async def _find_comment(self, words: str, after: int = 0) -> str | None:
        return next((body for body in self._comments()[after:] if words in body), None)

    async def _find_pull(self) -> Pull | None:
        return next(iter(self._github.pulls(NAME)), None)

    def _act(self, title: str, detail: str) -> None:
        self._console.print()
        self._console.rule(f"[bold]{title}[/]", align="left")
        self._say(detail)

    def _say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def _show_text(self, text: str, title: str) -> None:
        self._console.print(Panel(Text(text), title=title, title_align="left"))

    def _show_comment(self, body: str) -> None:
        """Show a comment similar to GitHub's display: without HTML comments, and with folded parts open."""
        body = re.sub(r"<!--.*?-->\n?", "", body, flags=re.DOTALL)
        body = re.sub(r"<summary>(.*?)</summary>", r"**▸ \1**", body)
        body = re.sub(r"</?(details|sub)>", "", body)
        self._console.print(Panel(Markdown(body), border_style="cyan"))


async def wait_for(look: Callable[[], Awaitable[Value | None]], what: str) -> Value:
    """Call `look` until it finds something, and return that. Raises `DemoFailed` after `PATIENCE_S` seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (found := await look()) is not None:
            return found
        await asyncio.sleep(0.05)
    raise DemoFailed(f"{what} did not come within {PATIENCE_S:.0f} seconds")


async def run_demo(*, keep: bool, console: Console) -> None:
    """Play the story on a playground. With `keep`, leave everything running until Ctrl-C."""
    async with _open_playground() as playground:
        await Story(playground, console).tell()
        if keep:
            console.print("\n[bold]Everything is still running.[/] Stop it with Ctrl-C.")
            _say_where_everything_is(playground, console)
            await asyncio.Event().wait()


async def play_demo(console: Console) -> None:
    """Start a playground with an issue, for a person who plays the story in a browser. Runs until Ctrl-C."""
    async with _open_playground() as playground:
        await playground.github.open_issue(NAME, ISSUE_TITLE, ISSUE_BODY, STRANGER)
        console.print(_HOW_TO_PLAY, highlight=False)
        _say_where_everything_is(playground, console)
        await asyncio.Event().wait()


async def set_up_demo(console: Console) -> None:
    """Run everything except ptq-bot, for a person who tries its set-up. Runs until Ctrl-C."""
    async with _open_folder() as folder:
        await run_tryout(folder, console)


@asynccontextmanager
async def _open_playground() -> AsyncIterator[Playground]:
    async with _open_folder() as folder, Playground(folder) as playground:
        yield playground


@asynccontextmanager
async def _open_folder() -> AsyncIterator[Path]:
    """A temporary folder for the demo.

    SIGINT and SIGTERM cancel the current task. `asyncio.CancelledError` is raised after everything is stopped and
    removed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: task and task.cancel())
    with tempfile.TemporaryDirectory(prefix="ptq-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


_HOW_TO_PLAY = f"""
[bold]Everything is running, and the story is yours.[/] Stop it with Ctrl-C.
Open the issue below in a browser, and:
  1. Say at the top that you are {MAINTAINER}, and put the label {LABEL} on.
  2. Wait for the report. The status comment leads to the job and its log.
  3. Copy the command at the report's end, /ptq pr and a digest, into a comment.
     Below it say in your own words what the change does and why it is right.
  4. Read the draft pull request. Then be {STRANGER}, a stranger, and try again.
"""


def _say_where_everything_is(playground: Playground, console: Console) -> None:
    machine = playground.ssh
    console.print(
        f"""\
  the issue       {playground.github.url}/{NAME}/issues/1
  the jobs        {playground.service.url}/jobs
  the repository  {playground.git_dir}
  the machine     {machine.user}@127.0.0.1 port {machine.port}, key {machine.client_key_file}
  configuration   {playground.config}""",
        highlight=False,
        soft_wrap=True,
    )
