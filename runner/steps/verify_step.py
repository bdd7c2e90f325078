"""The step that verifies a result: it runs the issue's scripts, the agent's script, and the tests in the change.

They run on the job's machine, in a separate environment from the same base, which no agent has used and which has no
token. A failure here only means that there is no verification; the job keeps its report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import structlog

from runner.aside import run_aside, run_in_thread
from runner.changes.concerns import is_withheld
from runner.characters import make_storable
from runner.checks.regression_tests import choose_words, find_tests, generates_tests, is_for_tests
from runner.checks.verification import (
    MAX_WORDS,
    Check,
    CheckKind,
    CheckRun,
    Side,
    find_text,
    list_sides,
    name_environment,
)
from runner.model.environment import Profile, Verification
from runner.model.job import FileChange, Job, JobState, Report
from runner.model.jobd_answers import SAYS, JobdError, StageState, read_text
from runner.model.machines import Lease
from runner.rows import job_rows
from runner.rows.check_rows import add_checks, fetch_checks, save_runs
from runner.rows.holds import fetch_holds
from runner.steps.base_commit import read_base_commit
from runner.steps.gateway import Fetcher
from runner.steps.runtime import (
    Runtime,
    end,
    follow,
    keep_routes,
    log_move,
    note_begun,
    require_in_time,
    require_time_to_begin,
)
from runner.steps.spool import CHECK
from runner.transport.host_errors import HostError
from runner.transport.jobd_client import JobdClient

log = structlog.get_logger()

MAX_SCRIPTS, MAX_TEST_FILES = 3, 5
"""The most scripts of the issue, and test files of the change, that are run."""

NOT_SEALED = "the machine has no sandbox, and anybody can write a script in an issue"
INCOMPLETE = "the machine did not report all results"

_SIDES = {
    Side.BASE: "on the base commit",
    Side.CHANGED: "with the change",
    Side.TEXT: "with the changed text, while the base's code runs",
}
"""How the log of the checks names each side."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What to verify: the change of a report, if it can be proposed, and its checks."""

    checks: Sequence[Check]
    changes: Sequence[FileChange]
    text: Sequence[FileChange]
    """The changes that can be in the files while the base's code runs."""

    def list_sides(self, check: Check) -> tuple[Side, ...]:
        """The sides that a check runs on."""
        return list_sides(check.kind, has_change=bool(self.changes), has_text=bool(self.text))


async def _plan(job: Job, report: Report) -> list[tuple[CheckKind, str, str]]:
    """The checks besides the issue's scripts. Empty if the report cannot be analysed."""
    try:
        return await run_in_thread(plan_checks, report)
    except Exception:
        log.exception("job.checks_not_planned", **job.log_context())
        return []


def plan_checks(report: Report) -> list[tuple[CheckKind, str, str]]:
    """The checks of an agent's result besides the issue's scripts: kind, origin and script of each."""
    found = [(CheckKind.AGENT, "repro.py", report.repro)] if report.repro.strip() else []
    tests = find_tests(report.changes, report.patch) if report.digest else ()
    return [*found, *((CheckKind.TESTS, path, "\n".join(names)) for path, names in islice(tests, MAX_TEST_FILES))]


def _is_kept(planned: tuple[CheckKind, str, str], known: Sequence[Check]) -> bool:
    """Whether a planned check is the agent's copy of a script that was kept from an earlier attempt.

    The kept script is checked anyway.
    """
    kind, _, script = planned
    kept = (check.script.strip() for check in known if check.kind is CheckKind.KEPT)
    return kind is CheckKind.AGENT and script.strip() in kept


async def begin_verification(runtime: Runtime, job: Job, report: Report) -> Job | None:
    """Store the result of a run, and start its verification. Without anything to verify, only return None."""
    profile = runtime.profiles[job.repository]
    planned = await _plan(job, report) if profile.verification.runs else []
    async with runtime.db.read() as connection:
        known = await fetch_checks(connection, job.id)
        is_held = any(hold.job_id == job.id for hold in await fetch_holds(connection))
    planned = [one for one in planned if not _is_kept(one, known)]
    # With a hold, a person waits for access, and on some machines the checks' environment would replace the job's.
    if not profile.verification.runs or is_held or not (known or planned):
        return None
    withheld = await run_aside(report.size, is_withheld, job, report)
    async with runtime.db.write() as connection:
        moved = await job_rows.move_job(connection, job, JobState.VERIFYING, runtime.now())
        await job_rows.insert_report(connection, report, withheld=withheld)
        await add_checks(connection, job.id, planned)
    return log_move(moved)


