"""A machine as its protocol describes it, in memory: it does at once what it is asked, and nothing ends by itself.

For tests of orders of events, which a real machine would take minutes for. `tests/runner/test_jobd_*.py` hold the real
program to the same rules: a stage starts once, and never after `clean`.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.model.completed import Completed
from runner.model.job import FileChange
from runner.transport.host_errors import AccessDenied, HostError, Unreachable
from runner.transport.listening import Accept, Listening, Stream
from tests.support.patches import render_patch

BASE = "ab" * 20
CHANGE = FileChange("a.py", "100644", b"a = 1\n")
COLLECTED = {
    **{
        "report": "fix staged\n\n## Summary\nFixed.\n",
        "worklog": "looked",
        "pr_title": "Fix it",
        "repro": "import a",
    },
    **{"patch": render_patch([CHANGE]), "problems": []},
    "changes": [
        {"path": "a.py", "mode": "100644", "old_mode": None, "content": base64.b64encode(b"a = 1\n").decode()},
    ],
}

MOODS = ("well", "silent", "locked", "full", "stubborn", "forgetful")
"""How a machine may be: it does not answer, it refuses us, its disk is full, what runs there cannot be killed, or what
it answers does not reach us."""


@dataclass
class Stage:
    """One detached part of a job."""

    state: str = "running"
    result: dict[str, Any] = field(default_factory=dict)
    log: bytes = b""


class Refused(Exception):  # noqa: N818 - says what is the case
    """The machine says no; the arguments are the protocol's name for it, and why."""


class ModelMachine:
    """One machine; what people and fate do to it are its methods."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mood = "well"
        self.agent_starts = Counter[str]()
        """How often the agent of each job was started here."""
        self.stages = dict[str, dict[str, Stage]]()
        self.requests = dict[str, dict[str, Mapping[str, Any]]]()
        """What each stage of a job was started with."""
        self._ended = set[str]()

    def list_alive(self) -> list[tuple[str, str]]:
        """Job and stage of everything that runs here."""
        return [
            (job, name) for job, of in self.stages.items() for name, stage in of.items() if stage.state == "running"
        ]

    def end(self, job_id: str, stage: str, state: str, **result: Any) -> None:
        """A stage that runs comes to its end."""
        self.stages[job_id][stage].state = state
        self.stages[job_id][stage].result = result

    def reboot(self) -> None:
        """Nothing that ran is alive."""
        for job_id, stage in self.list_alive():
            self.end(job_id, stage, "lost")

    def ask(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked. Raises `HostError`."""
        if self.mood == "silent":
            raise Unreachable("it does not answer")
        if self.mood == "locked":
            raise AccessDenied("it does not accept our key")
        try:
            return {"ok": True, **_VERBS[verb](self, request)}
        except Refused as refused:
            code, message = refused.args
            return {"ok": False, "error": code, "message": message}

    def check_answer(self) -> None:
        """Raise `HostError` where no answer gets through."""
        if self.mood in ("silent", "forgetful"):
            raise Unreachable("the connection was lost")

    def _start(self, stage: str, request: Mapping[str, Any]) -> dict[str, Any]:
        job_id = request["job_id"]
        if job_id in self._ended:
            raise Refused("ended", "the job has ended, and its environment is gone")
        if self.mood == "full":
            raise Refused("disk_full", "the disk is full")
        stages = self.stages.setdefault(job_id, {})
        if stage in stages:
            return {"started": False}
        stages[stage] = Stage()
        self.requests.setdefault(job_id, {})[stage] = request
        return {"started": True}

    def _start_agent(self, request: Mapping[str, Any]) -> dict[str, Any]:
        prepared = self.stages.get(request["job_id"], {}).get("prepare", Stage())
        if prepared.state != "done":
            raise Refused("not_prepared", "the job's environment is not prepared")
        answer = self._start("agent", request)
        self.agent_starts[request["job_id"]] += answer["started"]
        return answer

    def _start_check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.stages.get(request["job_id"], {}).get("prepare", Stage()).state != "done":
            raise Refused("not_prepared", "the environment for the checks is not prepared")
        return self._start("check", request)

    def _poll(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stage = self.stages.get(request["job_id"], {}).get(request["stage"], Stage("absent"))
        piece = stage.log[request["log_offset"] :][: request["log_limit"]]
        shown = {"log": base64.b64encode(piece).decode(), "log_size": len(stage.log), "phase": "", "boot_id": "1"}
        return {"state": stage.state, "error": None, "message": None, "result": stage.result, **shown}

    def _collected(self, request: Mapping[str, Any]) -> dict[str, Any]:
        collect = self.stages.get(request["job_id"], {}).get("collect", Stage())
        if collect.state != "done":
            raise Refused("no_result", "nothing was collected")
        return collect.result

    def _kill(self, request: Mapping[str, Any]) -> dict[str, Any]:
        alive = [stage for job, stage in self.list_alive() if job == request["job_id"]]
        if self.mood == "stubborn":
            return {"alive": len(alive)}
        for stage in alive:
            self.end(request["job_id"], stage, "lost")
        return {"alive": 0}

    def _clean(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._ended.add(request["job_id"])
        if self._kill(request)["alive"]:
            raise Refused("still_alive", "a process of the job cannot be killed")
        self.stages.pop(request["job_id"], None)
        return {}


_VERBS: Mapping[str, Callable[[ModelMachine, Mapping[str, Any]], dict[str, Any]]] = {
    "inventory": lambda _machine, _request: {"gpus": [], "free_bytes": 10**12, "total_bytes": 10**12},
    "jobs": lambda machine, _request: {"jobs": [{"id": job_id, "mtime": 0} for job_id in machine.stages]},
    "prepare": lambda machine, request: machine._start("prepare", request),
    "start": ModelMachine._start_agent,
    "collect": lambda machine, request: machine._start("collect", request),
    "check": ModelMachine._start_check,
    "poll": ModelMachine._poll,
    "result": ModelMachine._collected,
    "stop": lambda _machine, _request: {},
    "notify": lambda _machine, _request: {"written": True},
    "kill": ModelMachine._kill,
    "clean": ModelMachine._clean,
}


class Mute:
    """A command that ends before it is asked anything: whoever wants to know has to `run` another."""

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError

    async def end(self) -> None: ...

    def abort(self) -> None: ...


class ModelWire:
    """The way of one replica to a machine. `gate` is passed with the request on its way, and with the answer."""

    def __init__(self, machine: ModelMachine, gate: Callable[[], Awaitable[None]]) -> None:
        self._machine = machine
        self._gate = gate

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        max_output_bytes: int = 64_000_000,
    ) -> Completed:
        await self._gate()
        try:
            answer = self._machine.ask(argv[-1], json.loads(stdin))
        except HostError:
            await self._gate()
            raise
        await self._gate()
        self._machine.check_answer()
        return Completed(0, json.dumps(answer).encode(), b"")

    async def begin(self, argv: Sequence[str]) -> Stream:
        return Mute()

    async def listen(self, path: str, accept: Accept) -> Listening:
        raise AssertionError("no agent here asks by a relay")

    async def close(self) -> None:
        pass
