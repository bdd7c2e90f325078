"""Whatever people, agents and GitHub do in whatever order: what is promised of an issue's conversation holds."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from gidgethub import sansio
from gidgethub.routing import Router
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from structlog.testing import capture_logs

from handlers.context import Context
from handlers.effects.drain import drain
from handlers.effects.outbox import Comments
from handlers.events import User
from handlers.inbox.inbox import Inbox
from handlers.jobs.outcomes import report_jobs
from handlers.ports import GitHub, Labelling
from handlers.pulls.pulls import Pulls
from handlers.rules import RepositoryRules
from handlers.triggers.router import ROUTER
from handlers.words.replies import render_report_changed
from runner.agents import AgentSpec
from runner.model.job import JobState, Report
from runner.rows import job_rows
from tests.handlers.asked import (
    CHANGES,
    DIGESTS,
    NAME,
    NOTE,
    NOTES,
    WORDS,
    Request,
    name_answer,
    render_comment,
    render_commented,
    render_payload,
)
from tests.support.at_once import hasten
from tests.support.clock import Clock
from tests.support.examples import TIMEOUT_S, choose_examples
from tests.support.jobs import open_database, store_report
from tests.support.model_github import MISHAPS, OURS, ModelGitHub
from tests.support.model_machine import BASE
from tests.support.moves import Witness, check_moves
from tests.support.patches import render_patch

LEGAL = {
    *(("idle", "active"), ("awaiting_note", "active"), ("pull_open", "active")),
    *(("active", "idle"), ("active", "awaiting_note"), ("active", "pull_open")),
    *(("awaiting_note", "pull_open"), ("pull_open", "idle")),
}
RULES = RepositoryRules(NAME, "mine", labels={"ptq": "fix"})


def event(name: str, *details: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Something that happens: a method of `Cases`, and what it is given."""
    return st.tuples(st.just(name), *details)


ONE, ISSUE = st.integers(0, 9), st.sampled_from([1, 1, 2])
PERSON = st.sampled_from(["boss", "boss", "second", "stranger"])
ENDS = st.sampled_from(["A", "A", "B", "nothing", "failed", "lost", "cancelled"])
EVENTS = st.one_of(
    event("say", ISSUE, PERSON, st.sampled_from(WORDS), st.booleans()),
    event("say", ISSUE, PERSON, st.sampled_from(["fix", "retry"]), st.just(True)),
    event("say", ISSUE, PERSON, st.sampled_from(sorted(NOTES)), st.booleans()),
    event("say", ISSUE, PERSON, st.sampled_from(["good A", "good A", "good B", "without a digest"]), st.just(True)),
    event("label", ISSUE, PERSON, st.booleans()),
    event("arrive", ONE),
    event("arrive_again", ONE),
    event("end_job", ISSUE, ENDS),
    event("end_job", ISSUE, ENDS),
    event("permit", st.sampled_from(["second", "stranger"]), st.booleans()),
    event("delete_comment", ONE),
    event("close_pull", ONE),
    event("close_or_reopen", ISSUE, st.sampled_from(["closed", "reopened"])),
    event("transfer", st.just(2)),
    event("wait", st.sampled_from([5, 400, 4000])),
)
LOOPS = ("inbox", "outcomes", "outbox", "pulls")
AT_THE_END = "crash at the end"
"""The inbox dies when a delivery is worked, before it is noted."""
FATE = st.tuples(st.sampled_from(range(6)), st.sampled_from([*MISHAPS, AT_THE_END, AT_THE_END]))
"""Which call to GitHub, in a pass of a loop, meets with what."""
PASSES = st.lists(st.tuples(st.sampled_from(LOOPS), st.none() | FATE), min_size=2, max_size=6)

Fate = tuple[int, str] | None