async def begin_only(runtime: Runtime, job: Job) -> Job:
    """Run a job's scripts only on the base commit, because it has no agent."""
    if not runtime.profiles[job.repository].verification.runs:
        return await end(runtime, job, JobState.FAILED, "the operator has turned verification off for this repository")
    report = Report(job.id, body="", worklog="", pr_title="", repro="", patch="", changes=(), digest=None)
    async with runtime.db.write() as connection:
        moved = await job_rows.move_job(connection, job, JobState.VERIFYING, runtime.now())
        await job_rows.insert_report(connection, report, withheld=job.confidential)
    return log_move(moved)


async def follow_verification(runtime: Runtime, client: JobdClient, job: Job) -> Job:
    """Prepare the environment, run the checks in it, and end the job with the results."""
    environment, profile = name_environment(job.id), runtime.profiles[job.repository]
    try:
        poll = await follow(runtime, client, job, CHECK, environment)
        if poll.state is StageState.ABSENT:
            return await _begin(runtime, client, job, environment)
    except JobdError as error:
        return await finish_unverified(runtime, job, error.message)
    if poll.state is StageState.RUNNING:
        require_in_time(runtime, job)
        return job
    if poll.state is not StageState.DONE:
        return await finish_unverified(runtime, job, poll.message or "it was killed")
    seen = _read_runs(await _fetch_subject(runtime, job), poll.result, profile.verification)
    async with runtime.db.write() as connection:
        for check in seen:
            await save_runs(connection, check)
    await _put_away(client, job)
    return await _finish(runtime, job)


async def finish_unverified(runtime: Runtime, job: Job, reason: str) -> Job:
    """End the job with its report, and with the reason why nothing was verified."""
    log.warning("job.not_verified", **job.log_context(), reason=reason)
    async with runtime.db.write() as connection:
        for check in await fetch_checks(connection, job.id):
            if not check.runs:
                await save_runs(connection, replace(check, trouble=reason))
    return await _finish(runtime, job)


async def _finish(runtime: Runtime, job: Job) -> Job:
    if job.cancel_requested_at:
        return await end(runtime, job, JobState.CANCELLED, f"cancelled by {job.canceller}")
    return await end(runtime, job, JobState.SUCCEEDED, None)


async def _begin(runtime: Runtime, client: JobdClient, job: Job, environment: str) -> Job:
    """Prepare the environment, and when it is ready, start the checks. Raises `JobdError`."""
    poll = await client.poll(environment, "prepare", log_limit=0)
    profile, fetcher = runtime.profiles[job.repository], replace(Fetcher.of(job), id=environment)
    async with runtime.db.read() as connection:
        lease = await job_rows.fetch_leased(connection, job.id) or Lease(job.machine or "", 0, job.id)
    require_time_to_begin(runtime, job, 1 if poll.state is StageState.ABSENT else 2)
    if poll.state is StageState.ABSENT:
        recipe = profile.recipe(job.clone_url, job.base_branch, job.base_commit or "", lease.slot, profile.trunk)
        if profile.verification.network == "none":
            recipe = replace(recipe, network="none")
        way = await runtime.gateway.open_git_route(fetcher, client)
        await client.prepare(environment, replace(recipe, git=way.env, relay=way.by_relay), gpus=lease.gpus)
        return await note_begun(runtime, job)
    if poll.state is StageState.RUNNING:
        require_in_time(runtime, job)
        await keep_routes(runtime, client, job, fetcher)
    elif poll.state is StageState.DONE:
        await read_base_commit(runtime, job, poll.result)
        await runtime.gateway.close(environment)  # Nothing has to be fetched any more.
        subject = await _fetch_subject(runtime, job)
        if poll.result.get("sealed") is not True:
            subject = await _leave_strangers_out(runtime, job, subject)
        runs = await run_in_thread(_list_runs, subject, profile)
        await client.start_checks(environment, job.base_commit or "", subject.changes, runs, profile)
        return await note_begun(runtime, job, 2)
    else:
        raise JobdError("not_prepared", poll.message or "the preparation of its environment was killed")
    return job


