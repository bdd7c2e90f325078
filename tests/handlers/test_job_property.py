"""Whatever happens to jobs, machines and replicas in whatever order: what is promised of a job holds."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from structlog.testing import capture_logs

from handlers.commands.rights import Person, Surface
from handlers.context import Context
from handlers.events import Issue, Repository
from handlers.jobs.outcomes import report_jobs
from handlers.jobs.start import StartRequest, start_job
from handlers.ports import Comment, GitHub, MentioningPull
from handlers.rules import RepositoryRules, Role
from runner.agents import AgentSpec, build_agent
from runner.checks.verification import name_environment
from runner.db.schema import claims
from runner.model.caps import Caps, Scope
from runner.model.environment import Limits, Profile
from runner.model.machines import Machine
from runner.rows import job_rows
from runner.rows.machine_states import drain, resume
from runner.scheduler.supervisor import Supervisor
from runner.steps.loops import Wakeup
from runner.steps.runtime import Runtime
from runner.steps.spool import Spool
from runner.steps.usage_reader import UsageReader
from runner.transport.jobd_client import JobdClient
from tests.support.at_once import hasten
from tests.support.clock import Clock
from tests.support.examples import TIMEOUT_S, choose_examples
from tests.support.history import ModelHistory
from tests.support.jobs import NOON, open_database
from tests.support.model_machine import BASE, COLLECTED, MOODS, ModelMachine, ModelWire
from tests.support.moves import Witness, check_moves
from tests.support.no_gateway import NoGateway
from tests.support.replica import Process, expire_claims

pytestmark = pytest.mark.slow

NAME = "octo/widgets"
ON_A_MACHINE = ("preparing", "running", "collecting", "verifying")
ENDED = ("succeeded", "failed", "cancelled", "lost")
LEGAL = {
    ("queued", "preparing"),
    ("preparing", "running"),
    ("running", "collecting"),
    ("collecting", "succeeded"),
    *(("queued", end) for end in ("failed", "cancelled")),
    *((state, end) for state in ON_A_MACHINE[:3] for end in ("failed", "cancelled", "lost")),
    # Its result is there by then: nothing costs it that any more.
    *{("collecting", "verifying"), ("verifying", "succeeded"), ("verifying", "cancelled")},
}
SLOTS = {"gpu-1": 2, "gpu-2": 1}
MACHINES = {name: Machine(name, f"/srv/{name}", slots=slots) for name, slots in SLOTS.items()}
PATIENCE_S = 600
AGENT = AgentSpec("mine", "command", ("true",))
CAPS = {Scope.JOB: Caps(output_bytes=100), Scope.ISSUE: Caps(jobs=4)}
RULES = {NAME: RepositoryRules(NAME, "mine", caps=CAPS)}
PROFILES = {NAME: Profile(NAME, limits=Limits(unreachable_after_s=PATIENCE_S), caps=CAPS)}
HISTORY = ModelHistory(BASE)
HOUR_S = 3600.0
"""How often loops look by themselves: never, here. The test notifies."""

ENDS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "prepare": [("done", {"base_commit": BASE}), ("done", {}), ("failed", {}), ("lost", {})],
    "agent": [("done", {"exit_status": 0}), ("done", {"exit_status": 1}), ("failed", {}), ("lost", {})],
    "collect": [
        ("done", COLLECTED),
        ("done", {**COLLECTED, "repro": ""}),
        ("done", {**COLLECTED, "report": ""}),
        *[("done", {}), ("failed", {}), ("lost", {})],
    ],
    "check": [
        ("done", {"runs": {}, "troubles": {"base 1": "no time"}}),
        ("done", {"runs": {"base 1": [{"status": 1, "timed_out": False, "words": "no"}] * 3}, "troubles": {}}),
        *[("done", {}), ("failed", {}), ("lost", {})],
    ],
}


class QuietGitHub:
    """An issue with nothing in its thread."""

    async def list_comments(self, *_: object) -> AsyncIterator[Comment]:
        for comment in list[Comment]():
            yield comment

    async def own_login(self) -> str:
        return "ptq-bot[bot]"

    async def list_mentioning_pulls(self, *_: object) -> AsyncIterator[MentioningPull]:
        for pull in list[MentioningPull]():
            yield pull

    async def react_to_issue(self, *_: object) -> None: ...


class Life(Process):
    """A replica from its start to its end, with a disk of its own."""

    def __init__(self, url: str, folder: Path, machines: dict[str, ModelMachine], context: Context) -> None:
        super().__init__(url)
        spool, self.wakeup = Spool(folder), Wakeup()
        wires = {name: ModelWire(machine, self.stops.gate) for name, machine in machines.items()}
        clients = {name: JobdClient(MACHINES[name], wire) for name, wire in wires.items()}
        usage_reader = UsageReader(spool, {}, context.now)
        agents = {"mine": build_agent(AGENT)}
        runtime = Runtime(
            self.db, clients, PROFILES, agents, {}, spool, usage_reader, context.now, NoGateway(), HISTORY
        )
        self.supervisor = Supervisor(runtime, MACHINES, self.wakeup, self.claims, HOUR_S)
        own = replace(context, db=self.db)
        self.loops = {
            "supervisor": self.supervisor.step,
            "outcomes": self.claims.keeping("outcomes", lambda: report_jobs(own)),
        }

    async def look(self, loop: str, steps: int | None = None) -> None:
        """A pass of a loop. A replica that was stopped first goes on, and knows nothing of what happened meanwhile."""
        await self.wake()
        self.wakeup.notify()
        await self.work(loop, self.loops[loop], steps)

    async def end(self) -> None:
        await self.die(self.supervisor.stop)


def event(name: str, *details: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Something that happens: a method of `Jobs`, and what it is given."""
    return st.tuples(st.just(name), *details)