class Cases(RuleBasedStateMachine):
    """Two issues, two maintainers and a stranger, over a real database."""

    @initialize(rounds=st.integers(0, 2), fates=st.lists(FATE, min_size=12, max_size=30))
    def open(self, rounds: int, fates: list[tuple[int, str]]) -> None:
        """After a round a fix has been asked for, after another its diff approved; not everything goes well."""
        self.fates = fates
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.clock = Clock()
        self.github = ModelGitHub(self.clock)
        self.github.writers |= {"boss", "second"}
        self.requests = list[Request]()
        self.on_the_way = list[Request]()
        self.interrupted = set[str]()
        """Deliveries that were worked at, and not to their end."""
        self.answered = set[tuple[object, ...]]()
        """What has to have had one answer."""
        self.approving = set[int]()
        """Comments that were good notes by somebody with write permission, of the diff that stood."""
        self.unseen = set[str]()
        """Markers of our comments that were deleted before we knew of them."""
        self.runner.run(self.start())
        self.runner.run(self.advance(rounds))

    async def advance(self, rounds: int) -> None:
        for word in ("fix", "good A")[:rounds]:
            await self.say(1, "boss", word, True)
            await self.look_around()
            await self.end_job(1, "A")
            await self.look_around()

    async def look_around(self) -> None:
        for loop in LOOPS:
            await self.look(loop, self.fates.pop() if self.fates else None)

    async def start(self) -> None:
        self.logs = self.stack.enter_context(capture_logs())
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.db = await self.stack.enter_async_context(open_database(Path(folder)))
        await hasten(self.db)
        self.witness = Witness(self.db.file)
        self.stack.callback(self.witness.close)
        specs = {"mine": AgentSpec("mine", "command", ("true",))}
        github = cast(GitHub, self.github)
        self.context = Context(github, self.db, {NAME: RULES}, specs, "https://ptq", (), self.clock, lambda: None)
        self.dies_at_the_end = False
        self.inbox = self.make_inbox()

    def make_inbox(self) -> Inbox:
        return Inbox(self.db, cast(Router, self), self.clock)

    @rule(event=EVENTS, passes=PASSES)
    def happen(self, event: tuple[Any, ...], passes: list[tuple[str, Fate]]) -> None:
        """Something happens, and then some of our loops take a look."""
        self.runner.run(self.see(event, passes))

    async def see(self, event: tuple[Any, ...], passes: list[tuple[str, Fate]]) -> None:
        name, *details = event
        await getattr(self, name)(*details)
        for loop, fate in passes:
            await self.look(loop, fate)

    # What people do, and what becomes of it on its way.

    async def say(self, issue: int, by: str, kind: str, at_once: bool) -> None:
        comment = self.github.say(issue, by, render_comment(kind))
        await self.send(issue, by, kind, comment.id, render_commented(issue, comment), at_once)

    async def label(self, issue: int, by: str, at_once: bool) -> None:
        self.github.labellings.setdefault(issue, []).append(Labelling(User(login=by), self.clock()))
        self.github.labels.setdefault(issue, set()).add("ptq")
        payload = render_payload(issue, by, self.clock(), action="labeled", label={"name": "ptq"})
        await self.send(issue, by, "label", self.github.next_id(), payload, at_once)

    async def close_or_reopen(self, issue: int, action: str) -> None:
        self.github.closed = self.github.closed | {issue} if action == "closed" else self.github.closed - {issue}
        await self.send(issue, "boss", action, 0, render_payload(issue, "boss", self.clock(), action=action), True)

    async def send(self, issue: int, by: str, kind: str, which: int, payload: dict[str, Any], at_once: bool) -> None:
        request = Request(f"guid-{len(self.requests)}", issue, by, kind, which, payload)
        self.requests.append(request)
        self.on_the_way.append(request)
        self.clock.forward(61)
        if at_once:
            await self.arrive(-1)

    async def arrive(self, which: int) -> None:
        """Not always in the order in which they were sent."""
        if self.on_the_way:
            assert await self.receive(self.on_the_way.pop(which % len(self.on_the_way)))

    async def arrive_again(self, which: int) -> None:
        arrived = [request for request in self.requests if request not in self.on_the_way]
        if arrived:
            assert not await self.receive(arrived[which % len(arrived)])

    async def receive(self, request: Request) -> bool:
        return await self.inbox.receive(request.guid, request.event, request.lane, request.body)

    async def permit(self, who: str, may_write: bool) -> None:
        (self.github.writers.add if may_write else self.github.writers.discard)(who)

    async def delete_comment(self, which: int) -> None:
        standing = [comment for thread in self.github.threads.values() for comment in thread if comment.author == OURS]
        if standing:
            comment = standing[which % len(standing)]
            self.github.delete(comment)
            if not self.witness.ask("SELECT id FROM replies WHERE comment_id = ?", comment.id):
                self.unseen.add(read_marker(comment.body))

    async def close_pull(self, which: int) -> None:
        if self.github.opened:
            self.github.close_pull(which % len(self.github.opened))

    async def transfer(self, issue: int) -> None:
        self.github.moved.add(issue)

    async def wait(self, seconds: int) -> None:
        self.clock.forward(seconds)

    async def end_job(self, issue: int, how: str) -> None:
        """The active job of an issue comes to its end, as the other state machine may bring it there."""
        active = self.witness.ask("SELECT id FROM jobs WHERE thread = ? AND ended_at IS NULL", issue)
        if not active:
            return
        ends = {"failed": JobState.FAILED, "lost": JobState.LOST, "cancelled": JobState.CANCELLED}
        async with self.db.write() as connection:
            job = await job_rows.fetch_job(connection, active[0]["id"])
            assert job
            job = await job_rows.move_job(connection, job, JobState.PREPARING, self.clock(), machine="gpu-1")
            job = await job_rows.move_job(connection, job, JobState.RUNNING, self.clock(), base_commit=BASE)
            job = await job_rows.move_job(connection, job, JobState.COLLECTING, self.clock())
            await job_rows.move_job(connection, job, ends.get(how, JobState.SUCCEEDED), self.clock())
            if how not in ends:
                changes = (CHANGES[how],) if how in CHANGES and job.may_change else ()
                digest = DIGESTS[how] if changes else None
                words = ("fix staged\n\n## Summary\nFixed.\n", "looked", "Fix it", "", render_patch(changes))
                await store_report(connection, Report(job.id, *words, changes, digest))

    # What we do.

    async def look(self, loop: str, fate: Fate) -> None:
        """One pass of a loop. Where it dies, another takes its place."""
        context = self.context
        steps = {
            "outcomes": lambda: report_jobs(context),
            "outbox": lambda: drain(Comments(context)),
            "pulls": lambda: drain(Pulls(context)),
        }
        place, mishap = fate or (0, "none")
        self.dies_at_the_end = mishap == AT_THE_END
        self.github.mishaps = [] if self.dies_at_the_end else [*["none"] * place, mishap]
        if loop == "inbox":
            await self.inbox.step(self.context)
            await self.inbox.stop()
            self.inbox = self.make_inbox()
        else:
            work = asyncio.ensure_future(steps[loop]())
            await asyncio.wait([work])
            if not work.cancelled():
                work.result()
        self.github.mishaps = []

    async def dispatch(self, brought: sansio.Event, context: Context) -> None:
        """Work a delivery as the service does, and hold what was done against what was asked."""
        request = next(request for request in self.requests if request.guid == brought.delivery_id)
        may_write = self.may_write(request.by)
        if may_write and self.is_approval(request):
            self.approving.add(request.which)
        before = self.read_case(request.issue)
        jobs = self.count_jobs(request.issue)
        self.interrupted.add(request.guid)
        await ROUTER.dispatch(brought, context)
        self.interrupted.discard(request.guid)
        if request.kind in NOTES and request.which not in self.approving:
            assert self.read_case(request.issue) == before, f"the note {request.kind!r} has changed something"
        assert may_write or self.count_jobs(request.issue) == jobs, "a stranger has started a job"
        if request.kind not in ("closed", "reopened", *["label"] * (may_write and request.issue in self.github.moved)):
            self.answered.add(name_answer(request, may_write=may_write))
        if self.dies_at_the_end:
            raise asyncio.CancelledError

    def may_write(self, who: str) -> bool:
        """Whether somebody has the right, and has not been refused so often that GitHub is not asked at the moment."""
        _, until = self.context.strangers.get((who, NAME.lower()), (0, self.clock()))
        return who in self.github.writers and self.clock() >= until

    def is_approval(self, request: Request) -> bool:
        """Whether it is a good note of the diff that stands."""
        standing = self.witness.ask(
            "SELECT digest FROM cases JOIN reports ON job_id = standing_job_id WHERE issue_number = ?", request.issue
        )
        named, text = NOTES.get(request.kind, ("", ""))
        return bool(standing and text == NOTE and named in ("", *DIGESTS)) and (
            not named or DIGESTS[named] == standing[0]["digest"]
        )

    def count_jobs(self, issue: int) -> int:
        return len(self.witness.ask("SELECT id FROM jobs WHERE thread = ?", issue))

    def read_case(self, issue: int) -> object:
        pulls = "SELECT pulls.* FROM pulls JOIN jobs ON jobs.id = job_id WHERE thread = ?"
        return self.witness.ask("SELECT * FROM cases WHERE issue_number = ?", issue), self.witness.ask(pulls, issue)

    # What must be so.

    @invariant()
    def check(self) -> None:
        if hasattr(self, "context"):
            check_moves(self.witness.read_moves(), "case", "active", LEGAL)
            self.check_cases()
            self.check_comments()
            self.check_pulls()
            if not self.interrupted:
                self.check_answers()
            accidents = [line for line in self.logs if line.get("exc_info")]
            assert accidents == []

    def check_cases(self) -> None:
        jobs = {job["id"]: job for job in self.witness.ask("SELECT * FROM jobs")}
        for case in self.witness.ask("SELECT * FROM cases"):
            assert (case["state"] == "active") == (case["active_job_id"] is not None)
            assert case["state"] != "awaiting_note" or case["standing_job_id"]
            assert case["state"] != "pull_open" or (case["pull_number"] and not case["standing_job_id"])
            active = [job["id"] for job in jobs.values() if job["thread"] == case["issue_number"]]
            active = [job_id for job_id in active if jobs[job_id]["ended_at"] is None]
            assert active in ([], [case["active_job_id"]])

    def check_comments(self) -> None:
        kinds = Counter((reply["kind"], reply["job_id"]) for reply in self.witness.ask("SELECT * FROM replies"))
        for job in self.witness.ask("SELECT * FROM jobs"):
            assert kinds["status", job["id"]] == 1
            assert kinds["report", job["id"]] <= (job["ended_at"] is not None)
        standing = Counter(
            read_marker(comment.body)
            for thread in self.github.threads.values()
            for comment in thread
            if comment.author == OURS
        )
        assert all(count == 1 for count in standing.values()), f"posted twice: {standing}"
        posted = Counter(read_marker(comment.body) for comment in self.github.posted)
        again = {marker for marker, count in posted.items() if count > 1}
        absent = render_report_changed(is_absent=True)
        if self.witness.ask("SELECT id FROM replies WHERE body LIKE '%' || ? || '%'", absent):
            # A note whose report is not there has it posted again.
            again = {marker for marker in again if "ptq:report=" not in marker}
        assert again <= self.unseen, f"posted again after a human had deleted it: {again}"

    def check_pulls(self) -> None:
        issues = {job["id"]: job["thread"] for job in self.witness.ask("SELECT * FROM jobs")}
        pulls = {pull["commit_sha"]: pull for pull in self.witness.ask("SELECT * FROM pulls")}
        made_of = [(one, pulls[one.pull.head_sha]) for one in self.github.opened]
        standing = Counter(issues[pull["job_id"]] for one, pull in made_of if one.pull.state == "open")
        assert all(count == 1 for count in standing.values()), f"two pull requests for one issue: {standing}"
        for one, pull in made_of:
            assert int(pull["note_url"].rpartition("-")[2]) in self.approving, "a pull request that nobody approved"
            assert not pull["abandoned"], "a pull request was opened, and given up"
            assert one.body.startswith(f"**@{pull['approver']} wrote:**\n\n{NOTE}")
            assert one.digest == pull["digest"]

    def check_answers(self) -> None:
        """Each request has had one answer: a job's status comment, or a reply. A pull request is told of when it is."""
        ask = self.witness.ask
        answers = ask("SELECT body FROM replies WHERE kind <> 'report'")
        pending = ask("SELECT job_id FROM pulls WHERE number IS NULL AND abandoned IS NULL")
        unasked = ask("SELECT id FROM jobs WHERE replaces IS NOT NULL")
        assert len(answers) + len(pending) - len(unasked) == len(self.answered), (answers, self.answered)

    def teardown(self) -> None:
        try:
            if hasattr(self, "context"):
                self.runner.run(self.come_to_the_end())
                self.check()
                assert (unfinished := self.find_unfinished()) == [], unfinished
        finally:
            if hasattr(self, "runner"):
                self.runner.run(self.stack.aclose())
                self.runner.close()

    async def come_to_the_end(self) -> None:
        """Everything that was sent arrives; then a diff that does not stand is approved, and one that may."""
        while self.on_the_way:
            await self.arrive(0)
        await self.settle()
        for kind in ("of no diff", "good B", "good A"):
            await self.say(1, "boss", kind, True)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(60):
            await self.look_around()
            await self.end_job(1, "A")
            await self.end_job(2, "A")
            if not self.find_unfinished():
                return
            self.clock.forward(3600)

    def find_unfinished(self) -> list[Any]:
        # Nothing can be asked about an issue that is not there any more.
        moved = ",".join(f"'{NAME}#{issue}'" for issue in self.github.moved) or "''"
        queries = (
            f"SELECT id, error FROM deliveries WHERE state <> 'done' AND lane NOT IN ({moved})",
            "SELECT id, trouble FROM replies WHERE abandoned IS NULL"
            " AND (posted_body IS NULL OR posted_body <> body OR NOT final AND kind = 'status')",
            "SELECT job_id, trouble FROM pulls WHERE number IS NULL AND abandoned IS NULL",
            "SELECT id FROM jobs WHERE id NOT IN (SELECT job_id FROM replies WHERE kind = 'report')",
        )
        return [row for query in queries for row in self.witness.ask(query)]


def read_marker(body: str) -> str:
    found = re.match(r"<!-- ptq:\w+=\w+ -->", body)
    assert found, f"a comment of ours without a marker: {body}"
    return found[0]


TestCases = pytest.mark.slow(pytest.mark.timeout(TIMEOUT_S)(Cases.TestCase))
TestCases.settings = choose_examples(10, steps=20)
