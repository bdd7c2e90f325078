"""The client of the program on each machine, `runner/jobd`. It installs the program if it is missing.

It knows neither how bytes travel nor what the verbs do.
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
from runner.model.environment import Companion, Limits, Profile, Recipe
from runner.model.inventory import Inventory, parse_inventory
from runner.model.job import FileChange
from runner.model.jobd_answers import (
    MAX_WORKLOG,
    SAYS,
    JobdError,
    Poll,
    is_missing,
    parse_answer,
    parse_poll,
    read_number,
    read_text,
)
from runner.model.machines import Gpu, Machine
from runner.rows.claims import require_claim
from runner.transport.conversation import MAX_ANSWER_BYTES, Conversation, ConversationLost
from runner.transport.hosts import Host
from runner.transport.jobd_program import INSTALL, build_program
from runner.transport.listening import Accept, CannotListen, Listening

log = structlog.get_logger()

TIMEOUTS_S: Mapping[str, float] = {
    **dict.fromkeys(("prepare", "start", "check", "result"), 300.0),
    **dict.fromkeys(("kill", "dismiss", "adopt"), 120.0),
    "clean": 600.0,
}
"""The time-outs of verbs, in seconds, if longer than a minute: large changes take long to transfer, and large trees to
delete."""
MAX_RESULT_BYTES = 130_000_000
"""The size limit of a result: a little more than the program's own limit, `MAX_JSON`."""
MAX_FOLDERS = 1_000
"""The most jobs that a machine lists."""
MAX_VERSION = 200
"""The most characters of a program's version."""
MAX_CLAUSES = 20
"""The most clauses that `Capabilities.open` has."""
MAX_SOCKET_PATH = 107
"""The most bytes of a Unix socket's path (unix(7))."""

WAYS: Mapping[str, Sequence[str]] = {
    "auto": ("overlay", "copy", "slot"),
    **{way: (way,) for way in ("overlay", "copy", "slot")},
}
"""The methods for a job's environment, best first, by a machine's setting `environment`."""


@dataclass(frozen=True, slots=True)
class Version:
    """The versions that jobd runs with."""

    python: str
    git: str | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a machine can do to isolate jobs."""

    sealed: bool
    words: str
    """The sandbox's features, or why there is none, as a clause for people."""
    way: str
    """The method for environments on this machine."""
    open: Sequence[str]
    """What jobs can still reach, as clauses for people."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs on a machine."""

    now: float
    """The machine's clock, in seconds since 1970."""
    versions: Mapping[str, str | None]
    """What each program prints as its version, untrusted. Empty if it prints none, None if the program is missing."""


