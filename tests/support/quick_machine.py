"""A machine in the test's own process: our machine-side program, whose verbs are calls and whose stages are threads.

It is for stories about threads and rows. It has no SSH, no sandbox, no bases and no virtual environments, and it
refuses what would need them: a story about those takes a real machine. Agents, scripts and tests are real processes in
a real worktree, and the verbs, the carried edits and the collected change are the work of `runner/jobd` itself.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.jobd.environment.carry import apply_edits, find_held_back
from runner.jobd.environment.hide import hide
from runner.jobd.environment.home import expand_home, write_home_files
from runner.jobd.files import (
    Failure,
    JobPaths,
    describe,
    failure_answer,
    respond,
    try_lock,
    write_file,
)
from runner.jobd.git import GIT, find_clone, find_git_folders, git_environment, to_text
from runner.jobd.main import VERBS, find
from runner.jobd.requests import read_request
from runner.jobd.sandbox.processes import kill_processes
from runner.jobd.stages.command import StopConditions
from runner.jobd.stages.log import MARK
from runner.jobd.stages.states import LOOK_S, PollRequest, open_lock, read_state
from runner.jobd.stages.told import GOES_ON, is_told, take_messages
from runner.jobd.stages.tombstone import ended, not_ended
from runner.jobd.verbs.check import FREEZE, MAX_WORDS, SCRIPT, take_turns
from runner.jobd.verbs.collect import find_change, read_texts, restore
from runner.jobd.verbs.prepare import CONFLICTS
from runner.model.completed import Completed
from runner.model.machines import Machine
from runner.transport.host_errors import Unreachable
from runner.transport.hosts import Host
from runner.transport.listening import Accept, Listening, Stream

TICK_S = 0.02
GRACE_S = 1.0
SAID = "said"
"""The file of a job with what one run of a check has printed."""
UNSUPPORTED = (
    *("setup", "update", "smoke_test", "relay", "lint", "tail_glob", "drop_lines", "base_skills", "skill_folders"),
    *("rebuild", "companions"),
)
"""What of a request needs a real machine."""

Work = Callable[[JobPaths, Mapping[str, Any]], dict[str, Any]]


class QuickMachine:
    """One machine, for as many services as want to reach it. It has the outside of an `SshServer`."""

    def __init__(self, folder: Path) -> None:
        self.user, self.port = getpass.getuser(), 22
        self.client_key_file, self.known_hosts_file = folder / "client_key", folder / "known_hosts"
        folder.mkdir(parents=True, exist_ok=True)
        for file in (self.client_key_file, self.known_hosts_file):
            file.touch(mode=0o600)
        self.is_silent = False
        """Whether nobody can reach it."""
        self._stages: list[threading.Thread] = []

    def open_host(self, machine: Machine, silence_s: float) -> Host:
        """A way to it, as `runner.transport.hosts.open_host` gives one."""
        return _Wire(self)

    def ask(self, verb: str, body: bytes) -> dict[str, Any]:
        """The answer to a request."""
        return respond(lambda: self._find(verb)(read_request(verb, body)))

    async def close(self) -> None:
        """Wait for the stages, whose processes have been killed."""
        for stage in self._stages:
            await asyncio.to_thread(stage.join)

    def _find(self, verb: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        if verb in STAGES:
            return lambda request: self._start(verb, request)
        answer: Callable[[Mapping[str, Any]], Mapping[str, Any]] = ANSWERS.get(verb) or find(VERBS[verb])
        return answer

    def _start(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a stage once, as `runner.jobd.stages.starting` does."""
        refused = [name for name in UNSUPPORTED if request.get(name)]
        assert not refused, f"this story needs a real machine, for {', '.join(refused)}"
        (stage, work), job = STAGES[verb], JobPaths(request)
        with not_ended(job), ExitStack() as stack:
            if verb == "start" and read_state(job, "prepare")["state"] != "done":
                raise Failure("not_prepared", "the job's environment is not prepared")
            job.make_folders()
            lock = stack.enter_context(open_lock(job, stage))
            written = job.of_stage(stage, "request")
            if not try_lock(lock.fileno()) or written.exists():
                return {"started": False}
            job.of_stage(stage, "log").touch()
            written.write_text(json.dumps(request))
            held = stack.pop_all()
        thread = threading.Thread(target=_run_stage, args=(stage, work, job, request, held), daemon=True)
        self._stages.append(thread)
        thread.start()
        return {"started": True}


def _run_stage(stage: str, work: Work, job: JobPaths, request: Mapping[str, Any], lock: ExitStack) -> None:
    """Be a stage, up to its final state; as long as it lasts the lock is held."""
    with lock:
        try:
            final = {"state": "done", "result": work(job, request)}
        except Exception as error:
            final = {"state": "failed", **describe(error)}
        with suppress(FileNotFoundError):  # The job may have been cleaned meanwhile.
            write_file(job.of_stage(stage, "json"), json.dumps(final))


