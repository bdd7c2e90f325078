"""The stage `agent`: runs the coding agent in the worktree until it ends, is stopped, or its time is over.

If a maintainer tells the agent something (`stages.told`), its process is ended in the same way as by a stop. Another
process resumes its session with the message. All these processes are one run: with one log, one time limit and one
result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..environment.environment import mount_environment
from ..environment.hide import hide
from ..environment.home import expand_home, find_bash_env, write_home_file, write_home_files
from ..environment.skills import copy_skills
from ..files import Failure, JobPaths, write_file
from ..git import find_recipe
from ..proxy.relay import Relay, fill_in
from ..sandbox.sandbox import is_sandboxed
from ..stages.command import CommandResult, NotRunnable
from ..stages.stage import Stage
from ..stages.tail import LOOK_EVERY_S, TailReader
from ..stages.told import GOES_ON, Messages, is_told, put_back, take_messages
from .watchers import read_warning, watch_over

NOT_RESUMED = "the agent's session could not be resumed with what it was told"


def run_agent(stage: Stage) -> dict[str, Any]:
    """Run the agent. Raises `Failure` if it cannot be started; how it ends is part of the result."""
    job, request, started_at = stage.job, stage.request, time.monotonic()
    prompt = job.root / "prompt.md"
    write_file(prompt, request["prompt"])
    mount_environment(job, stage.patience_s)
    write_home_files(job, request["files"])
    copy_skills(stage)
    watch_over(stage)
    has_network = not is_sandboxed(job) or find_recipe(job).get("network") != "none"
    relay = Relay(job, has_network=has_network) if request["relay"] else None
    for path, text in request["settings"].items():
        write_home_file(job, path, fill_in(text, relay).encode())
    env = {name: expand_home(job, fill_in(value, relay)) for name, value in request["env"].items()}
    if path := env.get("PATH"):  # Programs are found on the operator's PATH, but `python` is the job's.
        env |= {"PATH": f"{job.venv / 'bin'}:{path}", "PTQ_PATH": path}
    env = {**job.environment(), "BASH_ENV": str(find_bash_env(job)), **env}
    argv, stdin = request["argv"], prompt if request["prompt_on_stdin"] else None
    messages: Messages | None = None
    while True:
        try:
            if messages is not None:
                _write_messages(job, messages)
            ended = run_process(stage, [expand_home(job, fill_in(word, relay)) for word in argv], env, stdin, relay)
        except Failure as failure:
            if messages is None:
                raise
            put_back(job, messages)
            # What the agent has done so far counts, so the run ends as if a watcher had ended it.
            stage.log.say(failure.message)
            ended = CommandResult(1, None, NOT_RESUMED)
            break
        # The smoke test watches only the first process: by now the agent may have changed what the test needs.
        del stage.watchers[1:]
        is_over = ended.reason not in (None, "told") or os.path.lexists(job.of_stage("agent", "stop"))
        messages = take_messages(job, is_over=is_over)
        if messages is None:
            break
        argv, stdin = messages.argv, job.told
        stage.log.say(GOES_ON)
    return {
        "exit_status": ended.status,
        "timed_out": ended.timed_out,
        "stopped": ended.stopped,
        "objection": ended.objection,
        "doubt": read_warning(job),
        "log_truncated": stage.log.truncated,
        "run_s": time.monotonic() - started_at,  # On a clock that nobody can set.
    }


def _write_messages(job: JobPaths, messages: Messages) -> None:
    """Write the input of the session's next process. Raises `Failure` if something is in its way."""
    try:
        write_file(job.told, messages.prompt)
    except OSError as error:
        raise Failure("not_told", f"{job.told.name} cannot be written: {error.strerror}") from None


def run_process(
    stage: Stage, argv: Sequence[str], env: Mapping[str, str], stdin: Path | None, relay: Relay | None
) -> CommandResult:
    """Run one process of the agent until it ends, is told something, or has to end. Raises `Failure`."""
    job, request = stage.job, stage.request
    # Before each process, because an earlier process may have written hidden files again.
    hide(job, request["hidden"], stage.deadline)
    try:
        return stage.run(
            argv,
            env,
            job.worktree,
            stdin=stdin,
            drop_lines=request["drop_lines"],
            tail=follow_session(job, request),
            stop=job.of_stage("agent", "stop"),
            is_told=partial(is_told, job),
            grace_s=request["stop_grace_s"],
            start_beside=relay.start if relay else None,
        )
    except NotRunnable as error:
        raise Failure("agent_not_found", f"the agent's program {error}") from None


def follow_session(job: JobPaths, request: Mapping[str, Any]) -> TailReader | None:
    """A reader for the file that the agent writes in addition to its output. None if it writes none."""
    if not request["tail_glob"]:
        return None
    return TailReader(job.home, request["tail_glob"], request["tail_word"], request.get("tail_every_s", LOOK_EVERY_S))