ONE, MACHINE, REPLICA = st.integers(0, 9), st.sampled_from(sorted(MACHINES)), st.integers(0, 1)
EVENTS = st.one_of(
    event("ask", st.integers(1, 4), st.integers(1, 9)),
    event("cancel", ONE),
    event("end_a_stage", ONE, ONE),
    event("end_well"),
    event("end_well"),
    event("print_much", st.sampled_from([10, 85, 200])),
    event("befall", MACHINE, st.sampled_from([*MOODS, *["well"] * 3, "drained", "resumed", "rebooted"])),
    event("lose", MACHINE),
    event("wait", st.sampled_from([20, 70, PATIENCE_S + 1])),
    event("expire", REPLICA),
    event("outlive", REPLICA, st.sampled_from(["supervisor", "outcomes"]), st.integers(1, 25)),
    event("crash", REPLICA, st.booleans(), st.booleans()),
)
LOOPS = st.sampled_from(["supervisor", "supervisor", "outcomes"])
STEPS = st.sampled_from([*[None] * 30, *range(1, 25, 2)])
PASSES = st.lists(st.tuples(REPLICA, LOOPS, STEPS), min_size=2, max_size=5)


class Jobs(RuleBasedStateMachine):
    """Two replicas and two machines of three slots, over a real database."""

    @initialize(rounds=st.integers(0, 3))
    def open(self, rounds: int) -> None:
        """Two jobs are under way, and have come as far as so many rounds bring them."""
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.clock = Clock()
        self.machines = {name: ModelMachine(name) for name in MACHINES}
        self.runner.run(self.start())
        self.runner.run(self.advance(rounds))

    async def advance(self, rounds: int) -> None:
        for issue in (1, 2):
            await self.ask(issue, 0)
        for _ in range(rounds):
            await self.end_well()
            await self.lives[0].look("supervisor")

    async def start(self) -> None:
        self.logs = self.stack.enter_context(capture_logs())
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.db = await self.stack.enter_async_context(open_database(self.folder))
        await hasten(self.db)
        self.witness = Witness(self.db.file)
        self.stack.callback(self.witness.close)
        github = cast(GitHub, QuietGitHub())
        specs, notify = {"mine": AGENT}, lambda: None
        self.context = Context(github, self.db, RULES, specs, "https://ptq", (), self.clock, notify)
        self.lives = [await self.begin(0), await self.begin(1)]

    async def begin(self, number: int) -> Life:
        life = Life(str(self.db.url), self.folder / f"spool-{number}", self.machines, self.context)
        await hasten(life.db)
        await life.db.open()
        return life

    @rule(event=EVENTS, passes=PASSES)
    def happen(self, event: tuple[Any, ...], passes: list[tuple[int, str, int | None]]) -> None:
        """Something happens, and then some loops take a look; one with a number stops its replica in its middle."""
        self.runner.run(self.see(event, passes))

    async def see(self, event: tuple[Any, ...], passes: list[tuple[int, str, int | None]]) -> None:
        name, *details = event
        await getattr(self, name)(*details)
        for number, loop, steps in passes:
            await self.lives[number].look(loop, steps)

    # What people do.

    async def ask(self, issue: int, comment: int) -> None:
        """Something new triggers a job; or something that has come before comes again."""
        asked = StartRequest(
            person=Person("maintainer", Surface.THREAD, RULES[NAME], Role.WRITE),
            repository=Repository(full_name=NAME, private=False, default_branch="main", clone_url="https://git"),
            issue=Issue(number=issue, title="It breaks", created_at=NOON, updated_at=NOON),
            preset="fix",
            triggered_at=NOON,
            trigger=f"comment {comment}",
        )
        await start_job(self.context, asked)

    async def cancel(self, which: int) -> None:
        """Of any job there ever was, in whatever state, as often as one likes."""
        if jobs := self.witness.ask("SELECT id FROM jobs ORDER BY created_at, id"):
            async with self.db.write() as connection:
                job_id = jobs[which % len(jobs)]["id"]
                await job_rows.request_cancel(connection, job_id, "maintainer", self.clock())

    # What happens on machines.

    def list_alive(self) -> list[tuple[str, str, str]]:
        """Machine, job and stage of everything that runs."""
        return [(name, *one) for name, machine in self.machines.items() for one in machine.list_alive()]

    async def end_a_stage(self, which: int, how: int) -> None:
        if alive := self.list_alive():
            name, job_id, stage = alive[which % len(alive)]
            state, result = ENDS[stage][how % len(ENDS[stage])]
            self.machines[name].end(job_id, stage, state, **result)

    async def end_well(self) -> None:
        """Everything that runs comes to a good end."""
        for name, job_id, stage in self.list_alive():
            state, result = ENDS[stage][0]
            self.machines[name].end(job_id, stage, state, **result)

    async def print_much(self, size: int) -> None:
        for name, job_id, stage in self.list_alive():
            self.machines[name].stages[job_id][stage].log += b"x" * size + b"\n"

    async def befall(self, name: str, what: str) -> None:
        if what in MOODS:
            self.machines[name].mood = what
        elif what == "rebooted":
            self.machines[name].reboot()
        else:
            async with self.db.write() as connection:
                if what == "drained":
                    await drain(connection, name, "operator", self.clock())
                else:
                    await resume(connection, name)

    async def lose(self, name: str) -> None:
        """A machine goes for good, and everybody sees it."""
        self.machines[name].mood = "locked"
        for life in self.lives:
            await life.look("supervisor")
            await life.look("outcomes")

    async def wait(self, seconds: int) -> None:
        self.clock.forward(seconds)

    # What happens to replicas.

    async def expire(self, number: int) -> None:
        """A replica's claims run out: it stands still, or cannot reach the database to renew them."""
        await self.lives[number].expire(self.db)
        await self.expire_the_dead()

    async def outlive(self, number: int, loop: str, steps: int) -> None:
        """A replica stands still for longer than its claims last, and another one takes over."""
        await self.lives[number].look(loop, steps)
        await self.expire(number)
        await self.lives[1 - number].look(loop)

    async def crash(self, number: int, keeps_disk: bool, at_once: bool) -> None:
        """It ends where it is, and is started again: at once, or when its claims have run out."""
        await self.lives[number].end()
        if not keeps_disk:
            for path in (self.folder / f"spool-{number}").iterdir():
                path.unlink()
        self.lives[number] = await self.begin(number)
        if not at_once:
            await self.expire_the_dead()

    async def expire_the_dead(self) -> None:
        """The claims of replicas that are no more run out."""
        living = [fence for life in self.lives for fence in life.fences()]
        await expire_claims(self.db, claims.c.fence.not_in(living))

    # What must be so.

    @invariant()
    def check(self) -> None:
        if hasattr(self, "lives"):
            # Somebody may cancel one that is lost: it is not started again.
            check_moves(self.witness.read_moves(), "job", "queued", LEGAL, may_change=("lost",))
            jobs = {job["id"]: job for job in self.witness.ask("SELECT * FROM jobs")}
            self.check_jobs(jobs)
            self.check_slots(jobs)
            self.check_reports(jobs)
            assert [life.stops.trespasses for life in self.lives] == [[], []], "written under a claim of somebody else"
            assert [line for line in self.logs if line.get("exc_info")] == []

    def check_jobs(self, jobs: dict[str, Any]) -> None:
        assert {job["state"] for job in jobs.values()} <= {"queued", *ON_A_MACHINE, *ENDED}
        active = Counter(job["thread"] for job in jobs.values() if job["state"] not in ENDED)
        assert all(count == 1 for count in active.values()), f"issues with two active jobs: {active}"
        replaced = Counter(job["replaces"] for job in jobs.values() if job["replaces"])
        assert all(count == 1 for count in replaced.values()), f"replaced twice: {replaced}"
        assert all(jobs[job_id]["state"] == "lost" and not jobs[job_id]["replaces"] for job_id in replaced)
        starts = sum((machine.agent_starts for machine in self.machines.values()), Counter[str]())
        assert all(count == 1 for count in starts.values()), f"agents started twice: {starts}"

    def check_slots(self, jobs: dict[str, Any]) -> None:
        leases = self.witness.ask("SELECT * FROM leases")
        slots = Counter((lease["machine"], lease["slot"]) for lease in leases)
        assert all(count == 1 for count in slots.values()), f"two jobs in one slot: {slots}"
        assert all(0 <= slot < SLOTS[machine] for machine, slot in slots)
        held = {(lease["machine"], lease["job_id"]) for lease in leases}
        placed = {(job["machine"], job["id"]) for job in jobs.values() if job["state"] in ON_A_MACHINE}
        assert placed <= held, "a job works without a slot"
        # Of a job that has ended a slot is held for as long as its machine has not said that nothing of it is alive.
        assert all(jobs[job_id]["state"] != "queued" and jobs[job_id]["machine"] == name for name, job_id in held)
        owners = {name_environment(job_id): job_id for job_id in jobs}
        alive = {(name, owners.get(job_id, job_id)) for name, job_id, _ in self.list_alive()}
        assert alive <= held, "a slot was given back while something of its job was alive"

    def check_reports(self, jobs: dict[str, Any]) -> None:
        counted = Counter((reply["kind"], reply["job_id"]) for reply in self.witness.ask("SELECT * FROM replies"))
        for job_id, job in jobs.items():
            assert counted["status", job_id] == 1
            assert counted["report", job_id] <= (job["state"] in ENDED)

    def teardown(self) -> None:
        try:
            if hasattr(self, "lives"):
                self.runner.run(self.come_to_the_end())
                self.check()
                assert self.is_at_rest(), self.witness.ask("SELECT id, state, machine, trouble FROM jobs")
        finally:
            if hasattr(self, "runner"):
                self.runner.run(self.close())
                self.runner.close()

    async def come_to_the_end(self) -> None:
        """Everything is fixed, and every agent does its work."""
        for machine in self.machines.values():
            machine.mood = "well"
            await self.befall(machine.name, "resumed")
        await self.expire_the_dead()
        for _ in range(40):
            for life in self.lives:
                await life.look("supervisor")
                await life.look("outcomes")
            alive = self.list_alive()
            await self.end_well()
            if not alive and self.is_at_rest():
                return
            self.clock.forward(60)

    def is_at_rest(self) -> bool:
        """Whether every job has ended and has a report, and no slot is held any more."""
        reported = "SELECT job_id FROM replies WHERE kind = 'report'"
        unreported = self.witness.ask(f"SELECT id FROM jobs WHERE id NOT IN ({reported})")
        return not unreported and not self.witness.ask("SELECT job_id FROM leases")

    async def close(self) -> None:
        for life in getattr(self, "lives", []):
            await life.end()
        await self.stack.aclose()


TestJobs = pytest.mark.slow(pytest.mark.timeout(TIMEOUT_S)(Jobs.TestCase))
TestJobs.settings = choose_examples(8, steps=20)
