"""Waits between two steps of a job. While somebody watches the job's log, the log is copied as it grows."""

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
"""How many seconds the machine may wait for new output. During this time, a notification cannot end the request, which
takes a slot of the connection."""

BREATH_S = 0.1
"""The pause between two requests, in seconds. A log that never stops growing is copied once in this time."""


async def rest(runtime: Runtime, job: Job, listener: Listener, rest_s: float) -> None:
    """Wait for a notification, or for `rest_s` seconds. Meanwhile, copy the log of a watched job."""
    now = asyncio.get_running_loop().time
    until = now() + rest_s
    # If something is wrong with the machine, the next step meets the same error, and handles it.
    with suppress(HostError, JobdError):
        while runtime.spool.is_watched(job.id) and now() < until and not listener.heard.is_set():
            if not await _copy_news(runtime, job, min(until - now(), WAIT_S)):
                break
            await asyncio.sleep(BREATH_S)
    await listener.wait(max(until - now(), 0.0))


async def _copy_news(runtime: Runtime, job: Job, wait_s: float) -> bool:
    """Copy new output of the job's log. Wait up to `wait_s` seconds for it. False if it is useless to ask again."""
    client = runtime.clients.get(job.machine or "")
    if client is None or job.repository not in runtime.profiles:
        return False
    environment = name_environment(job.id) if job.state is JobState.VERIFYING else job.id
    poll = await follow(runtime, client, job, GROWING[job.state], environment, wait_s)
    return poll.state is StageState.RUNNING
