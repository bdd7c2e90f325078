"""`make hostile`: play every hostile text against a running service, and judge how soon it answers meanwhile.

Each text is an issue, a stranger's comment and a search; then an agent's log, report, worklog, title, script and
change, and each page that shows them. The service has a core of its own. `--texts N` plays the first N.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bot.demo.playground import LABEL, MAINTAINER, STRANGER
from bot.demo.repository import NAME
from runner.model.job import DIGEST_SHOWN
from tests.bench import serve
from tests.bench.figures import find_percentile
from tests.bench.servers import Installation
from tests.hostile.probe import PAUSE_S
from tests.hostile.texts import FULL, list_texts
from tests.support.world import NOTE

HERE = Path(__file__).parent

MAX_P99_S = 0.2
MAX_STALL_S = 1.0
"""For any single answer: a text that blocks the service now and then is rare in a percentile."""

PATIENCE_S = 600.0
"""Without any progress."""

AT_ONCE = 4
"""Issues under way."""

PATHS = ("", "/patch", "/files/report.md", "/log/agent", "/actions")
_DONE = " AND (comment_id IS NOT NULL OR abandoned IS NOT NULL)"
MAX_TITLE = 256
"""Characters of an issue's title on GitHub."""
MAX_QUERY = 2_000
"""Characters of an address: servers refuse longer ones."""


@dataclass(frozen=True)
class Outcome:
    """What was seen: answers of `/healthz` as the time of asking and the seconds it took, and how jobs ended."""

    answers: Sequence[tuple[float, float]]
    played: Sequence[tuple[float, float, str]]
    """When each text began and ended, and how it begins."""
    ends: dict[str, int]
    """Jobs by state."""
    unworked: int
    """Deliveries that were set aside as failed."""

    def list_waits(self) -> list[float]:
        """How long somebody would have waited who had asked at any moment, in seconds.

        The probe asks nothing while it waits for an answer. Without what it would have asked then, a stall of many
        seconds would be one answer among thousands.
        """
        return [took - PAUSE_S * late for _, took in self.answers for late in range(1 + int(took / PAUSE_S))]

    def find_worst(self, count: int) -> list[tuple[float, str]]:
        """The slowest answers, in seconds, with the texts that were under way."""
        slowest = sorted(self.answers, key=lambda answer: -answer[1])[:count]
        return [
            (took, ", ".join(name for began, ended, name in self.played if began <= at + took and at <= ended))
            for at, took in slowest
        ]


def commit_texts(git_dir: Path, texts: Sequence[str]) -> None:
    """Put the texts on the repository's base branch, from where the agent takes them."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-c", "user.name=Octo", "-c", "user.email=octo@example.org"]
        subprocess.run([*git, "clone", "--quiet", str(git_dir), folder], check=True)
        where = Path(folder, "hostile")
        where.mkdir()
        for number, text in enumerate(texts):
            (where / f"{number}.json").write_text(json.dumps(text))
        for words in (["add", "--all"], ["commit", "--quiet", "--message=texts"], ["push", "--quiet"]):
            subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)


class Player:
    """Plays texts against an installation."""

    def __init__(self, installation: Installation, session: aiohttp.ClientSession) -> None:
        self._github = installation.github
        self._database = installation.folder / "ptq.db"
        self._url = f"http://127.0.0.1:{installation.service_port}"
        self._session = session
        self.played: list[tuple[float, float, str]] = []

    async def play(self, number: int, text: str) -> None:
        """One text by every channel, until its job has ended and its report is posted."""
        began = time.monotonic()
        clean = text.encode(errors="replace").decode().replace("\0", "\ufffd")
        title = f"[case {number}] {' '.join(clean.split())}"[:MAX_TITLE]
        issue = await self._github.open_issue(NAME, title, clean, STRANGER)
        await self._github.comment(NAME, issue, clean, STRANGER)
        await self._github.comment(NAME, issue, f"/ptq fix {clean}"[:FULL], STRANGER)
        await self._github.label_issue(NAME, issue, LABEL, MAINTAINER)
        job_id = str(
            await self._wait("SELECT job_id FROM replies WHERE issue_number = ? AND kind = 'report'" + _DONE, issue)
        )
        for path in PATHS:
            await self._get(f"/jobs/{job_id}{path}")
        await self._get("/jobs", search=clean[:MAX_QUERY], before=clean[:MAX_QUERY], repository=clean[:100])
        if digest := self._ask("SELECT digest FROM reports WHERE job_id = ?", job_id):
            note = f"/ptq pr {str(digest)[:DIGEST_SHOWN]}\n\n{NOTE}"
            # A stranger's command was answered before the report, so the next reply is about the note.
            answers = "SELECT count(*) FROM replies WHERE issue_number = ? AND kind = 'reply'"
            before = self._ask(answers, issue)
            await self._github.comment(NAME, issue, note, MAINTAINER)
            await self._wait(f"{answers}{_DONE} HAVING count(*) > {before}", issue)
        self.played.append((began, time.monotonic(), f"{number}: {text[:20]!r}"))

    async def _wait(self, query: str, value: object) -> object:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := self._ask(query, value)):
                await asyncio.sleep(0.2)
        return found

    async def _get(self, path: str, **query: str) -> None:
        async with self._session.get(self._url + path, params=query) as answer:
            await answer.read()
            assert answer.status < 500, f"{path} answered {answer.status}"

    def _ask(self, query: str, value: object) -> object:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            row = connection.execute(query, (value,)).fetchone()
        return row[0] if row else None


def count_ends(database: Path) -> tuple[dict[str, int], int]:
    """Jobs by state, and deliveries that were set aside."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        ends = dict(connection.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        (failed,) = connection.execute("SELECT count(*) FROM deliveries WHERE state = 'failed'").fetchone()
    return ends, failed