async def _leave_strangers_out(runtime: Runtime, job: Job, subject: Subject) -> Subject:
    """The subject without the issue's scripts.

    On a machine without a sandbox, a stranger's script could access the whole account.
    """
    async with runtime.db.write() as connection:
        for check in subject.checks:
            if check.kind is CheckKind.ISSUE:
                await save_runs(connection, replace(check, trouble=NOT_SEALED))
    log.info("job.strangers_scripts_left_out", **job.log_context())
    return replace(subject, checks=[check for check in subject.checks if check.kind is not CheckKind.ISSUE])


async def _put_away(client: JobdClient, job: Job) -> None:
    """Remove the environment at once: it may be large, and a person may hold the job's slot for days."""
    try:
        await client.clean(name_environment(job.id))
    except (HostError, JobdError) as error:
        log.info("job.checks_not_put_away", **job.log_context(), reason=str(error))


async def _fetch_subject(runtime: Runtime, job: Job) -> Subject:
    async with runtime.db.read() as connection:
        found = await fetch_checks(connection, job.id)
        report = await job_rows.fetch_report(connection, job.id)
    is_built = bool(runtime.profiles[job.repository].verification.rebuild)
    scripts = [check for check in found if check.kind is CheckKind.ISSUE][:MAX_SCRIPTS]
    others = [check for check in found if check.kind is not CheckKind.ISSUE]
    changes = report.changes if report and report.digest else ()
    # In a thread, because a diff may have megabytes.
    text = await run_in_thread(find_text, changes, report.patch, is_built=is_built) if report else ()
    return Subject([*scripts, *others], changes, text)


def _list_runs(subject: Subject, profile: Profile) -> list[list[dict[str, Any]]]:
    """The runs for the machine: the sides of each check in turn, the issue's scripts before the agent's."""
    return [
        [_describe_run(check, side, subject, profile) for side in subject.list_sides(check)] for check in subject.checks
    ]


def _describe_run(check: Check, side: Side, subject: Subject, profile: Profile) -> dict[str, Any]:
    is_tests = check.kind is CheckKind.TESTS
    own = [change for change in subject.changes if is_tests and is_for_tests(change.path)]
    edits: Mapping[Side, Sequence[FileChange]] = {Side.BASE: own, Side.TEXT: [*own, *subject.text], Side.CHANGED: ()}
    frozen = [change.path for change in subject.text if change.path.endswith(".py")]
    command, names = profile.verification.tests, check.script.split("\n")
    source = next((change.content or b"" for change in own if change.path == check.origin), b"")
    words = choose_words(command, check.origin, names, is_generated=generates_tests(source)) if is_tests else []
    return {
        "name": _name_run(check, side),
        "title": f"Check {check.number} {_SIDES[side]}",
        "script": "" if is_tests else check.script,
        "words": words,
        "changed": side is Side.CHANGED,
        "edits": edits[side],
        "frozen": frozen if side is Side.TEXT else [],
    }


def _name_run(check: Check, side: Side) -> str:
    return f"{side} {check.number}"


def _read_runs(subject: Subject, result: Mapping[str, Any], how: Verification) -> list[Check]:
    """The checks with the machine's results, bounded and checked, because the machine may have been tampered with."""
    told, said = (found if isinstance(found := result.get(name), Mapping) else {} for name in ("runs", "troubles"))
    read = []
    for check in subject.checks:
        sides = subject.list_sides(check)
        rows = {side: told.get(_name_run(check, side)) for side in sides}
        runs = {side: tuple(map(_read_run, row[: how.runs])) for side, row in rows.items() if isinstance(row, list)}
        complete = {side: run for side, run in runs.items() if len(run) == how.runs}
        reasons = (read_text(said.get(_name_run(check, side)), MAX_WORDS) for side in sides)
        reason = next((f"{SAYS}{words}" for words in reasons if words), INCOMPLETE)
        trouble = None if len(complete) == len(sides) else check.trouble or reason
        read.append(replace(check, runs=complete, trouble=trouble))
    return read


def _read_run(row: Any) -> CheckRun:
    """The result of one run. A result that is not valid counts as a failure, and says so."""
    values = row if isinstance(row, Mapping) else {}
    status, words = values.get("status"), values.get("words")
    if type(status) is not int or not 0 <= status <= 255 or not isinstance(words, str):
        return CheckRun(255, timed_out=False, words="the machine's answer about this run is not valid")
    return CheckRun(status, values.get("timed_out") is True, make_storable(words[-MAX_WORDS:]))
