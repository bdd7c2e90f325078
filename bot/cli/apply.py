"""`ptq-bot apply`: a job's stored diff on a new branch of the checkout in which the command runs.

It needs the database, and neither a session nor GitHub. git checks the whole diff before it changes anything.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from bot.config.settings import Settings
from bot.operations.context import read_database, require_job
from runner.characters import encode_exactly
from runner.model.job import Job, Report
from runner.rows import job_rows


class NotApplied(Exception):  # noqa: N818
    """The diff was not applied. Nothing was changed. The message says why."""


async def apply_diff(settings: Settings, job_id: str, folder: Path, *, anyway: bool = False) -> str:
    """Apply a stored diff to the checkout around `folder`. Returns the text for the terminal.

    Raises `UnknownJob`, `NotApplied` and `DatabaseError`.
    """
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
        report = await job_rows.fetch_report(connection, job_id)
    if report is None or not report.patch.strip():
        raise NotApplied(f"job {job.id} has no diff")
    return describe_applied(job, report, await apply_to_checkout(folder, job, report, anyway=anyway))


async def apply_to_checkout(folder: Path, job: Job, report: Report, *, anyway: bool = False) -> str:
    """Stage a job's diff on a new branch, which begins at the checked out commit. Returns the branch's name.

    `anyway` also applies a diff that ptq-bot refuses. Raises `NotApplied`.
    """
    if report.refusals and not anyway:
        why = "; ".join(report.refusals)
        raise NotApplied(f"ptq-bot refuses the diff of job {job.id}: {why}. Read it, then use --anyway to apply it")
    branch = name_branch(job)
    patch = encode_exactly(report.patch)
    top = Path((await _git(folder, "rev-parse", "--show-toplevel")).removesuffix("\n"))
    try:
        await _git(top, "apply", "--index", "--check", "-", given=patch)
    except NotApplied as refused:
        base = f" The diff begins at commit {job.base_commit}." if job.base_commit else ""
        raise NotApplied(f"the diff of job {job.id} does not apply here: {refused}.{base}") from None
    await _git(top, "switch", "--quiet", "--create", branch)
    await _git(top, "apply", "--index", "-", given=patch)
    return branch


def name_branch(job: Job) -> str:
    """The branch for a job's diff in somebody's checkout. Pure."""
    about = f"issue-{job.thread}" if job.thread is not None else job.name
    return f"ptq/{about}-{job.id}"


def describe_applied(job: Job, report: Report, branch: str) -> str:
    """What was applied, and what the reader has to know before they run any of it. Pure."""
    files = f"{len(report.changes)} file{'s' * (len(report.changes) != 1)}"
    lines = [f"The diff of job {job.id} ({job.case_key}, {files}) is on the new branch {branch}, staged."]
    lines += [f"Refused by ptq-bot: {refusal}" for refusal in report.refusals]
    lines += [f"Note: {warning}" for warning in report.warnings]
    lines.append("An agent wrote it: read it before you run it. git diff --staged shows it.")
    return "".join(f"{line}\n" for line in lines)


async def _git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    """What git prints. Raises `NotApplied` with what it says of a failure."""
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        raise NotApplied("git is not installed") from None
    printed, said = await process.communicate(given)
    if process.returncode:
        words = "; ".join(line.removeprefix("error: ") for line in said.decode(errors="replace").splitlines() if line)
        raise NotApplied(words.removeprefix("fatal: ") or f"git {arguments[0]} failed")
    return printed.decode(errors="surrogateescape")