class JobdClient:
    """The program on one machine. Methods raise `HostError` if it cannot be reached, and `JobdError` if it refuses."""

    def __init__(self, machine: Machine, host: Host) -> None:
        self._machine = machine
        self._host = host
        self._program = build_program()
        self._digest = hashlib.sha256(self._program).hexdigest()
        self._path = f"{machine.workspace}/jobd/{self._digest}"
        self._conversation = Conversation(lambda: host.begin(self._command("converse")))
        self._lost_in_a_row = 0

    def is_for(self, *, private: bool) -> bool:
        """Whether the machine serves private, or public, repositories. Does not contact it."""
        return self._machine.is_for(private=private)

    async def call(self, verb: str, *, max_bytes: int = MAX_ANSWER_BYTES, **request: Any) -> dict[str, Any]:
        """Run one verb and return its answer, which has at most `max_bytes`."""
        body = json.dumps({"workspace": self._machine.workspace, **request}).encode()
        completed = await self._run(verb, body, max_bytes)
        if is_missing(completed):
            await self._install()
            completed = await self._run(verb, body, max_bytes)
        return await run_aside(len(completed.stdout), parse_answer, completed)

    async def version(self) -> Version:
        """The versions that jobd runs with. The cheapest test of a machine."""
        answer = await self.call("version")
        git = answer.get("git")
        return Version(
            python=read_text(answer.get("python"), MAX_VERSION),
            git=None if git is None else read_text(git, MAX_VERSION),
        )

    async def capabilities(self) -> Capabilities:
        """Try whether the machine can isolate jobs."""
        answer = await self.call("capabilities")
        words, way = (read_text(answer.get(name)) for name in ("words", "way"))
        clauses = found if isinstance(found := answer.get("open"), list) else []
        reachable = [text for clause in clauses[:MAX_CLAUSES] if (text := read_text(clause))]
        return Capabilities(answer.get("sealed") is True, words, way, reachable)

    async def check(self) -> Inventory:
        """The machine's inventory.

        Raises `JobdError` also if the machine lacks a sandbox that its operator requires.
        """
        answer = await self.call("inventory")
        if self._machine.sandbox == "required" and not (found := await self.capabilities()).sealed:
            raise JobdError("not_sealed", f"its configuration requires a sandbox, but {SAYS}jobs are {found.words}")
        try:
            return parse_inventory(answer)
        except ValueError as error:
            raise JobdError("internal", f"the machine's inventory is invalid: {error}") from None

    async def find_programs(self, programs: Sequence[str], versions: Sequence[str]) -> Programs:
        """Which of these programs exist. Those in `versions` are started to print their version."""
        answer = await self.call("programs", programs=list(programs), versions=list(versions))
        now, told = answer.get("now"), answer.get("programs")
        if not isinstance(now, float) or not math.isfinite(now) or not isinstance(told, dict):
            raise JobdError("internal", "the machine's answer about its programs is invalid")
        said = {name: told.get(name) for name in (*programs, *versions)}
        return Programs(now, {name: None if word is None else read_text(word) for name, word in said.items()})

    async def list_jobs(self) -> tuple[str, ...]:
        """The ids of the jobs with folders on the machine, oldest first, up to a limit."""
        told = (await self.call("jobs")).get("jobs")
        if not isinstance(told, list):
            raise JobdError("internal", "the machine's answer about its jobs is invalid")
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
        companions: Sequence[Companion] = (),
        gpus: Sequence[Gpu] = (),
    ) -> bool:
        """Start to make the job's worktree and virtual environment. Returns False if it was started before.

        The job's commands see only these `gpus`, or all GPUs if none is given. `changes` are applied on top of the
        recipe's commit, and merged if they were made on the commit `changes_from`. `held_back` is applied when the
        result is collected, to paths that are unchanged by then. The files of `companions` can be read.
        """
        answer = await self.call(
            "prepare",
            job_id=job_id,
            **self._encode_recipe(recipe, gpus),
            changes=[_encode_change(change) for change in changes],
            changes_from=changes_from,
            held_back=[_encode_change(change) for change in held_back],
            companions=[asdict(companion) for companion in companions],
        )
        return answer.get("started") is True

    async def make_base(
        self, job_id: str, recipe: Recipe, gpus: Sequence[Gpu] = (), *, only_existing: bool = False
    ) -> bool:
        """Start to build a repository's base or to bring it to the recipe's commit.

        Returns False if it was started before.
        """
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
        skill_folders: Mapping[str, str],
        base_commit: str,
        told: int = 0,
    ) -> bool:
        """Start the agent in a prepared environment. Returns False if it was started before.

        `base_skills` and `skill_folders` are as in `runner.agents.skills.SkillPlaces`. They are copied as in
        `base_commit`. A `relay` forwards to the socket of `listen`, which must have been called. `told` is the number
        of the last message in the prompt.
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
            skill_folders=dict(skill_folders),
            base_commit=base_commit,
            told=told,
            tail_glob=launch.tail.glob if launch.tail else "",
            tail_word=launch.tail.word if launch.tail else "",
            stop_grace_s=limits.stop_grace_s,
            **_encode_limits(limits, limits.timeout_s),
        )
        return answer.get("started") is True

    async def collect(
        self,
        job_id: str,
        *,
        base_commit: str,
        hidden: Sequence[str],
        lint: Sequence[str],
        limits: Limits,
    ) -> bool:
        """Start to lint and to compute the change against `base_commit`. Returns False if it was started before.

        Files that were `hidden` from the agent are restored first.
        """
        answer = await self.call(
            "collect",
            job_id=job_id,
            base_commit=base_commit,
            hidden=list(hidden),
            lint=list(lint),
            max_change_bytes=limits.max_change_bytes,
            max_changes=limits.max_changes,
            max_text_bytes=limits.max_text_bytes,
            **_encode_limits(limits, limits.collect_timeout_s),
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
        """Start to run scripts and tests in a fresh environment. Returns False if they were started before."""
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
            **_encode_limits(limits, limits.verify_timeout_s),
        )
        return answer.get("started") is True

    async def poll(
        self,
        job_id: str,
        stage: str,
        *,
        log_offset: int = 0,
        log_limit: int = 65_536,
        wait_s: float = 0.0,
        worklog_mark: str | None = None,
    ) -> Poll:
        """The state of a stage, with at most `log_limit` bytes of its log from `log_offset` on.

        While the stage runs and there is nothing new, the machine waits up to `wait_s` seconds. With `worklog_mark`,
        the answer also has the agent's worklog, unless the worklog still has this mark.
        """
        piece = {"log_offset": log_offset, "log_limit": log_limit, "wait_ms": int(wait_s * 1000)}
        limit = 0 if worklog_mark is None else MAX_WORKLOG
        worklog = {"worklog_mark": worklog_mark or "", "worklog_limit": limit}
        return parse_poll(await self._ask({"job_id": job_id, "stage": stage, **piece, **worklog}, wait_s))

    async def result(self, job_id: str, max_bytes: int = MAX_RESULT_BYTES) -> dict[str, Any]:
        """The collected result. An agent may have written any of it, so each field must be checked."""
        return await self.call("result", max_bytes=min(max_bytes, MAX_RESULT_BYTES), job_id=job_id)

    async def listen(self, job_id: str, accept: Accept) -> Listening:
        """Accept connections from the job's relay, while the connection to the machine lives."""
        answer = await self.call("relay", job_id=job_id)
        path = read_text(answer.get("path"), MAX_SOCKET_PATH + 1)
        if not path or len(path.encode()) > MAX_SOCKET_PATH:
            raise JobdError("no_relay", "the machine named no socket for the gateway")
        try:
            return await self._host.listen(path, accept)
        except CannotListen as error:
            raise JobdError("no_relay", f"the gateway cannot be reached from the machine: {error}") from error

    async def stop(self, job_id: str) -> None:
        """Tell the agent to end within its grace period. Does nothing if it has ended or never started."""
        await self.call("stop", job_id=job_id)

    async def notify(self, job_id: str, text: str) -> None:
        """Leave a message for the agent, in place of an earlier one.

        The agent sees it when it runs its next command.
        """
        await self.call("notify", job_id=job_id, text=text)

    async def tell(self, job_id: str, number: int, text: str, argv: Sequence[str], process: int) -> bool:
        """Leave a message for the running agent. The agent gets it once, even if it is left again under its `number`.

        The agent's session is resumed with the command line `argv`. If `argv` is empty, the message is added to the
        file that the agent reads. `process` says how many processes of the session have ended. Returns False if the
        agent has not begun or has ended, or if its session has another process.
        """
        answer = await self.call("tell", job_id=job_id, number=number, process=process, text=text, argv=list(argv))
        return answer.get("taken") is True

    async def kill(self, job_id: str) -> int:
        """Kill all processes of the job. Returns how many are still alive."""
        answer = await self.call("kill", job_id=job_id)
        try:
            return read_number(answer.get("alive"))
        except ValueError:
            raise JobdError("internal", "the machine did not say what is still alive") from None

    async def admit(self, job_id: str, public_key: str, lasts_s: int, context: str) -> None:
        """Give only this key access to the job, for `lasts_s` seconds. `context` is a text for the key's owner."""
        await self.call("admit", job_id=job_id, public_key=public_key, lasts_s=lasts_s, context=context)

    async def dismiss(self, job_id: str) -> None:
        """Remove everybody's access to the job, and end their processes."""
        await self.call("dismiss", job_id=job_id)

    async def adopt(self, job_id: str, earlier: str) -> None:
        """Pass the environment of an earlier job, as it is, to this one. The earlier job is then ended for good."""
        await self.call("adopt", job_id=job_id, earlier=earlier)

    async def clean(self, job_id: str) -> None:
        """Kill all processes of the job, and remove its folder."""
        await self.call("clean", job_id=job_id)

    def _encode_recipe(self, recipe: Recipe, gpus: Sequence[Gpu]) -> dict[str, Any]:
        return {
            **asdict(recipe),
            "ways": WAYS[self._machine.environment],
            "must_seal": self._machine.sandbox == "required",
            "private": self._machine.private,
            "writable": self._machine.writable,
            "gpus": [{"vendor": gpu.vendor, "id": gpu.id, "files": gpu.files} for gpu in gpus],
        }

    async def _ask(self, question: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        """Send a `poll` through the conversation, because polls are frequent. Start a program only if that fails."""
        require_claim(0)
        body = json.dumps({"workspace": self._machine.workspace, **question}).encode()
        try:
            answer = await self._conversation.ask(body, wait_s)
        except ConversationLost as lost:
            self._lost_in_a_row += 1
            if self._lost_in_a_row == 2:  # A single loss is normal after an installation or a cut connection.
                log.warning("machine.conversation_lost", machine=self._machine.name, reason=str(lost))
            return await self.call("poll", **question)
        self._lost_in_a_row = 0
        return await run_aside(len(answer), parse_answer, Completed(0, answer, b""))

    async def _run(self, verb: str, body: bytes, limit: int) -> Completed:
        require_claim(0)
        timeout_s = TIMEOUTS_S.get(verb, 60.0)
        return await self._host.run(self._command(verb), stdin=body, timeout_s=timeout_s, max_output_bytes=limit)

    def _command(self, verb: str) -> list[str]:
        return [self._machine.python, "-I", "-S", self._path, verb]

    async def _install(self) -> None:
        argv = [self._machine.python, "-I", "-S", "-c", INSTALL, self._path, self._digest]
        completed = await self._host.run(argv, stdin=self._program, max_output_bytes=MAX_ANSWER_BYTES)
        await run_aside(len(completed.stdout), parse_answer, completed)


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _as_prefix(command: str) -> list[str]:
    """An operator's shell line as the beginning of a command, to which arguments can be appended."""
    return ["/bin/sh", "-ec", f'{command} "$@"', "sh"]


def _encode_limits(limits: Limits, timeout_s: int) -> dict[str, int]:
    """The limits of a stage whose disk usage is watched, and which may take `timeout_s` seconds."""
    return {
        "timeout_s": timeout_s,
        "max_log_bytes": limits.max_log_bytes,
        "max_disk_bytes": limits.max_disk_bytes,
        "max_files": limits.max_files,
        "orphan_after_s": limits.orphan_after_s,
    }


def _encode_change(change: FileChange) -> dict[str, str | None]:
    content = None if change.content is None else _encode(change.content)
    return {"path": change.path, "mode": change.mode, "content": content, "old_mode": change.old_mode}