async def run(folder: Path, core: int, texts: Sequence[str]) -> Outcome:
    """Play the texts, some at once."""
    command = (sys.executable, serve.__file__)
    async with (
        Installation(folder, core, command, (sys.executable, str(HERE / "agent.py"))) as installation,
        # The service closes a connection after a request that it cannot read, so the next one would meet a closed one.
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(total=PATIENCE_S)
        ) as session,
    ):
        installation.as_server([])
        commit_texts(installation.git_dir, texts)
        asking = await asyncio.create_subprocess_exec(
            sys.executable, HERE / "probe.py", str(installation.service_port), stdout=asyncio.subprocess.PIPE
        )
        player, room = Player(installation, session), asyncio.Semaphore(AT_ONCE)

        async def play(number: int, text: str) -> None:
            async with room:
                await player.play(number, text)

        try:
            async with asyncio.TaskGroup() as group:
                for number, text in enumerate(texts):
                    group.create_task(play(number, text))
        finally:
            asking.send_signal(signal.SIGTERM)
            answers, _ = await asking.communicate()
        ends, unworked = count_ends(folder / "ptq.db")
        return Outcome(json.loads(answers), player.played, ends, unworked)


def main() -> int:
    """Play, print, judge: the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, help="play only the first N")
    texts = list_texts()[: parser.parse_args().texts]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[-1]})
    with tempfile.TemporaryDirectory(prefix="ptq-hostile-", ignore_cleanup_errors=True, dir="/var/tmp") as name:
        outcome = asyncio.run(run(Path(name), cores[0], texts))
    waits = outcome.list_waits()
    p50, p99, longest = find_percentile(waits, 50), find_percentile(waits, 99), max(waits)
    print(f"{len(texts)} texts; jobs: {outcome.ends}; deliveries set aside: {outcome.unworked}")
    print(f"/healthz, {len(outcome.answers)} answers: p50 {p50:.3f} s, p99 {p99:.3f} s, longest {longest:.3f} s")
    for seconds, names in outcome.find_worst(5):
        print(f"  {seconds:.3f} s during {names}")
    is_awake, stalls = p99 < MAX_P99_S, longest >= MAX_STALL_S
    is_worked = outcome.unworked == 0 and set(outcome.ends) <= {"succeeded", "failed"}
    print("pass" if is_awake else "FAIL", f"/healthz p99 stays under {MAX_P99_S} s")
    print("FAIL" if stalls else "pass", f"no answer takes {MAX_STALL_S} s")
    print("pass" if is_worked else "FAIL", "every delivery is worked and every job ends")
    return int(stalls or not (is_awake and is_worked))


if __name__ == "__main__":
    sys.exit(main())
