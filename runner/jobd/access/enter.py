"""The verb `enter`: a person's shell in a job, in a cell and with an environment like any command of the job.

sshd runs it for whoever comes by a key of `admission`, before whom we have a terminal instead of a request. Nothing
that lies in the environment is run until the person runs it: no rc files, no activate script, no hooks.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping

from ..environment.environment import enter
from ..files import Failure, JobPaths, describe, require_worktree
from ..requests import check_job
from ..sandbox.sandbox import open_cell
from ..stages.states import read_state
from ..stages.tombstone import not_ended
from .admission import find_limit_s
from .terminal import Over, run_in_terminal

TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")

GIT_SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
}
"""What git does for the person whatever the worktree's own configuration says, in which an agent may name programs."""

AT_WORK: Mapping[str, str] = {
    "prepare": "its environment is being made",
    "agent": "its agent is at work",
    "collect": "its result is being collected",
}

PATIENCE_S = 1.0
"""For one who has just left."""


def run_enter(workspace: str, job_id: str) -> int:
    """Be a person's session in a job. Returns the exit status for sshd."""
    try:
        check_job({"workspace": workspace, "job_id": job_id})
        job = JobPaths({"workspace": workspace, "job_id": job_id})
        require_shell_request()
        if os.environ.get("PTQ_JOB_ID") != job_id:
            begin_anew(job_id)
        visit(job)
    except Over as over:
        print(f"\r\nptq-bot: {over}", flush=True)
    except Exception as error:
        print(f"ptq-bot: {describe(error)['message']}", file=sys.stderr, flush=True)
        return 1
    return 0


def require_shell_request() -> None:
    """Raises `Failure` when the person wants something else of sshd than a shell."""
    if os.environ.get("SSH_ORIGINAL_COMMAND"):
        raise Failure("no_commands", "this key opens a shell in a job; it runs no other command, and copies no files")
    if not sys.stdin.isatty():
        raise Failure("no_terminal", "a job is entered from a terminal; ssh needs -t for it")


def begin_anew(job_id: str) -> None:
    """Become the same program again with nothing of the caller's, and marked as the job's: so it ends with the job."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TERM") if name in os.environ}
    words = [sys.executable, "-I", *sys.argv]
    os.execve(words[0], words, {**kept, "PTQ_JOB_ID": job_id})  # noqa: S606 - no shell is wanted


def visit(job: JobPaths) -> None:
    """Have the person in the job until they leave, or their time is over. Raises `Failure`, and `Over`."""
    limit_s = find_limit_s(job)
    if limit_s <= 0:
        raise Failure("not_held", "nobody may enter this job, or not any more")
    with not_ended(job):
        require_rest(job)
        enter(job, PATIENCE_S)
    require_worktree(job)
    shell = shutil.which("bash")
    argv = [shell, "--noprofile", "--norc"] if shell else ["/bin/sh"]
    print(describe_visit(job, limit_s), flush=True)
    run_in_terminal(job, open_cell(job, {}), argv, make_environment(job, is_bash=shell is not None), find_limit_s(job))


def require_rest(job: JobPaths) -> None:
    """Raises `Failure` while a stage of the job is at work, or before it has an environment."""
    states = {stage: read_state(job, stage)["state"] for stage in AT_WORK}
    busy = next((stage for stage, state in states.items() if state == "running"), None)
    if busy:
        raise Failure("busy", f"the job cannot be entered just now: {AT_WORK[busy]}")
    if states["prepare"] != "done":
        raise Failure("not_prepared", "the job's environment is not there")


def describe_visit(job: JobPaths, limit_s: float) -> str:
    """What the person is told first; of our own words alone."""
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() + limit_s))
    lines = [
        f"You are in job {job.id}, until {until}. What is known of it: {job.context}",
        "Whatever you start here ends with this session; what you change stays for `ptq-bot release`.",
        "No file of the environment has been run for you. What you run may be an agent's work.",
    ]
    return "\n".join(lines)


def make_environment(job: JobPaths, *, is_bash: bool) -> dict[str, str]:
    """What the person's shell starts with: what every process of the job does, and what makes it theirs."""
    term = os.environ.get("TERM", "")
    prompt = f"[ptq {job.id}] \\W\\$ " if is_bash else f"[ptq {job.id}] $ "
    settings = {"GIT_CONFIG_COUNT": str(len(GIT_SETTINGS))}
    for number, (key, value) in enumerate(GIT_SETTINGS.items()):
        settings |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {
        **job.environment(),
        **settings,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_SSH_COMMAND": "ssh",
        "GIT_PAGER": "less" if shutil.which("less") else "cat",
        "LESSSECURE": "1",
        "TERM": term if TERM.fullmatch(term) else "dumb",
        "PS1": prompt,
        "PTQ_CONTEXT_FILE": str(job.context),
        # They lie in the home, and could hold keys to press and commands to repeat; so could what less reads there.
        "INPUTRC": os.devnull,
        "HISTFILE": "",
    }
