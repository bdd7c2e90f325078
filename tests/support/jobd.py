"""The machine-side program as a machine has it: a folder that Python runs, with real git and real processes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.jobd.environment.environment import find_tree
from runner.jobd.environment.trees import WAYS
from runner.jobd.files import JobPaths, try_lock
from runner.jobd.sandbox.processes import read_whole
from runner.jobd.stages.states import find_result, open_lock, poll
from tests.support.warm_program import Call, be_on_machine, unpack_program, warm_program

PATIENCE_S = 60.0

PREPARE: Mapping[str, Any] = {
    **{"trunk": "main", "base_branch": "main", "base_commit": "", "changes": [], "changes_from": ""},
    **{"held_back": [], "companions": []},
    **{"create_venv": ["/bin/mkdir"], "setup": [], "update": [], "smoke_test": [], "imports": [], "submodules": False},
    **{"network": "host", "must_seal": False, "private": [], "writable": [], "gpus": [], "slot": 0, "ways": [*WAYS]},
    **{"base_timeout_s": 60, "git": {}, "relay": False},
}
WATCHED: Mapping[str, Any] = {"max_disk_bytes": 10**9, "max_files": 100_000, "orphan_after_s": 1_800}
START: Mapping[str, Any] = {
    **{"prompt_on_stdin": False, "drop_lines": [], "hidden": [], "files": {}, "base_skills": {}, "skill_folders": {}},
    **{"base_commit": "", "settings": {}, "relay": False, "told": 0},
    **{"tail_glob": "", "tail_word": "", "stop_grace_s": 1},
    **WATCHED,
}
POLL: Mapping[str, Any] = {
    **{"log_offset": 0, "log_limit": 1_000_000, "wait_ms": 0},
    **{"worklog_mark": "", "worklog_limit": 0},
}
LIMITS: Mapping[str, Any] = {"timeout_s": 20, "max_log_bytes": 100_000}
COLLECT: Mapping[str, Any] = {
    **{"hidden": [], "lint": []},
    **{"max_change_bytes": 100_000, "max_changes": 50, "max_text_bytes": 10_000},
    **WATCHED,
    **LIMITS,
}

GIT = (
    "git",
    "-c",
    "safe.directory=*",
    "-c",
    "user.name=Test",
    "-c",
    "user.email=test@example.org",
    "-c",
    "protocol.file.allow=always",
)


@dataclass(frozen=True)
class Repository:
    """A repository that a job may clone."""

    folder: Path

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def git(self, *words: str) -> str:
        run = subprocess.run([*GIT, *words], cwd=self.folder, check=True, capture_output=True, text=True)
        return run.stdout.strip()

    def commit(self, files: Mapping[str, str | bytes] | None = None) -> str:
        """Write files, commit all there is, and return the commit."""
        for name, content in (files or {}).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")


def make_repository(folder: Path, files: Mapping[str, str | bytes] | None = None) -> Repository:
    """One with a branch `main` of one commit."""
    folder.mkdir()
    repository = Repository(folder)
    repository.git("init", "--quiet", "--template=", "--initial-branch=main")
    repository.commit(
        files if files is not None else {"a.txt": "one\ntwo\nthree\n", "b.txt": "bee\n", "dir/c.txt": "sea\n"}
    )
    return repository


class Jobd:
    """The program, called as a service calls it, and one job of a repository."""

    def __init__(self, folder: Path, repository: Repository, env: Mapping[str, str] | None = None) -> None:
        self.can_seal = True
        """Whether the machine lets the program make namespaces, where it can at all."""
        self.python = sys.executable
        self.is_warm = True
        """Whether a call may be made by a process that has imported the program already."""
        self.account: int | None = None
        """Whose account it has on its machine; None for ours."""
        self.program = folder / "jobd"
        self.workspace = folder / "workspace"
        self.repository = repository
        # Processes are found by it on the whole machine, and so by tests that run at the same time.
        self.job_id = secrets.token_hex(5)
        self.env = {**os.environ, **(env or {})}
        self.folder = self.workspace / "jobs" / self.job_id
        self.root = self.folder / "files"
        self.control = self.folder / "control"
        self.workspace.mkdir(exist_ok=True)
        if not self.program.exists():  # Otherwise somebody may just be reading it.
            self.program.symlink_to(unpack_program())

    def beside(self) -> Jobd:
        """Another job on the same machine."""
        other = Jobd(self.program.parent, self.repository, self.env)
        other.can_seal, other.account, other.python = self.can_seal, self.account, self.python
        other.is_warm = self.is_warm
        return other

    @property
    def job(self) -> JobPaths:
        return JobPaths({"workspace": str(self.workspace), "job_id": self.job_id})

    @property
    def place(self) -> Path:
        return self.job.place

    @property
    def worktree(self) -> Path:
        return self.job.worktree

    def find(self, path: str) -> Path:
        """A file of the worktree, where it really lies while nobody sees the worktree. It must not be changed."""
        tree = find_tree(self.job)
        if tree is None:
            return self.worktree / path
        folders = [tree.place if tree.way == "slot" else tree.content, *tree.layers]
        found = (Path(os.path.normpath(folder / "worktree" / path)) for folder in folders)
        return next((path for path in found if os.path.lexists(path)), self.worktree / path)

    def write(self, path: str, text: str) -> None:
        """Write into the worktree while nobody sees it."""
        tree = find_tree(self.job)
        assert tree
        file = (tree.place if tree.way == "slot" else tree.content) / "worktree" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def be_its_machine(self) -> None:
        """Have the rights that the program has there."""
        be_on_machine(self.account, can_seal=self.can_seal)

    def popen(self, verb: str, **options: Any) -> subprocess.Popen[bytes]:
        """The program at work, not yet told what to do."""
        return subprocess.Popen(
            [self.python, "-I", "-S", str(self.program), verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
            preexec_fn=self.be_its_machine,
            **options,
        )

    def send(self, verb: str, body: bytes) -> dict[str, Any]:
        """Any bytes as a request. There is one line of answer, and the exit status says that it is one."""
        status, out = self._call(verb, body)
        assert status == 0
        (line,) = out.splitlines()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _call(self, verb: str, body: bytes) -> tuple[int, bytes]:
        if self.is_warm and self.python == sys.executable:
            call = Call([str(self.program), verb], self.env, self.account, self.can_seal)
            return warm_program().call(call, body, PATIENCE_S)
        with self.popen(verb) as process:
            try:
                out, _ = process.communicate(body, timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return process.returncode, out

    def body(self, **request: Any) -> bytes:
        return json.dumps({"workspace": str(self.workspace), "job_id": self.job_id, **request}).encode()

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        """A request, and its answer of either kind."""
        return self.send(verb, self.body(**request))

    def call(self, verb: str, **request: Any) -> dict[str, Any]:
        """A request that is not refused."""
        answer = self.ask(verb, **request)
        assert answer["ok"], answer
        return answer

    def poll(self, stage: str, **asked: Any) -> dict[str, Any]:
        """How a stage stands, with its log as bytes."""
        answer = self.call("poll", stage=stage, **{**POLL, **asked})
        return {**answer, "log": base64.b64decode(answer["log"])}

    def wait(self, stage: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """How a stage stands once it has ended."""
        request = json.loads(self.body(stage=stage, **POLL))
        deadline = time.monotonic() + patience_s
        while (answer := poll(request))["state"] == "running":
            self._wait_for_end(stage, deadline)
            assert time.monotonic() < deadline, answer
        return {**answer, "log": base64.b64decode(answer["log"])}

    def _wait_for_end(self, stage: str, deadline: float) -> None:
        """Wait until a stage has probably ended. This looks at its lock: a poll takes a hundred times as long."""
        time.sleep(0.01)
        final = self.job.of_stage(stage, "json")
        with suppress(OSError), open_lock(self.job, stage) as lock:
            while not os.path.lexists(final) and not try_lock(lock.fileno(), fcntl.LOCK_SH):
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.01)

    def result(self) -> dict[str, Any]:
        """What was collected."""
        return find_result(json.loads(self.body()))

    def prepare_request(self, **changes: Any) -> dict[str, Any]:
        return {"clone_url": self.repository.url, **PREPARE, **LIMITS, **changes}

    def prepare(self, **changes: Any) -> dict[str, Any]:
        self.call("prepare", **self.prepare_request(**changes))
        return self.wait("prepare")

    def start(self, agent: str, **changes: Any) -> None:
        """Start an agent, given as a shell script."""
        request = {"argv": ["/bin/sh", "-ec", agent], "env": {}, "prompt": "Fix it.\n", "look_every_s": 0.2}
        request |= {**START, **LIMITS, **changes}
        assert self.call("start", **request)["started"] is True

    def agent(self, agent: str, **changes: Any) -> dict[str, Any]:
        self.start(agent, **changes)
        return self.wait("agent")

    def collect(self, **changes: Any) -> dict[str, Any]:
        base_commit = self.repository.git("rev-parse", "main")
        self.call("collect", **{"base_commit": base_commit, **COLLECT, **changes})
        return self.wait("collect")

    def run(self, agent: str, **collect: Any) -> Change:
        """A whole job, in which nothing fails, and what it changed."""
        assert self.prepare()["state"] == "done"
        ended = self.agent(agent)
        assert ended["result"]["exit_status"] == 0, ended["log"].decode()
        collected = self.collect(**collect)
        assert collected["state"] == "done", (collected["error"], collected["message"])
        return Change(self.result())


class Change:
    """What was collected."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.result = result
        self.patch: str = result["patch"]
        self.problems: list[str] = result["problems"]
        self.modes: dict[str, str | None] = {change["path"]: change["mode"] for change in result["changes"]}
        self.contents: dict[str, bytes | None] = {
            change["path"]: None if change["content"] is None else base64.b64decode(change["content"])
            for change in result["changes"]
        }


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that will be so in a moment. Most conditions ask a process, so the pauses become longer."""
    deadline, pause_s = time.monotonic() + PATIENCE_S, 0.01
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.1)


def processes_with(mark: str) -> list[int]:
    """The processes, zombies not counted, on whose command line a word stands."""
    found, word = [], mark.encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - called very often
        with suppress(OSError):
            line = read_whole(f"/proc/{name}/cmdline")
            if word in line and word in line.split(b"\0"):
                found.append(int(name))
    return found


def find_first(processes: Collection[int]) -> int:
    """The one of them that none of the others has begun. Their numbers do not say it: they begin again at the end."""
    (first,) = [pid for pid in processes if _find_parent(pid) not in processes]
    return first


def _find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
