"""The stage `agent`: the coding agent, in the worktree, until it ends, is stopped, or its time is over."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..environment.environment import enter
from ..environment.hide import hide
from ..environment.home import copy_skills, expand_home, find_bash_env, lay_out, put
from ..files import Failure, JobPaths, write_file
from ..git import find_recipe
from ..proxy.relay import Relay, fill_in
from ..sandbox.sandbox import is_sealed
from ..stages.command import NotRunnable
from ..stages.stage import Stage
from ..stages.tail import LOOK_EVERY_S, TailReader
from .watchers import read_doubt, read_objection, watch_over


def run_agent(stage: Stage) -> dict[str, Any]:
    """Run it. Raises `Failure` when it cannot be started; how it ends is part of the result."""
    job, request, started_at = stage.job, stage.request, time.monotonic()
    prompt = job.root / "prompt.md"
    write_file(prompt, request["prompt"])
    enter(job)
    hide(job, request["hidden"])
    lay_out(job, request["files"])
    copy_skills(stage)
    watch_over(stage)
    has_network = not is_sealed(job) or find_recipe(job).get("network") != "none"
    relay = Relay(job, has_network=has_network) if request["relay"] else None
    for path, text in request["settings"].items():
        put(job, path, fill_in(text, relay).encode())
    env = {name: expand_home(job, fill_in(value, relay)) for name, value in request["env"].items()}
    if path := env.get("PATH"):  # The operator's own says where programs are; `python` stays the job's.
        env |= {"PATH": f"{job.venv / 'bin'}:{path}", "PTQ_PATH": path}
    try:
        ended = stage.run(
            [expand_home(job, fill_in(word, relay)) for word in request["argv"]],
            {**job.environment(), "BASH_ENV": str(find_bash_env(job)), **env},
            job.worktree,
            stdin=prompt if request["prompt_on_stdin"] else None,
            drop_lines=request["drop_lines"],
            tail=follow_session(job, request),
            stop=job.of_stage("agent", "stop"),
            grace_s=request["stop_grace_s"],
            start_beside=relay.start if relay else None,
        )
    except NotRunnable as error:
        raise Failure("agent_not_found", f"the agent's program {error}") from None
    return {
        "exit_status": ended.status,
        "timed_out": ended.timed_out,
        "stopped": ended.stopped,
        "objection": read_objection(job) if ended.reason == "objected" else None,
        "doubt": read_doubt(job),
        "log_truncated": stage.log.truncated,
        "run_s": time.monotonic() - started_at,  # Of a clock that nobody can set in between.
    }


def follow_session(job: JobPaths, request: Mapping[str, Any]) -> TailReader | None:
    """What follows the file that the agent writes beside its output; None where it writes none."""
    if not request["tail_glob"]:
        return None
    return TailReader(job.home, request["tail_glob"], request["tail_word"], request.get("tail_every_s", LOOK_EVERY_S))
