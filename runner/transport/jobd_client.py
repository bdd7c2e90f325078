"""Speaks with our machine-side program, `runner/jobd`, over a host, and puts it there first where it is missing.

It refuses to know how bytes travel, and what the verbs do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from runner.agents import Launch
from runner.aside import run_aside
from runner.model.completed import Completed
from runner.model.environment import Limits, Profile, Recipe
from runner.model.inventory import Inventory, parse_inventory
from runner.model.job import FileChange
from runner.model.jobd_answers import JobdError, Poll, is_missing, parse_answer, parse_poll, read_number, read_text
from runner.model.machines import Devices, Machine
from runner.rows.claims import require_claim
from runner.transport.conversation import MAX_ANSWER_BYTES, Conversation, ConversationLost
from runner.transport.hosts import Host
from runner.transport.jobd_program import INSTALL, build_program
from runner.transport.listening import Accept, CannotListen, Listening

log = structlog.get_logger()

PATIENCE_S: Mapping[str, float] = {
    **dict.fromkeys(("prepare", "start", "check", "result"), 300.0),
    **dict.fromkeys(("kill", "dismiss", "adopt"), 120.0),
    "clean": 600.0,
}
"""How long a verb may take, where that is longer than a minute: a large change takes its time to travel, and large
trees take theirs to go."""
MAX_RESULT_BYTES = 130_000_000
"""Of what was collected: a little more than the program's `MAX_JSON`, which bounds it there."""
MAX_FOLDERS = 1_000
MAX_VERSION = 200
"""Characters of what a program says of itself."""
MAX_CLAUSES = 20
"""What jobs can reach, as far as it is shown."""
MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (unix(7))."""

WAYS: Mapping[str, Sequence[str]] = {
    "auto": ("overlay", "copy", "slot"),
    **{way: (way,) for way in ("overlay", "copy", "slot")},
}
"""The ways in which a job's environment may come from its base, best first, by a machine's setting `environment`."""


@dataclass(frozen=True, slots=True)
class Version:
    """What the machine runs our program with."""

    python: str
    git: str | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Whether the machine can seal jobs from each other."""

    sealed: bool
    words: str
    """What works, or why it does not, as a clause for people."""
    way: str
    """How environments come from their bases there."""
    open: Sequence[str]
    """What jobs can reach nevertheless, as clauses for people."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Which programs a machine has."""

    now: float
    """By its own clock, in seconds since 1970."""
    versions: Mapping[str, str | None]
    """What each says of itself, a stranger's text; empty where it says nothing, None where it is not there."""