def _prepare(job: JobPaths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Check the commit out. There is no base: what is in the repository's own folder is nearer than any."""
    clone = find_clone(job, request["clone_url"])
    clone.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        clone.symlink_to(urlsplit(request["clone_url"]).path)
    name = request["base_commit"] or f"refs/heads/{request['base_branch']}"
    commit = _git(clone, "rev-parse", "--verify", f"{name}^{{commit}}")
    about = {"sealed": True, "way": "overlay", "gpus": request["gpus"]}
    write_file(job.environment_file, json.dumps(about))
    for folder in (job.output, job.tmp, job.home, job.worktree, job.venv / "bin"):
        folder.mkdir(mode=0o700, parents=True)
    (job.venv / "bin" / "python").symlink_to(sys.executable)
    index = {"GIT_WORK_TREE": str(job.worktree), "GIT_INDEX_FILE": str(job.control / "index")}
    _git(clone, "read-tree", "-u", "--reset", commit, **index)
    began, changes = request["changes_from"], request["changes"]
    conflicts = apply_edits(find_git_folders(job), commit, changes, request["timeout_s"], began) if changes else []
    if conflicts:
        write_file(job.output / CONFLICTS, "".join(f"{to_text(path)}\n" for path in conflicts))
    base = {"commit": commit, "made_at": time.time()}
    return {
        "base_commit": commit,
        "conflicts": [to_text(path) for path in conflicts],
        **about,
        "base": base,
        "took": {},
    }


def _git(clone: Path, *words: str, **env: str) -> str:
    command = [*GIT, f"--git-dir={clone}", "-c", "core.bare=false", *words]
    done = subprocess.run(command, cwd=clone, env=git_environment(**env), capture_output=True, text=True)
    if done.returncode:
        raise Failure("clone_failed", f"the repository could not be read: {done.stderr}")
    return done.stdout.strip()


def _run_agent(job: JobPaths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the agent until it ends, is stopped, or its time is over."""
    began = time.monotonic()
    prompt, log = job.root / "prompt.md", job.of_stage("agent", "log")
    write_file(prompt, request["prompt"])
    hide(job, request["hidden"], began + request["timeout_s"])
    write_home_files(job, request["files"])
    env = {**job.environment(), **{name: expand_home(job, value) for name, value in request["env"].items()}}
    stop = job.of_stage("agent", "stop")
    conditions = StopConditions(
        began + request["timeout_s"], stop, request["stop_grace_s"], is_told=partial(is_told, job)
    )
    argv, source = request["argv"], prompt if request["prompt_on_stdin"] else Path(os.devnull)
    while True:
        with log.open("ab") as output, source.open("rb") as stdin:
            process = subprocess.Popen(
                [expand_home(job, word) for word in argv],
                env=env,
                cwd=job.worktree,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        reason = _follow(process, conditions)
        kill_processes(job.id)
        status = process.wait()
        messages = take_messages(job, is_over=reason not in (None, "told") or stop.exists())
        if messages is None:
            break
        argv, source = messages.argv, job.told
        write_file(source, messages.prompt)
        with log.open("ab") as output:
            output.write(MARK + f"{GOES_ON}\n".encode())
    return {
        "exit_status": 128 - status if status < 0 else status,
        "timed_out": reason == "timed_out",
        "stopped": reason == "stopped",
        "objection": None,
        "doubt": None,
        "log_truncated": False,
        "run_s": time.monotonic() - began,
    }


def _follow(process: subprocess.Popen[bytes], conditions: StopConditions) -> str | None:
    """Wait until it has ended, or was told to end and its grace is over. Returns why it was told to."""
    descriptor = os.pidfd_open(process.pid)  # `Popen.wait` with a timeout looks again and again.
    try:
        while not select.select([descriptor], [], [], TICK_S)[0]:
            if reason := conditions.find_reason():
                os.killpg(process.pid, signal.SIGINT)
                select.select([descriptor], [], [], conditions.grace_s)
                return reason
        return None
    finally:
        os.close(descriptor)


def _collect(job: JobPaths, request: Mapping[str, Any]) -> dict[str, Any]:
    """What came of the run."""
    kill_processes(job.id)
    problems: list[str] = []
    folders, deadline = find_git_folders(job), time.monotonic() + request["timeout_s"]
    found: dict[str, Any] = {"changes": [], "patch": ""}
    try:
        restore(folders, request, find_held_back(job, request["max_changes"]), problems, deadline)
        found = find_change(folders, {**request, "left": ()}, problems, request["timeout_s"])
    finally:
        texts = read_texts(job.output, request["max_text_bytes"], problems)
        write_file(job.result, json.dumps({**found, **texts, "problems": problems}))
    return {}


def _check(job: JobPaths, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run everything in its order, each time in a copy of its own of what was prepared.

    A job that is cleaned meanwhile ends between two runs, or with the one at work.
    """
    prepared, changed = job.control / "prepared", job.control / "changed"
    with not_ended(job):
        job.worktree.rename(prepared)
    found: dict[str, list[dict[str, Any]]] = {}
    for run in take_turns(request["runs"], request["times"]):
        with not_ended(job):
            if run["changed"] and not changed.exists():
                _lay_out_copy(job, request, prepared, request["changes"])
                job.worktree.rename(changed)
            _lay_out_copy(job, request, changed if run["changed"] else prepared, run["edits"], run["frozen"])
            process = _begin_run(job, request, run)
        runs = found.setdefault(run["name"], [])
        title = f"{run['title']}, run {len(runs) + 1} of {request['times']}."
        runs.append(_end_run(process, job, request, title))
    return {"runs": found, "troubles": {}}


def _lay_out_copy(
    job: JobPaths, request: Mapping[str, Any], source: Path, edits: list[Mapping[str, Any]], frozen: Sequence[str] = ()
) -> None:
    """A worktree with edits, in place of the one before, and empty folders beside it."""
    for folder in (job.worktree, job.output, job.tmp, job.home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    shutil.copytree(source, job.worktree, symlinks=True, dirs_exist_ok=True)
    if frozen:
        words = [sys.executable, "-c", FREEZE, *frozen]
        subprocess.run(words, env=job.environment(), cwd=job.worktree, check=True)
    if edits:
        apply_edits(find_git_folders(job), request["base_commit"], edits, request["timeout_s"])


def _begin_run(job: JobPaths, request: Mapping[str, Any], run: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    argv = [*request["test_argv"], *run["words"]]
    if run["script"]:
        write_file(job.output / SCRIPT, run["script"])
        argv = [*request["script_argv"], str(job.output / SCRIPT)]
    with (job.control / SAID).open("wb") as output:
        return subprocess.Popen(
            argv,
            env=job.environment(),
            cwd=job.worktree,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end_run(process: subprocess.Popen[bytes], job: JobPaths, request: Mapping[str, Any], title: str) -> dict[str, Any]:
    reason = _follow(process, StopConditions(time.monotonic() + request["run_timeout_s"], None, GRACE_S))
    kill_processes(job.id)
    status = process.wait()
    with not_ended(job):
        said = (job.control / SAID).read_bytes()
        with job.of_stage("check", "log").open("ab") as log:
            log.write(MARK + f"[{title}]\n".encode() + said.replace(MARK, b""))
    words = said[-MAX_WORDS:].decode(errors="replace")
    return {"status": 128 - status if status < 0 else status, "timed_out": reason == "timed_out", "words": words}


def _clean(request: Mapping[str, Any]) -> dict[str, Any]:
    job = JobPaths(request)
    with ended(job):
        kill_processes(job.id)
        shutil.rmtree(job.folder, ignore_errors=True)
    return {}


STAGES: Mapping[str, tuple[str, Work]] = {
    "prepare": ("prepare", _prepare),
    "start": ("agent", _run_agent),
    "collect": ("collect", _collect),
    "check": ("check", _check),
}
"""The verbs that start a stage."""

ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "inventory": lambda _request: {"gpus": [], "sealed": True, "free_bytes": 10**12, "total_bytes": 10**12},
    "clean": _clean,
}
"""The verbs that answer in another way than on a real machine. The inventory says that jobs have a sandbox, so that the
service does not refuse what needs one."""


class _Wire:
    """The way of one service to the machine."""

    def __init__(self, machine: QuickMachine) -> None:
        self._machine = machine
        self._talks: list[_Talk] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        max_output_bytes: int = 64_000_000,
    ) -> Completed:
        self.require_answer()
        answer = await asyncio.to_thread(self._machine.ask, argv[-1], stdin)
        return Completed(0, json.dumps(answer).encode(), b"")

    async def begin(self, argv: Sequence[str]) -> Stream:
        self.require_answer()
        talk = _Talk(self)
        self._talks = [*(one for one in self._talks if not one.is_over), talk]
        return talk

    async def listen(self, path: str, accept: Accept) -> Listening:
        raise AssertionError("no agent here asks by a relay")

    async def close(self) -> None:
        for talk in self._talks:
            talk.abort()

    def require_answer(self) -> None:
        if self._machine.is_silent:
            raise Unreachable("it does not answer")


class _Talk:
    """What `runner.jobd.verbs.conversation` is on a real machine."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._said = asyncio.Queue[bytes]()
        self._answering = set[asyncio.Task[None]]()
        self.is_over = False

    async def read(self) -> bytes:
        return await self._said.get()

    async def write(self, data: bytes) -> None:
        if self.is_over:
            raise BrokenPipeError
        number, _, body = data.rstrip(b"\n").partition(b" ")
        task = asyncio.create_task(self._answer(number, body))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def end(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_over = True
        self._said.put_nowait(b"")
        for task in self._answering:
            task.cancel()

    async def _answer(self, number: bytes, body: bytes) -> None:
        try:
            question = PollRequest(read_request("poll", body))
        except Exception as fault:
            answer = failure_answer(fault)
        else:
            while not question.is_ready():
                await asyncio.sleep(LOOK_S)
            answer = respond(question.answer)
        try:
            self._wire.require_answer()
        except Unreachable:
            self.abort()
            return
        self._said.put_nowait(number + b" " + json.dumps(answer).encode() + b"\n")
