"""The verb `enter`: a person's shell in a job, in the same sandbox and environment as the job's commands.

sshd starts jobd with this verb for a person who logs in with a key from `admission`. The verb reads no request, because
its input is the person's terminal. By itself it runs nothing from the environment: no rc files, no activate script, no
hooks.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex

from ..environment.environment import mount_environment
from ..files import Failure, JobPaths, describe, require_worktree
from ..git import as_environment
from ..requests import check_job
from ..sandbox.sandbox import open_sandbox
from ..stages.states import read_state
from ..stages.tombstone import not_ended
from .admission import find_limit_s
from .terminal import SessionEnded, run_in_terminal

TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")

TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo")
"""Folders in which systems describe terminals: see `--with-terminfo-dirs` in the INSTALL file of ncurses."""

GIT_SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
}
"""Settings of git for the person. They override the worktree's configuration, where an agent may name programs."""

BUSY_WITH: Mapping[str, str] = {
    "prepare": "its environment is being made",
    "agent": "its agent is at work",
    "collect": "its result is being collected",
}

LOCK_TIMEOUT_S = 1.0
"""How long to wait until another process leaves the environment, and until there is room for namespaces."""


def run_enter(workspace: str, job_id: str) -> int:
    """Run a person's session in a job. Returns the exit status for sshd."""
    try:
        check_job({"workspace": workspace, "job_id": job_id})
        job = JobPaths({"workspace": workspace, "job_id": job_id})
        require_shell_request()
        if os.environ.get("PTQ_JOB_ID") != job_id:
            restart_clean(job_id)
        run_session(job)
    except SessionEnded as end:
        print(f"\r\nptq-bot: {end}", flush=True)
    except Exception as error:
        print(f"ptq-bot: {describe(error)['message']}", file=sys.stderr, flush=True)
        return 1
    return 0


def require_shell_request() -> None:
    """Raises `Failure` if the person wants something other than an interactive shell."""
    if os.environ.get("SSH_ORIGINAL_COMMAND"):
        raise Failure("no_commands", "this key only opens a shell in a job; it cannot run commands or copy files")
    if not sys.stdin.isatty():
        raise Failure("no_terminal", "entering a job needs a terminal; use ssh -t")


def restart_clean(job_id: str) -> None:
    """Run this program again with clean variables that name the job, so that the program ends with the job."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TERM") if name in os.environ}
    words = [sys.executable, "-I", "-S", *sys.argv]
    os.execve(words[0], words, {**kept, "PTQ_JOB_ID": job_id})  # noqa: S606 - no shell is wanted


def run_session(job: JobPaths) -> None:
    """Let the person work in the job until they leave or their time is over. Raises `Failure`, and `SessionEnded`."""
    limit_s = find_limit_s(job)
    if limit_s <= 0:
        raise Failure("not_held", "nobody has access to this job, or no longer")
    with not_ended(job):
        require_idle(job)
        mount_environment(job, LOCK_TIMEOUT_S, LOCK_TIMEOUT_S)
    require_worktree(job.worktree)
    shell = shutil.which("bash")
    argv = [shell, "--noprofile", "--norc"] if shell else ["/bin/sh"]
    print(describe_session(job, limit_s), flush=True)
    run_in_terminal(
        job, open_sandbox(job, {}), argv, make_environment(job, is_bash=shell is not None), find_limit_s(job)
    )


def require_idle(job: JobPaths) -> None:
    """Raises `Failure` while a stage of the job runs, or if the job has no environment yet."""
    states = {stage: read_state(job, stage)["state"] for stage in BUSY_WITH}
    busy = next((stage for stage, state in states.items() if state == "running"), None)
    if busy:
        raise Failure("busy", f"the job cannot be entered now: {BUSY_WITH[busy]}")
    if states["prepare"] != "done":
        raise Failure("not_prepared", "the job has no environment")


def describe_session(job: JobPaths, limit_s: float) -> str:
    """The greeting. It contains no text from the environment."""
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() + limit_s))
    lines = [
        f"You are in job {job.id}, until {until}. Context: {job.context}",
        "Processes that you start here end with this session; your changes stay for `ptq-bot release`.",
        "No file of the environment has been run for you. Be careful with files that an agent may have written.",
    ]
    return "\n".join(lines)


def make_environment(job: JobPaths, *, is_bash: bool) -> dict[str, str]:
    """The variables of the person's shell: those of all the job's processes, and an interactive shell's settings."""
    prompt = f"[ptq {job.id}] \\W\\$ " if is_bash else f"[ptq {job.id}] $ "
    return {
        **job.environment(),
        **as_environment(GIT_SETTINGS),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_SSH_COMMAND": "ssh",
        "GIT_PAGER": "less" if shutil.which("less") else "cat",
        "LESSSECURE": "1",
        **choose_terminal(os.environ.get("TERM", "")),
        "PS1": prompt,
        "PTQ_CONTEXT_FILE": str(job.context),
        # In the home, these files could hold an agent's key bindings and commands. So could less's (`LESSSECURE`).
        "INPUTRC": os.devnull,
        "HISTFILE": "",
    }


def choose_terminal(term: str, folders: Sequence[str] = TERMINFO) -> dict[str, str]:
    """The variables that name the person's terminal: `term`, or `dumb` if the system has no description of `term`.

    A description says what programs send to the terminal, and an agent can write one into the home. Programs look there
    if the folder in `TERMINFO` has no description (terminfo(5), "Fetching Compiled Descriptions"). So if the system
    describes not even `dumb`, the terminal gets a name that no agent can guess.
    """
    for name in (term, "dumb"):
        for folder in folders if TERM.fullmatch(name) else ():
            # Systems whose file names ignore case name the subfolder by the letter's code.
            if any(Path(folder, letter, name).is_file() for letter in (name[0], f"{ord(name[0]):x}")):
                return {"TERM": name, "TERMINFO": folder}
    return {"TERM": f"unknown-{token_hex(8)}"}
