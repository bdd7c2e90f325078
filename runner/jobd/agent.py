"""The stage `agent`: the coding agent, in the worktree, until it ends or its time is over."""

from __future__ import annotations

import time
from typing import Any

from .files import Failure, write_file
from .stage import NotRunnable, Stage


def run_agent(stage: Stage) -> dict[str, Any]:
    """Run it. Raises `Failure` when it cannot be started; how it ends is part of the result."""
    job, request, started_at = stage.job, stage.request, time.time()
    prompt = job.root / "prompt.md"
    write_file(prompt, request["prompt"])
    stage.drop_lines(request["drop_lines"])
    env, stdin = {**job.environment(), **request["env"]}, prompt if request["prompt_on_stdin"] else None
    try:
        exit_status, timed_out = stage.run(request["argv"], env, job.worktree, stdin)
    except NotRunnable as error:
        raise Failure("agent_not_found", f"the agent's program {error}") from None
    return {
        "exit_status": exit_status,
        "timed_out": timed_out,
        "log_truncated": stage.log_truncated,
        "started_at": started_at,
        "ended_at": time.time(),
    }
