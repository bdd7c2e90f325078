"""What goes on between two steps of a job: nothing, or its log is followed closely, while somebody watches it grow."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from runner.checks.verification import name_environment
from runner.model.job import Job, JobState
from runner.model.jobd_answers import JobdError, StageState
from runner.steps.loops import Listener
from runner.steps.runtime import Runtime, follow
from runner.steps.spool import GROWING
from runner.transport.host_errors import HostError

WAIT_S = 1.0
"""How long the machine may wait for something new: so long it has a slot of the connection, and cannot be notified."""

BREATH_S = 0.1
"""Between two questions, in seconds: a log that never stops growing comes in pieces of that."""


async def rest(runtime: Runtime, job: Job, listener: Listener, rest_s: float) -> None:
    """Wait for a notification, or for `rest_s` seconds. Meanwhile, copy the log of a watched job."""
    now = asyncio.get_running_loop().time
    until = now() + rest_s
    # Whatever is wrong with the machine, the next step will meet it, and knows what to do.
    with suppress(HostError, JobdError):
        while runtime.spool.is_watched(job.id) and now() < until and not listener.heard.is_set():
            if not await _copy_news(runtime, job, min(until - now(), WAIT_S)):
                break
            await asyncio.sleep(BREATH_S)
    await listener.wait(max(until - now(), 0.0))


async def _copy_news(runtime: Runtime, job: Job, wait_s: float) -> bool:
    """Copy what the job's log grows by within that time. False when nothing will come of asking again."""
    client = runtime.clients.get(job.machine or "")
    if client is None or job.repository not in runtime.profiles:
        return False
    environment = name_environment(job.id) if job.state is JobState.VERIFYING else job.id
    poll = await follow(runtime, client, job, GROWING[job.state], environment, wait_s)
    return poll.state is StageState.RUNNING
