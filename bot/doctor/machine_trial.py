"""Runs a first job on a machine, without an agent, to find problems before a repository's first real job.

It works like a real job: it clones a repository with one commit, creates a virtual environment, and runs commands in
both, in a sandbox if the machine has one. Its folder inside the machine's work folder is removed afterwards.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

from bot.doctor.findings import Cause, Finding, Part
from runner.model.environment import Limits, Profile
from runner.model.jobd_answers import JobdError, Poll, StageState
from runner.model.machines import Machine
from runner.transport.host_errors import HostError
from runner.transport.hosts import Host
from runner.transport.jobd_client import JobdClient

GIT, JOB = "git", "first job"
OLDEST_GIT = (2, 30)
"""See docs/environment.md."""

LIMIT_S = 60
WAIT_S = 10.0

NO_SETTINGS = ("-c", "commit.gpgSign=false", "-c", "core.hooksPath=/dev/null")
AUTHOR = ("-c", "user.name=ptq-bot", "-c", "user.email=ptq-bot@localhost")
OPEN_UP = ("-type", "d", "!", "-perm", "-700", "-exec", "chmod", "u+rwx", "{}", ";")
"""Arguments for find(1): overlays leave folders without any permission."""

NO_GIT = "install git 2.30 or newer there"
FIXES: Mapping[str, str] = {
    "no_git": NO_GIT,
    "clone_failed": f"make git work there for this account, or {NO_GIT}",
    "checkout_failed": f"make git work there for this account, or {NO_GIT}",
    "venv_failed": "install python3-venv there (Debian, Ubuntu), or set a create_venv that works there",
    "smoke_test_failed": "make the result of create_venv usable there",
    "disk_full": "free disk space there",
}
"""Error code -> fix."""


def judge_git(part: Part, said: str | None) -> Finding:
    """Check a machine's git version. Pure."""
    if said is None:
        return part.fail(GIT, "git is not installed", f"{NO_GIT}, on the PATH of a login without a terminal")
    version = re.search(r"(?<!\d)(\d++)\.(\d++)", said)
    if version and (int(version[1]), int(version[2])) < OLDEST_GIT:
        return part.fail(GIT, f"too old: {said}", NO_GIT)
    return part.ok(GIT, said or GIT)


async def try_job(part: Part, machine: Machine, host: Host, create_venv: Sequence[str]) -> Finding:
    """Run a job with this command for virtual environments. Raises `HostError` and `JobdError`."""
    place = PurePosixPath(machine.workspace) / f"trial-{secrets.token_hex(4)}"
    client, job_id = JobdClient(replace(machine, workspace=str(place)), host), secrets.token_hex(5)
    repository = place / "repository"
    try:
        if failure := await _make_repository(host, repository):
            return part.fail(JOB, f"git cannot create a repository there: {failure}", FIXES["clone_failed"])
        await client.prepare(job_id, _make_profile(create_venv).recipe(repository.as_uri(), "HEAD"))
        return judge_job(part, await _follow(client, job_id))
    finally:
        with suppress(HostError, JobdError):
            await client.clean(job_id)
        with suppress(HostError):
            await host.run(["find", str(place), *OPEN_UP])
            await host.run(["rm", "-rf", "--", str(place)])


async def _make_repository(host: Host, folder: PurePosixPath) -> str:
    """Create a repository with one commit. Returns the failure, or an empty text."""
    commit = ("commit", "--quiet", "--allow-empty", "--no-verify", "--message=trial")
    for argv in (
        ["mkdir", "-p", "--", str(folder)],
        [GIT, "init", "--quiet", "--template=", str(folder)],
        [GIT, "-C", str(folder), *NO_SETTINGS, *AUTHOR, *commit],
    ):
        done = await host.run(argv)
        if done.exit_status:
            return done.stderr.decode(errors="replace").strip() or f"{argv[0]} exited with status {done.exit_status}"
    return ""


def _make_profile(create_venv: Sequence[str]) -> Profile:
    python = ('"$VIRTUAL_ENV/bin/python" --version',) if any("venv" in word for word in create_venv) else ()
    limits = Limits(prepare_timeout_s=LIMIT_S, base_timeout_s=LIMIT_S, max_log_bytes=1_000_000)
    smoke_test = ("git status --short", *python)
    return Profile(JOB, create_venv=tuple(create_venv), smoke_test=smoke_test, submodules=False, limits=limits)


async def _follow(client: JobdClient, job_id: str) -> Poll:
    offset = 0
    while True:
        poll = await client.poll(job_id, "prepare", log_offset=offset, wait_s=WAIT_S)
        if poll.state is not StageState.RUNNING:
            return poll
        offset += len(poll.log)


def judge_job(part: Part, poll: Poll) -> Finding:
    """Judge the result. Pure."""
    if poll.state is StageState.DONE:
        return part.ok(JOB, "test job passed (clone, virtual environment, command)")
    gone = "its folder was deleted" if poll.state is StageState.ABSENT else "it was killed"
    words = poll.message or gone
    if poll.error == "timed_out":
        return part.warn(
            JOB, words, f"find out why it takes more than {LIMIT_S} seconds there, such as a slow or busy disk"
        )
    fix = FIXES.get(poll.error or "", "install what docs/environment.md lists there")
    causes = (Cause(part.about, "disk"),) if poll.error == "disk_full" else ()
    return part.fail(JOB, words, fix, *causes)