class JobdClient:
    """One machine's program. Every method raises `HostError` when it cannot be asked, `JobdError` when it says no."""

    def __init__(self, machine: Machine, host: Host) -> None:
        self._machine = machine
        self._host = host
        self._program = build_program()
        self._digest = hashlib.sha256(self._program).hexdigest()
        self._path = f"{machine.workspace}/jobd/{self._digest}"
        self._conversation = Conversation(lambda: host.begin(self._command("converse")))
        self._lost_in_a_row = 0

    def is_for(self, *, private: bool) -> bool:
        """Whether the machine serves private repositories, or public ones; it is not asked."""
        return self._machine.is_for(private=private)

    async def call(self, verb: str, **request: Any) -> dict[str, Any]:
        """Run one verb and return its answer."""
        return await self._call(verb, MAX_ANSWER_BYTES, request)

    async def _call(self, verb: str, max_bytes: int, request: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps({"workspace": self._machine.workspace, **request}).encode()
        completed = await self._run(verb, body, max_bytes)
        if is_missing(completed):
            await self._install()
            completed = await self._run(verb, body, max_bytes)
        return await run_aside(len(completed.stdout), parse_answer, completed)

    async def version(self) -> Version:
        """What the machine has; the cheapest way to learn whether it works."""
        answer = await self.call("version")
        git = answer.get("git")
        return Version(
            python=read_text(answer.get("python"), MAX_VERSION),
            git=None if git is None else read_text(git, MAX_VERSION),
        )

    async def capabilities(self) -> Capabilities:
        """Whether it can seal jobs, which is tried there and then."""
        answer = await self.call("capabilities")
        words, way = (read_text(answer.get(name)) for name in ("words", "way"))
        clauses = found if isinstance(found := answer.get("open"), list) else []
        reachable = [text for clause in clauses[:MAX_CLAUSES] if (text := read_text(clause))]
        return Capabilities(answer.get("sealed") is True, words, way, reachable)

    async def check(self) -> Inventory:
        """What there is on it. Raises `JobdError` also when jobs cannot run there as the operator wants."""
        answer = await self.call("inventory")
        if self._machine.sandbox == "required" and not (found := await self.capabilities()).sealed:
            raise JobdError("not_sealed", f"its configuration requires a sandbox, but jobs are {found.words}")
        try:
            return parse_inventory(answer)
        except ValueError as fault:
            raise JobdError("internal", f"the machine's answer about what it has makes no sense: {fault}") from None

    async def find_programs(self, programs: Sequence[str], versions: Sequence[str]) -> Programs:
        """Which of these programs are there; those of `versions` are started to say theirs."""
        answer = await self.call("programs", programs=list(programs), versions=list(versions))
        now, told = answer.get("now"), answer.get("programs")
        if not isinstance(now, float) or not math.isfinite(now) or not isinstance(told, dict):
            raise JobdError("internal", "the machine's answer about its programs makes no sense")
        said = {name: told.get(name) for name in (*programs, *versions)}
        return Programs(now, {name: None if word is None else read_text(word) for name, word in said.items()})

    async def list_jobs(self) -> tuple[str, ...]:
        """The jobs whose folders are there, the oldest first; of very many not all."""
        told = (await self.call("jobs")).get("jobs")
        if not isinstance(told, list):
            raise JobdError("internal", "the machine's answer about its jobs makes no sense")
        found = [read_text(job.get("id"), MAX_VERSION) for job in told[:MAX_FOLDERS] if isinstance(job, dict)]
        return tuple(job_id for job_id in found if re.fullmatch(r"[0-9a-f]{10}", job_id))

    async def prepare(
        self,
        job_id: str,
        recipe: Recipe,
        *,
        changes: Sequence[FileChange] = (),
        changes_from: str = "",
        held_back: Sequence[FileChange] = (),
        gpus: Devices = (),
    ) -> bool:
        """Start to make the job's worktree and virtual environment. False when that had been started before.

        From then on all commands of the job see these `gpus`, or all where none is given.
        The worktree has `changes` on top of the recipe's commit, merged where they begin from another one; `held_back`
        is written there when the result is collected, where the path is then still as in the commit.
        """
        answer = await self.call(
            "prepare",
            job_id=job_id,
            **self._encode_recipe(recipe, gpus),
            changes=[_encode_change(change) for change in changes],
            changes_from=changes_from,
            held_back=[_encode_change(change) for change in held_back],
        )
        return answer.get("started") is True

    async def make_base(self, job_id: str, recipe: Recipe, gpus: Devices = (), *, only_existing: bool = False) -> bool:
        """Start to make a repository's base, or to bring it to the recipe's commit. False when that was started."""
        recipe_fields = self._encode_recipe(recipe, gpus)
        answer = await self.call("base", job_id=job_id, only_existing=only_existing, **recipe_fields)
        return answer.get("started") is True

    async def start(
        self,
        job_id: str,
        launch: Launch,
        limits: Limits,
        *,
        prompt: str,
        relay: bool,
        base_skills: Mapping[str, str],
        base_commit: str,
    ) -> bool:
        """Start the agent, in a prepared environment. False when it had been started before.

        Below its home lie also `base_skills`: folders there, with the repository's, as `base_commit` has them. A
        `relay` leads it to who listens by `listen`, which must have been called.
        """
        answer = await self.call(
            "start",
            job_id=job_id,
            argv=launch.argv,
            env=dict(launch.env),
            prompt=prompt,
            prompt_on_stdin=launch.prompt_on_stdin,
            drop_lines=launch.drop_lines,
            hidden=launch.hidden,
            files={path: _encode(content) for path, content in launch.files.items()},
            settings=dict(launch.settings),
            relay=relay,
            base_skills=dict(base_skills),
            base_commit=base_commit,
            tail_glob=launch.tail.glob if launch.tail else "",
            tail_word=launch.tail.word if launch.tail else "",
            stop_grace_s=limits.stop_grace_s,
            max_disk_bytes=limits.max_disk_bytes,
            max_files=limits.max_files,
            orphan_after_s=limits.orphan_after_s,
            timeout_s=limits.timeout_s,
            max_log_bytes=limits.max_log_bytes,
        )
        return answer.get("started") is True

    async def collect(
        self,
        job_id: str,
        *,
        base_commit: str,
        hidden: Sequence[str],
        lint: Sequence[str],
        timeout_s: int,
        max_change_bytes: int,
        max_changes: int,
        max_text_bytes: int,
        max_log_bytes: int,
    ) -> bool:
        """Start to lint and to compute the change against `base_commit`. False when that had been started before.

        What was `hidden` from the agent is there again.
        """
        answer = await self.call(
            "collect",
            job_id=job_id,
            base_commit=base_commit,
            hidden=list(hidden),
            lint=list(lint),
            timeout_s=timeout_s,
            max_change_bytes=max_change_bytes,
            max_changes=max_changes,
            max_text_bytes=max_text_bytes,
            max_log_bytes=max_log_bytes,
        )
        return answer.get("started") is True

    async def start_checks(
        self,
        job_id: str,
        base_commit: str,
        changes: Sequence[FileChange],
        runs: Sequence[Sequence[Mapping[str, Any]]],
        profile: Profile,
    ) -> bool:
        """Start to run scripts and tests in an environment in which nothing has run. False when that was started."""
        how, limits = profile.verification, profile.limits
        answer = await self.call(
            "check",
            job_id=job_id,
            base_commit=base_commit,
            changes=[_encode_change(change) for change in changes],
            runs=[
                [{**run, "edits": [_encode_change(change) for change in run["edits"]]} for run in turns]
                for turns in runs
            ],
            times=how.runs,
            script_argv=_as_prefix(how.script),
            test_argv=_as_prefix(how.tests),
            rebuild=how.rebuild,
            run_timeout_s=limits.repro_timeout_s,
            max_disk_bytes=limits.max_disk_bytes,
            max_files=limits.max_files,
            orphan_after_s=limits.orphan_after_s,
            timeout_s=limits.verify_timeout_s,
            max_log_bytes=limits.max_log_bytes,
        )
        return answer.get("started") is True

    async def poll(
        self, job_id: str, stage: str, *, log_offset: int = 0, log_limit: int = 65_536, wait_s: float = 0.0
    ) -> Poll:
        """How a stage stands, with at most `log_limit` bytes of its log from `log_offset` on.

        While the stage runs and there is nothing new, the machine waits up to `wait_s` seconds for it.
        """
        what = {"log_offset": log_offset, "log_limit": log_limit, "wait_ms": int(wait_s * 1000)}
        return parse_poll(await self._ask({"job_id": job_id, "stage": stage, **what}, wait_s))

    async def result(self, job_id: str, max_bytes: int = MAX_RESULT_BYTES) -> dict[str, Any]:
        """What was collected. Written by an agent: to be checked field by field."""
        return await self._call("result", min(max_bytes, MAX_RESULT_BYTES), {"job_id": job_id})

    async def listen(self, job_id: str, accept: Accept) -> Listening:
        """Be the one to whom the job's relay leads, as long as the connection to the machine lives."""
        answer = await self.call("relay", job_id=job_id)
        path = read_text(answer.get("path"), MAX_SOCKET_PATH + 1)
        if not path or len(path.encode()) > MAX_SOCKET_PATH:
            raise JobdError("no_relay", "the machine named no socket for the way to the gateway")
        try:
            return await self._host.listen(path, accept)
        except CannotListen as error:
            raise JobdError("no_relay", f"the gateway cannot be reached from the machine: {error}") from error

    async def stop(self, job_id: str) -> None:
        """Tell the agent to end, for which it has its grace. Nothing happens when it has ended, or never began."""
        await self.call("stop", job_id=job_id)

    async def notify(self, job_id: str, text: str) -> None:
        """Leave a text for the agent, in place of an earlier one. It sees it when it runs its next command."""
        await self.call("notify", job_id=job_id, text=text)

    async def kill(self, job_id: str) -> int:
        """Kill everything that belongs to the job. Returns how many of its processes are still alive."""
        answer = await self.call("kill", job_id=job_id)
        try:
            return read_number(answer.get("alive"))
        except ValueError:
            raise JobdError("internal", "the machine did not say what is still alive") from None

    async def admit(self, job_id: str, public_key: str, lasts_s: int, context: str) -> None:
        """Let whoever has this key into the job, and nobody else any more, for so many seconds; and tell them of it."""
        await self.call("admit", job_id=job_id, public_key=public_key, lasts_s=lasts_s, context=context)

    async def dismiss(self, job_id: str) -> None:
        """Let nobody into the job any more, and end what whoever is in there has begun."""
        await self.call("dismiss", job_id=job_id)

    async def adopt(self, job_id: str, earlier: str) -> None:
        """Give the environment of an earlier job, as it is, to this one. From then on that has ended for good."""
        await self.call("adopt", job_id=job_id, earlier=earlier)

    async def clean(self, job_id: str) -> None:
        """Kill everything that belongs to the job, and remove its folder."""
        await self.call("clean", job_id=job_id)

    def _encode_recipe(self, recipe: Recipe, gpus: Devices) -> dict[str, Any]:
        return {
            **asdict(recipe),
            "ways": WAYS[self._machine.environment],
            "must_seal": self._machine.sandbox == "required",
            "private": self._machine.private,
            "gpus": dict(gpus),
        }

    async def _ask(self, question: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """What `poll` answers. It is asked so often that no program is started for it, unless that is of no use."""
        require_claim(0)
        body = json.dumps({"workspace": self._machine.workspace, **question}).encode()
        try:
            answer = await self._conversation.ask(body, wait_s)
        except ConversationLost as lost:
            self._lost_in_a_row += 1
            if self._lost_in_a_row == 2:  # Once is how a program that is new there and a cut connection look, too.
                log.warning("machine.conversation_lost", machine=self._machine.name, reason=str(lost))
            return await self.call("poll", **question)
        self._lost_in_a_row = 0
        return await run_aside(len(answer), parse_answer, Completed(0, answer, b""))

    async def _run(self, verb: str, body: bytes, limit: int) -> Completed:
        require_claim(0)
        patience_s = PATIENCE_S.get(verb, 60.0)
        return await self._host.run(self._command(verb), stdin=body, timeout_s=patience_s, max_output_bytes=limit)

    def _command(self, verb: str) -> list[str]:
        return [self._machine.python, "-I", self._path, verb]

    async def _install(self) -> None:
        argv = [self._machine.python, "-I", "-c", INSTALL, self._path, self._digest]
        parse_answer(await self._host.run(argv, stdin=self._program))


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _as_prefix(command: str) -> list[str]:
    """An operator's shell line as the beginning of a command, behind which words can be put."""
    return ["/bin/sh", "-ec", f'{command} "$@"', "sh"]


def _encode_change(change: FileChange) -> dict[str, str | None]:
    content = None if change.content is None else _encode(change.content)
    return {"path": change.path, "mode": change.mode, "content": content, "old_mode": change.old_mode}
